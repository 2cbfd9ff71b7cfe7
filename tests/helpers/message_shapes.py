"""Messages as clients send them: a document and a question in many shapes and languages."""

from itertools import product

# By language: sentences of a document, questions about a place in it, tasks that need all of it, an instruction, a closing.
LANGUAGES = {
    "en": (
        "The gate is dark green. The orchard has ninety apple trees. Visitors leave their carts behind the barn. "
        "Hay is stored in the long shed. The well was dug by the school before the railway came.",
        ("What colour is the gate?", "Tell me the colour of the gate."),
        ("Summarise the document.", "Can you translate this text?", "What's this about?", "Which trees are given?"),
        "Answer in one word.",
        "Thanks!\n\nMary Hill",
    ),
    "de": (
        "Das Tor ist dunkelgrün. Im Obstgarten stehen neunzig Apfelbäume. Besucher stellen ihre Karren hinter der Scheune ab. "
        "Das Heu liegt im langen Schuppen. Den Brunnen grub die Schule, bevor die Bahn kam.",
        ("Welche Farbe hat das Tor?", "Nenne mir die Farbe des Tors."),
        ("Fasse den Text bitte zusammen.", "Worum geht es in dem Dokument?", "Was steht da drin?"),
        "Antworte mit einem Wort.",
        "Vielen Dank!\n\nMaria Hügel",
    ),
    "fr": (
        "La porte est vert foncé. Le verger compte quatre-vingt-dix pommiers. Les visiteurs laissent leurs charrettes derrière la grange. "
        "Le foin est rangé dans le long hangar. Le puits fut creusé avant le chemin de fer.",
        ("De quelle couleur est la porte ?", "Indique la couleur de la porte."),
        ("Résume ce document.", "De quoi parle ce texte ?", "Quels arbres sont donnés ?"),
        "Réponds en un mot.",
        "Merci !\n\nMarie Colline",
    ),
    "es": (
        "La puerta es verde oscuro. El huerto tiene noventa manzanos. Los visitantes dejan sus carros detrás del granero. "
        "El heno se guarda en el cobertizo largo. El pozo se cavó antes del ferrocarril.",
        ("¿Cuál es el color que mejor le va a la puerta?", "Dime el color de la puerta."),
        ("Resume el documento.", "¿De qué trata este texto?", "¿Qué opinas del texto?"),
        "Responde con una palabra.",
        "¡Gracias!\n\nMaría Cerro",
    ),
    "it": (
        "Il cancello è verde scuro. I meli del frutteto sono novanta. I visitatori lasciano i carri dietro il fienile. "
        "Il fieno sta nella lunga rimessa. Il pozzo fu scavato prima della ferrovia.",
        ("Di che colore è il cancello?", "Dimmi il colore del cancello."),
        ("Riassumi il documento.", "Di cosa parla questo testo?", "Quali alberi compaiono?"),
        "Rispondi con una parola.",
        "Grazie!\n\nMaria Colle",
    ),
    "pt": (
        "O portão é verde escuro. O pomar tem noventa macieiras. Os visitantes deixam as carroças atrás do celeiro. "
        "O feno fica no galpão comprido. O poço foi cavado antes da ferrovia.",
        ("Qual é a cor do portão?", "Diga a cor do portão."),
        ("Resuma o documento.", "Do que trata este texto?", "O que achas do texto?"),
        "Responda com uma palavra.",
        "Obrigada!\n\nMaria Monte",
    ),
    "nl": (
        "De poort is donkergroen. De boomgaard telt negentig appelbomen. Bezoekers laten hun karren achter de schuur. "
        "Het hooi ligt in de lange loods. De put werd gegraven voordat de spoorlijn kwam.",
        ("Welke kleur heeft de poort?", "Noem de kleur van de poort."),
        ("Vat het document samen.", "Waar gaat deze tekst over?", "Wat is het verschil tussen hooi en stro?"),
        "Antwoord met een woord.",
        "Bedankt!\n\nMarie Heuvel",
    ),
    "ru": (
        "Ворота тёмно-зелёные. В саду растут девяносто яблонь. Посетители оставляют повозки за амбаром. "
        "Сено лежит в длинном сарае. Колодец вырыли до того, как пришла железная дорога.",
        ("Какого цвета ворота?", "Назови цвет ворот."),
        ("Перескажи документ кратко.", "О чём этот текст?", "Сколько слов в тексте?"),
        "Ответь одним словом.",
        "Спасибо!\n\nМария Холмова",
    ),
}
PLAIN = (
    "{d}\n\n{q} | {q}\n\n{d} | {d}\n{q} | {d} {q} | {d}\n\n{q}\n\n{c} | {q}\n\n{d}\n\n{c} | {i}\n\n{d}\n\n{q} | {d}\n\n{q} {i} | "
    '{q} {i}\n\n{d} | {d}\n\n{q}\n\n{d} | ```\n{d}\n```\n{q} | {q}\n```text\n{d}\n``` | """\n{d}\n"""\n{q}\n{c} | '
    "<document>\n{d}\n</document>\n\n{q} | {q}\n\n<documents><document index='1'><source>a</source>\n{d}\n</document></documents> | "
    "<context>{d}</context>\n<question>{q}</question>\n{c} | Context:\n{d}\n\nQuestion: {q}\n\nAnswer: | "
    "Question: {q}\nContext: {d}\nAnswer: | {q}\n\n---\n{d}\n--- | {quoted}\n\n{q} | Hello,\n\n{q}\n\n{d}\n\n--\n{c}"
).split(" | ")
RULES = "If you don't know the answer, just say that you don't know, don't try to make up an answer."
CLIENTS = (
    # LangChain, LlamaIndex, aichat, continue, llm, open-webui, LibreChat
    f"Use the following pieces of context to answer the question at the end. {RULES}\n\n{{d}}\n\nQuestion: {{q}}\nHelpful Answer:",
    "Context information is below.\n---------------------\n{d}\n---------------------\nGiven the context information and not "
    "prior knowledge, answer the query.\nQuery: {q}\nAnswer: ",
    f"Answer the query based on the context while respecting the rules.\n\n<context>\n{{d}}\n</context>\n\n<rules>\n- {RULES}\n"
    "</rules>\n\n<user_query>\n{q}\n</user_query>",
    "{q}\n\n============ PATH: farm.txt ============\n\n{d}\n",
    "```farm.txt (1-90)\n{d}\n```\n{q}",
    f"### Task:\nRespond to the user query using the provided context.\n\n### Guidelines:\n- {RULES}\n- If uncertain, ask the user for "
    'clarification.\n- Respond in the same language as the user\'s query.\n\n<context>\n<source id="1" name="farm.txt">{d}</source>\n'
    "</context>\n\n<user_query>\n{q}\n</user_query>",
    'Attached document(s):\n```md\n# "farm.txt"\n{d}\n```\n\n{q}',
)


