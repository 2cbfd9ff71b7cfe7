"""Draws random values (durations, codes, names ...) for the synthesised facts, from the forms in words.json."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

WORDS = json.loads((resources.files("specprefill_cli.training") / "words.json").read_text(encoding="utf-8"))
LISTS: Mapping[str, Sequence[str]] = WORDS["lists"]
MONTHS: Sequence[str] = WORDS["pools"]["month"]
WEEKDAYS: Sequence[str] = WORDS["pools"]["weekday"]
# By kind of value: forms. A form is a text with slots, or such a text and its weight. `fill` explains slots.
FORMS: Mapping[str, Sequence[Any]] = WORDS["forms"] | {
    value_kind: [
        [f"{{2-{largest}}} {{{value_kind}_units}}", 3],
        [f"{{2-{largest * 10}/10}} {{{value_kind}_units}}", 2],
    ]
    for value_kind, (_, largest) in WORDS["quantities"].items()
}
CHOICES: Mapping[str, Sequence[str]] = {
    **LISTS,
    **WORDS["pools"],
    **{f"{value_kind}_units": units for value_kind, (units, _) in WORDS["quantities"].items()},
}
SLOT = re.compile(r"\{([^{}]+)\}")
# A range of whole numbers, perhaps divided (to one decimal) or multiplied, perhaps with a format.
NUMBER = re.compile(r"(-?\d+)-(\d+)(?:/(\d+)|\*(\d+))?(?::(.+))?")


def draw(value_kind: str, pools: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """A random value: a word of the pool or list of that name, or a form of that kind.

    Raises KeyError for an unknown kind.
    """
    if value_kind in pools or value_kind in CHOICES:
        return str(rng.choice(pools[value_kind] if value_kind in pools else CHOICES[value_kind]))
    forms = [(form, 1) if isinstance(form, str) else form for form in FORMS[value_kind]]
    form = rng.choices([text for text, _ in forms], [weight for _, weight in forms])[0]
    return SLOT.sub(lambda slot: fill(slot.group(1), pools, rng), form)


def fill(slot: str, pools: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """The text of a slot: `2-99:02` a number, `#4` that many digits, `kind` a value, `Kind` a value with a capital."""
    if slot.startswith("#"):
        return "".join(rng.choice("0123456789") for _ in range(int(slot[1:])))
    if number := NUMBER.fullmatch(slot):
        low, high, divisor, factor, form = number.groups()
        drawn = rng.randint(int(low), int(high))
        return f"{drawn / int(divisor):.1f}" if divisor else format(drawn * int(factor or 1), form or "")
    value = draw(slot.lower(), pools, rng)
    return value[:1].upper() + value[1:] if slot != slot.lower() else value
