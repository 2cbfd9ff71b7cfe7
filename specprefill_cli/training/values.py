"""Random values of named kinds (durations, codes, names ...) for the synthesised facts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources

WORDS = json.loads((resources.files("specprefill_cli.training") / "words.json").read_text(encoding="utf-8"))
LISTS: Mapping[str, Sequence[str]] = WORDS["lists"]
MONTHS: Sequence[str] = WORDS["pools"]["month"]
WEEKDAYS: Sequence[str] = WORDS["pools"]["weekday"]


def digits(rng: random.Random, count: int) -> str:
    """`count` random digits."""
    return "".join(rng.choice("0123456789") for _ in range(count))


def place_name(rng: random.Random) -> str:
    middle = rng.choice(LISTS["name_starts"]) + (rng.choice(LISTS["name_middles"]) if rng.random() < 0.5 else "")
    name = (middle + rng.choice(LISTS["name_ends"])).capitalize()
    return name if rng.random() < 0.8 else f"{rng.choice(['North', 'Port', 'Upper', 'New', 'Saint', 'Old'])} {name}"


def invented(rng: random.Random) -> str:
    """An invented brand name."""
    return "".join(rng.choice(LISTS[part]) for part in ("name_starts", "name_middles", "invented_ends")).capitalize()


def person(rng: random.Random) -> str:
    last = rng.choice(LISTS["last_names"]) if rng.random() < 0.7 else place_name(rng).split()[-1]
    name = f"{rng.choice(LISTS['first_names'])} {last}"
    return f"{rng.choice(['Dr', 'Captain', 'Professor', 'Ms', 'Mr'])} {name}" if rng.random() < 0.15 else name


def company(rng: random.Random) -> str:
    kind = rng.choice(LISTS["company_kinds"])
    return f"{rng.choice([invented, place_name])(rng)} {kind}"


def code(rng: random.Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    number = digits(rng, rng.randint(2, 5))
    form = rng.random()
    if form < 0.6:
        return f"{letters}-{number}"
    if form < 0.85:
        return f"{letters}{number}"
    return f"{number}-{letters}-{rng.randint(1, 99)}"


def date(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 28), rng.choice(MONTHS), rng.randint(1790, 2031)
    return rng.choice([f"{day} {month} {year}", f"{month} {day}, {year}", f"{day} {month}"])


def clock(rng: random.Random) -> str:
    minute = rng.choice([0, 0, 15, 30, 45, rng.randint(0, 59)])
    if rng.random() < 0.5:
        return f"{rng.randint(0, 23):02d}:{minute:02d}"
    hour = rng.randint(1, 12)
    half = rng.choice(["a.m.", "p.m."])
    return f"{hour} {half}" if minute == 0 and rng.random() < 0.5 else f"{hour}:{minute:02d} {half}"


def duration(rng: random.Random) -> str:
    unit = rng.choice(LISTS["duration_units"])
    number = rng.choice(LISTS["number_words"]) if rng.random() < 0.5 else str(rng.randint(2, 180))
    return f"{number} {unit}"


def millions(rng: random.Random) -> str:
    return f"{rng.choice('$€£')}{rng.randint(1, 950) / 10:.1f} million"


def money(rng: random.Random) -> str:
    ranges = [rng.randint(2, 99), rng.randint(100, 999), rng.randint(1, 99) * 50, rng.randint(1_000, 90_000)]
    amount = rng.choice(ranges)
    if rng.random() < 0.2:
        return millions(rng)
    mark = rng.choice(["$", "€", "£", "EUR ", "USD ", "CHF "])
    cents = f".{rng.randint(0, 99):02d}" if amount < 100 and rng.random() < 0.4 else ""
    if rng.random() < 0.85:
        return f"{mark}{amount:,}{cents}"
    return f"{amount:,} {rng.choice(['euros', 'dollars', 'crowns'])}"


def quantity(rng: random.Random, units: Sequence[str], largest: int) -> str:
    number = str(rng.randint(2, largest)) if rng.random() < 0.6 else f"{rng.randint(2, largest * 10) / 10:.1f}"
    return f"{number} {rng.choice(units)}"


def percent(rng: random.Random) -> str:
    number = str(rng.randint(1, 98)) if rng.random() < 0.6 else f"{rng.randint(1, 999) / 10:.1f}"
    return f"{number}{rng.choice([' percent', ' per cent', '%', '%'])}"


def street(rng: random.Random) -> str:
    kinds = ["Street", "Road", "Lane", "Avenue", "Square", "Quay"]
    return f"{rng.randint(1, 240)} {place_name(rng)} {rng.choice(kinds)}"


def file_path(rng: random.Random) -> str:
    folder, name = (invented(rng).lower() for _ in range(2))
    root = rng.choice(["/etc/", "/var/lib/", "/opt/", "C:\\"])
    return f"{root}{folder}/{name}.{rng.choice(['conf', 'log', 'db'])}"


def error(rng: random.Random) -> str:
    """The name of a fault as a display shows it; similar names stand in the same list."""
    word = rng.choice(LISTS["fault_words"])
    letters = rng.choice(LISTS["fault_letters"])
    return f"{word} {letters}{rng.randint(1, 99):02d}" if rng.random() < 0.8 else f"{word} {rng.randint(100, 1_200)}"


def frequency(rng: random.Random) -> str:
    form = rng.random()
    number = rng.choice(LISTS["number_words"]) if rng.random() < 0.6 else str(rng.randint(2, 90))
    if form < 0.3:
        return rng.choice(LISTS["occasions"])
    if form < 0.65:
        return f"every {number} {rng.choice(['days', 'weeks', 'months', 'years', 'years', 'hours'])}"
    if form < 0.75:
        return f"every {rng.randint(1, 90) * 50:,} {rng.choice(['operating hours', 'kilometres', 'cycles', 'pages'])}"
    day = rng.choice([*WEEKDAYS, "working day"])
    if form < 0.9:
        month = rng.choice(["each month", "every month", "the month", "each quarter"])
        return f"{rng.choice(['', 'on '])}the {rng.choice(LISTS['ordinals'])} {day} of {month}"
    return f"every {rng.choice(['', 'second ', 'other '])}{rng.choice(WEEKDAYS)}"


def rating(rng: random.Random) -> str:
    forms = [f"IP{rng.randint(1, 6)}{rng.randint(0, 9)}", f"IP {rng.randint(1, 6)}{rng.randint(0, 9)}"]
    forms += [f"IK{rng.randint(1, 10):02d}", f"NEMA {rng.randint(1, 13)}", f"class {rng.choice('ABCDEF')}"]
    return rng.choice(forms)


def phone(rng: random.Random) -> str:
    return rng.choice([f"extension {rng.randint(100, 9999)}", f"{rng.randint(100, 999)} {rng.randint(1000, 9999)}"])


def email(rng: random.Random) -> str:
    return f"{invented(rng).lower()}@{place_name(rng).split()[-1].lower()}.{rng.choice(['org', 'com', 'net'])}"


def room(rng: random.Random) -> str:
    if rng.random() < 0.4:
        return f"{rng.choice(['Room', 'Hall', 'Office', 'Bay', 'Gate'])} {rng.choice('ABCDE')}{rng.randint(1, 90)}"
    return f"Room {rng.randint(1, 480)}"


def product(rng: random.Random) -> str:
    return f"the {invented(rng)} {rng.choice([str(rng.randint(2, 900)), code(rng), 'Pro', 'Mini'])}"


GENERATORS: Mapping[str, Callable[[random.Random], str]] = {
    "duration": duration,
    "date": date,
    "year": lambda rng: str(rng.randint(1650, 2035)),
    "time": clock,
    "time_range": lambda rng: f"{clock(rng)} {rng.choice(['to', 'until', 'and'])} {clock(rng)}",
    "money": money,
    "millions": millions,
    "percent": percent,
    "integer": lambda rng: str(rng.randint(2, 999)) if rng.random() < 0.7 else rng.choice(LISTS["number_words"]),
    "large_number": lambda rng: f"{rng.randint(1_000, rng.choice([9_999, 99_999, 2_000_000])):,}",
    "temperature": lambda rng: f"{rng.randint(-30, 260)} {rng.choice(['degrees Celsius', 'degrees', '°C'])}",
    "code": code,
    "error": error,
    "frequency": frequency,
    "rating": rating,
    "pin": lambda rng: digits(rng, rng.choice([4, 4, 5, 6])),
    "channel": lambda rng: f"channel {rng.randint(1, 88)}",
    "version": lambda rng: ".".join(str(rng.randint(0, 20)) for _ in range(rng.choice([2, 3]))),
    "phone": phone,
    "email": email,
    "person": person,
    "city": place_name,
    "company": company,
    "street_address": street,
    "room": room,
    "file_path": file_path,
    "port_number": lambda rng: str(rng.randint(80, 65_000)),
    "product": product,
    "department": lambda rng: (
        f"the {rng.choice(LISTS['departments'])}{rng.choice([' department', ' office', ' team'])}"
    ),
    "machine_part": lambda rng: f"the {rng.choice(LISTS['part_positions'])} {rng.choice(LISTS['parts'])}",
    "project": lambda rng: f"Project {invented(rng)}",
    **{kind: partial(quantity, units=units, largest=largest) for kind, (units, largest) in WORDS["quantities"].items()},
}


def draw(kind: str, pools: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """A random value: from a pool of words of that name, or from the generator of that kind.

    Raises KeyError for a kind that is neither.
    """
    return rng.choice(pools[kind]) if kind in pools else GENERATORS[kind](rng)
