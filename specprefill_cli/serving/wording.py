"""The words of requests in many languages: questions about a place in a text, and tasks that need all of it.

A false match of `WHOLE` costs time, a missed match costs an answer; a false match of `LOOKUP` costs an answer.
"""

import re

# Words of questions and of demands that a place in the document answers.
LOOKUP = re.compile(
    r"\b(?:what(?:'s)?|who(?:'s)?|whom|whose|when|where|which|how (?:much|many|long|old|far|often|big|high|tall|wide|deep|fast|soon)|"
    r"tell me|give me|find|name|say|state|look up|quote|cite|want to know|need to know|"
    r"was|wer|wen|wem|wann|wo|welche[rmns]?|wie ?(?:viele?|hoch|lange|weit|oft|alt|teuer|groß|heißt)|warum|sag(?:e|en)?|nenn(?:e|en)?|gib|finde|suche|"
    r"quel(?:le)?s?|qui|quand|où|combien|pourquoi|(?:dis|dites|donnez|donne|indiquez|indique)(?:-moi)?|trouvez?|cherchez?|citez?|"
    r"cuál(?:es)?|quién(?:es)?|cuándo|dónde|cuánt[oa]s?|qué|dime|diga|dame|indica|encuentra|busca|"
    r"quale|quali|chi|quando|dove|quant[oaie]|che cosa|cosa|dimmi|dammi|trova|cerca|"
    r"qual|quais|quem|onde|o que|diga-me|encontre|procure|"
    r"wat|wie|wanneer|waar|welke?|hoe(?:veel)|zeg|noem|geef|vind|zoek|"
    r"jak(?:i|a|ie|iego|iej)|kto|kiedy|gdzie|ile|powiedz|podaj|znajdź|"
    r"как(?:ой|ая|ое|ие|ого|им)|кто|когда|где|сколько|скажи(?:те)?|назови(?:те)?|найди(?:те)?|укажи(?:те)?|"
    r"як(?:ий|а|е|ого)|хто|коли|де|скільки|vad|vem|när|vilke[nt]|hvad|hva|hvem|hvor|hvornår|hvilke[nt]|"
    r"jak(?:á|ou)|kdo|kdy|kde|kolik|kim|nerede|hangi|kaç|ne (?:kadar|zaman|renk)|"
    r"من|متى|أين|كم|ما (?:هو|هي|لون)|أخبرني|कौन|कब|कहाँ|कितन\w*|क्या)\b"
    r"|什么|谁|哪|多少|几[点个时]|何时|请问|告诉|找出|教えて|何[色時日人円]|誰|いつ|どこ|どの|いくら|무엇|누구|언제|어디|얼마|몇|무슨|알려",
    re.IGNORECASE,
)
# A question with yes or no for an answer; in a language that is not here it counts as unclear.
YES_OR_NO = re.compile(
    r"\s*(?:is|are|was|were|does|do|did|has|have|had|must|may|should|ist|sind|hat|haben|darf|muss|gibt es|est-ce|y a-t-il|"
    r"es|está|hay|tiene|è|ha|c'è|é|há|tem|heeft|mag|czy|есть ли)\b",
    re.IGNORECASE,
)
# Beginnings and words of requests: such sentences may be asked, wherever they stand.
REQUEST = re.compile(
    r"\s*(?:[-*#>\d.)]+ )?(?:question|query|task|instructions?|user|frage|aufgabe|anweisung|pregunta|tarea|domanda|compito|pergunta|tarefa|"
    r"vraag|opdracht|pytanie|zadanie|вопрос|задача|问题|質問|질문|q)\s*[:：]"
    r"|\s*(?:(?:now|please|then|using|based on|bitte|nun|por favor|per favore|s'il (?:te|vous) plaît)\b|answer|reply|respond|translate|summari|"
    r"tell me|give me|find|list|extract|explain|compare|rewrite|write|check|review|antworte|fasse?|nenne|sag|finde|erkläre?|übersetze?|schreibe?|"
    r"réponds|répondez|résume|dis-moi|donne|trouve|traduis|indique|explique|responde|resume|dime|indica|traduce|rispondi|riassumi|dimmi|indica|"
    r"traduci|responda|resuma|diga|traduza|antwoord|vat|noem|geef|zeg|vertaal|odpowiedz|podaj|streść|ответь|скажи|назови|найди|"
    r"请|告诉|总结|翻译)"
    r"|.{0,300}(?:\b(?:please|bitte|s'il (?:te|vous) plaît|por favor|per favore|alsjeblieft|alstublieft|proszę|пожалуйста)\b|请|ください|教えて|주세요)",
    re.IGNORECASE,
)
WHOLE = re.compile(
    # Summaries and translations, by stems.
    r"summar|tl;?dr|zusammen(?:zu)?fass|fass\w*\b.{0,80}\bzusammen|résum|resum|riassum|samenvat|vat\b.{0,80}\bsamen|s[au]mm?anfatt|opp?summer|"
    r"streszcz|podsum|shrň|souhrn|резюм|кратк|суммир|обобщ|переска|özet|لخص|تلخيص|总结|總結|概括|概述|摘要|归纳|要約|まとめ|概要|요약|सारांश|"
    r"translat|übersetz|tradu[ciz]|tradui|vertaal|översätt|oversæt|oversett|tłumacz|přelo[žz]|перев[еёо]|çevir|ترجم|翻译|翻譯|翻訳|訳して|번역|अनुवाद|"
    r"rewrit|rephras|paraphras|proofread|improv|refactor|\bdebug|convert|classif|sentiment|analy[sz]|critiqu|compar|review|umschreib|formulier|"
    r"verbesser|korrigier|vergleich|reformul|réécri|corrig|amélior|reescrib|mejor|riscriv|miglior|confront|melhor|herschrijf|verbeter|vergelijk|"
    # Parts that may stand anywhere.
    r"overview|outline|\bgist\b|takeaway|(?:key|main|major|important) (?:points?|ideas?|facts?|topics?|themes?)|\b(?:tone|mood|theme|moral|opinion)\b|"
    r"überblick|haupt(?:punkt|aussag|them)|kernaussag|wichtigst|aperçu|(?:points|idées) (?:clés|princip)|(?:puntos|ideas) (?:clave|princip)|"
    r"(?:punti|idee) (?:chiave|princip)|(?:pontos|ideias) (?:chave|princip)|hoofdpunt|belangrijkst|overzicht|główn|главн|основн|要点|主要|大意|요점|"
    r"what (?:is|does|are) (?:(?:this|the|these) )?(?:\w+ )?(?:about|say)\b|worum geht|worüber|wovon handel|de quoi (?:parle|s'agit|trait)|"
    r"de qué (?:trata|habla)|di (?:che )?cosa (?:parla|tratta)|(?:de|do) que (?:trata|fala)|waar(?:over)? gaat|o czym|о ч[её]м|关于什么|讲了什么|何について|"
    # Counts and lists.
    r"\b(?:list|lists|count|enumerate|all|every|each|whole|entire|in total|altogether|how many times|spelling|typos?|mistakes?|bugs?|missing|"
    r"alle[rnms]?|jede[rnms]?|gesamte?[nrs]?|ganze[nrms]?|insgesamt|auflisten|liste|tous|toutes|tout|chaque|entier|en tout|énumère\w*|"
    r"todos|todas|todo|cada|entero|en total|enumera|lista|tutti|tutte|tutto|ogni|intero|in totale|elenca\w*|inteiro|liste|ao todo|"
    r"elke?|ieder[e]?|hele|geheel|in totaal|lijst|wszystk\w+|każd\w+|cał\w+|все|всех|кажд\w+|весь|всего|список|перечисл\w+|"
    r"alla|varje|hela|totalt|tüm|bütün|hepsi|كل|جميع|सभी|हर)\b|所有|全部|每[个一]|一共|列出|列举|すべて|全て|各|一覧|列挙|모든|모두|나열|목록|"
    r"\bhow many\b.{1,60}\b(?:are|is) (?:there|listed|named|mentioned)|wie viele\b.{1,60}\b(?:gibt|sind|werden)|combien\b.{1,60}\b(?:y a|sont)|"
    r"cuánt[oa]s\b.{1,60}\bhay|quant[ie]\b.{1,60}\bci sono|quant[oa]s\b.{1,60}\b(?:há|são|existem)|hoeveel\b.{1,60}\b(?:zijn|staan)",
    re.IGNORECASE,
)
QUESTION_MARK = re.compile(r"\?(?![\w=&/])|[？؟]|吗[。\s]*$|ですか[。\s]*$|ますか[。\s]*$")
# Names of tags that hold a question, and of tags that hold data.
ASKING_TAGS = (
    r"(?:user[_-]?)?(?:question|query|request|task|input|instructions?|prompt)|frage|pregunta|domanda|pergunta|vraag"
)
DATA_TAGS = (
    r"documents?|docs?|context|sources?|files?|text|article|data|contents?|document_contents?|passages?|attachments?|transcript|pages?|book|report|"
    r"e?mail|excerpts?|chunks?|snippets?|search_results?|results?|references?|knowledge|dokumente?|kontext|texte|contexte|documento|contexto|testo|contesto"
)
# A line above data, such as `Context:`.
DATA_LABEL = re.compile(
    r"^.{0,40}\b(?:context|documents?|text|content|sources?|article|data|excerpts?|passages?|path|file|report|kontext|dokument|quelle|contexte|"
    r"texte|contexto|documento|texto|contesto|testo|контекст|текст)\b.{0,60}[:：=]\s*$|^(?:上下文|文档|文書|资料)[:：]",
    re.IGNORECASE | re.MULTILINE,
)
ASKING_LABEL = re.compile(
    r"^[ \t*#>]*(?:(?:user |the |new )?(?:question|query)|frage|vraag|pregunta|domanda|pergunta|pytanie|вопрос|问题|質問|질문|q)[ \t*]*[:：][ \t*]*",
    re.IGNORECASE | re.MULTILINE,
)
# Words of a user's own account, and of instructions for an assistant.
OWN_WORDS = re.compile(
    r"\b(?:i|i'm|i've|my|me|ich|mein\w*|mir|mich|je|j'ai|mon|ma|mes|yo|mi|mis|io|mio|mia|eu|meu|minha|ik|mijn|я|мой|мне)\b|我|私|僕",
    re.IGNORECASE,
)
INSTRUCTING = re.compile(
    r"\b(?:you|your|never|always|do not|don't|du|dein\w*|niemals|vous|tu|jamais|usted|nunca|siempre|sempre|mai|você|je|jij|nooit|altijd|ты|вы)\b|你|您|あなた",
    re.IGNORECASE,
)
# Messages that ask nothing.
CLOSING = re.compile(
    r"\s*(?:thanks|thank you|thx|ok(?:ay)?|sure|continue|go on|here (?:is|are)|hello|hi|danke|vielen|merci|voici|gracias|grazie|ecco|obrigad|bedankt|"
    r"dank|hier|dziękuję|спасибо|вот|谢谢|ありがとう|감사|cheers|regards|best|kind)\b",
    re.IGNORECASE,
)