def document(text, paragraphs=16):
    """A document of some 7,000 characters whose paragraphs differ."""
    parts = text.split(". ")
    turned = (parts[n % len(parts) :] + parts[: n % len(parts)] for n in range(paragraphs))
    return "\n\n".join(f"{'. '.join(order * 2).rstrip('.')}." for order in turned)


def conversations(question, text, instruction):
    """Requests with several messages or parts."""
    part = {"type": "text"}
    yield [("user", [part | {"text": question}, part | {"text": text}])]
    yield [("user", [part | {"text": text}, part | {"text": question}])]
    yield [("system", f"<context>\n{text}\n</context>\n\n{instruction}"), ("user", question)]
    yield [("system", f"{RULES}\n----------------\n{text}"), ("user", question)]
    yield [("system", f"{question} {instruction}"), ("user", text)]
    yield [("user", f"{text}\n\n{question}"), ("assistant", "?"), ("user", question)]
    yield [("user", question), ("assistant", "OK"), ("user", text)]


def shapes(language):
    """Yield kind (`place` or `whole`), question, and a request's messages."""
    sentences, asked, tasks, instruction, closing = LANGUAGES[language]
    text = document(sentences)
    quoted = "\n".join(f"> {line}" for line in text.split("\n"))
    for kind, question in [*product(["place"], asked), *product(["whole"], tasks)]:
        for template in (*PLAIN, *CLIENTS):
            filled = template.format(d=text, q=question, c=closing, i=instruction, quoted=quoted)
            yield kind, question, [("user", filled)]
        for messages in conversations(question, text, instruction):
            yield kind, question, messages
