"""Documents with something hidden in them, by the rules of RULER (arXiv 2404.06654), and the question that asks for it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specprefill_cli.documents.document import Collection, one_page_document

OBJECTS = ("door code", "locker number", "pass number", "ticket number", "account number")
NAMES = ("Ashcombe", "Bellwater", "Coldbrook", "Deepdale", "Elmstead", "Farrow", "Greyling", "Holloway")
# Sentences of the same kind that do not answer a question among many; variables of a chain, and chains.
OTHER_NEEDLES, CHAIN, CHAINS = 24, 4, 3
# How often common and uncommon words stand in a list, and how many common words there are.
COMMON, UNCOMMON, COMMON_WORDS = 30, 3, 10
CONSONANTS, VOWELS = "bdfgklmnprstv", "aeiou"


@dataclass(frozen=True)
class Hidden:
    """A document, a question about it, and the values that a right answer names, all of them."""

    collection: Collection
    question: str
    values: tuple[str, ...]


def one_needle(text: str, size: int, depth: float, generator: random.Random) -> Hidden:
    """A sentence in a random slice of `size` characters, after the first sentence end from `depth` (0 to 1) on."""
    item, name, value = generator.choice(OBJECTS), generator.choice(NAMES), number(generator)
    document = insert(slice_of(text, size, generator), [(depth, f"The {item} for {name} is {value}.")])
    return hidden(document, f"What is the {item} for {name}?", value)


def needle_among_needles(text: str, size: int, depth: float, generator: random.Random) -> Hidden:
    """The same, with many sentences about other objects and names."""
    pairs = [(item, name) for item in OBJECTS for name in NAMES]
    (item, name), *others = generator.sample(pairs, 1 + OTHER_NEEDLES)
    value = number(generator)
    sentences = [(depth, f"The {item} for {name} is {value}.")]
    sentences += [(generator.random(), f"The {thing} for {whose} is {number(generator)}.") for thing, whose in others]
    return hidden(insert(slice_of(text, size, generator), sentences), f"What is the {item} for {name}?", value)


def variables(text: str, size: int, depth: float, generator: random.Random) -> Hidden:
    """Chains of assignments in order; the question asks for all variables that have a value. depth: unused."""
    names = ["".join(generator.sample("ABCDEFGHJKLMNPQRSTUVWXYZ", 5)) for _ in range(CHAINS * CHAIN)]
    chains, sentences, values = [names[start::CHAINS] for start in range(CHAINS)], [], []
    for chain in chains:
        values.append(number(generator))
        assigned = [values[-1], *(f"VAR {name}" for name in chain)]
        places = sorted(generator.random() for _ in chain)
        sentences += [
            (place, f"VAR {name} = {value}.") for place, name, value in zip(places, chain, assigned, strict=False)
        ]
    question = f"Which {CHAIN} variables are assigned the value {values[0]}, directly or through another variable?"
    return hidden(insert(slice_of(text, size, generator), sentences), question, *chains[0])


def common_words(text: str, size: int, depth: float, generator: random.Random) -> Hidden:
    """A numbered list of invented words, of which a few are common. text, depth: unused."""
    common = [word(generator) for _ in range(COMMON_WORDS)]
    listed, characters = common * COMMON, COMMON_WORDS * COMMON * 12
    while characters < size:
        listed += [word(generator)] * UNCOMMON
        characters += UNCOMMON * 12
    generator.shuffle(listed)
    document = " ".join(f"{place}. {entry}" for place, entry in enumerate(listed, 1))
    return hidden(document, f"What are the {COMMON_WORDS} most common words in the list?", *common)


Task = Callable[[str, int, float, random.Random], Hidden]
TASKS: dict[str, Task] = {
    "needle": one_needle,
    "needles": needle_among_needles,
    "variables": variables,
    "words": common_words,
}


def hidden(document: str, question: str, *values: str) -> Hidden:
    """A document of one page with a question."""
    return Hidden(Collection((one_page_document("hidden", document),)), question, values)


def number(generator: random.Random) -> str:
    """A number of five digits."""
    return str(generator.randint(10_000, 99_999))


def word(generator: random.Random) -> str:
    """An invented word of three syllables."""
    return "".join(generator.choice(CONSONANTS) + generator.choice(VOWELS) for _ in range(3))


def slice_of(text: str, size: int, generator: random.Random) -> str:
    """A random slice of `size` characters."""
    start = generator.randrange(len(text) - size + 1)
    return text[start : start + size]


def insert(prose: str, sentences: Sequence[tuple[float, str]]) -> str:
    """Insert sentences, in the order of their depths (0 to 1), after the first sentence end from there on."""
    text = prose
    for depth, sentence in sorted(sentences, reverse=True):
        end = text.find(". ", int(depth * len(text)))
        place, before = (end + 2, "") if end >= 0 else (len(text), " ")
        prose = f"{prose[:place]}{before}{sentence} {prose[place:]}"
    return prose
