"""Random values of named types (durations, codes, names ...) for the synthesised facts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "fifteen", "twenty")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST_NAMES = (
    "Marta Oskar Ines Tobias Amara Henrik Priya Lucien Greta Samuel Noor Felix Ana Dmitri Yuki Carlos Beatrice Omar "
    "Ingrid Paolo Ruth Kwame Helen Viktor Leila Arthur Sofia Bruno Mei Daniel Clara Hassan Elise Jonas Rosa Peter "
    "Nadia Walter Irene Thomas Maya George Alma Robert Julia Edwin Tara Martin Freya Simon Joan Rafael Edith Hugo"
).split()
LAST_NAMES = (
    "Lindqvist Okafor Marchetti Haldane Voss Petrov Nakamura Ferreira Sandoval Whitlock Brandt Osei Kowalski Dupont "
    "Ahmadi Larsen Moreau Castillo Bergstrom Iyer Novak Fairbairn Mensah Rossi Keller Tanaka Silva Hartley Jansen "
    "Abbott Quinn Delgado Weber Stone Farrow Mbeki Holm Carver Reyes Winter Hale Sokolov Blake Nilsen Park Garcia"
).split()
COUNTRIES = (
    "Norway Chile Ghana Portugal Canada Vietnam Estonia Kenya Peru Austria Japan Ireland Morocco Poland Uruguay "
    "Iceland Thailand Croatia Belgium Namibia Finland Mexico Greece Oman Denmark Bolivia Latvia Egypt Spain Nepal"
).split()
COLORS = (
    "red", "green", "blue", "yellow", "orange", "white", "black", "grey", "purple", "amber",
    "dark green", "light blue", "silver", "brown", "pink", "turquoise",
)  # fmt: skip
MATERIALS = (
    "stainless steel", "brass", "cast iron", "aluminium", "bronze", "oak", "copper", "titanium", "ceramic", "nylon",
    "hardened glass", "galvanised steel", "limestone", "polycarbonate", "silicone rubber", "carbon fibre",
)  # fmt: skip
STARTS = (
    "al bel bran cor dal el fen gar hol ist jor kel lan mar nor ost pel quen ros sal tor ul ven wes yar zan".split()
)
MIDDLES = "a e i o u an er in or ar en il ov und ath".split()
ENDS = (
    "berg burg by dale den field ford gate ham haven holm land ley mark mere mouth port stad ton vik wick worth".split()
)


def place_name(rng: random.Random) -> str:
    name = rng.choice(STARTS) + (rng.choice(MIDDLES) if rng.random() < 0.5 else "") + rng.choice(ENDS)
    name = name.capitalize()
    return name if rng.random() < 0.8 else f"{rng.choice(['North', 'Port', 'Upper', 'New', 'Saint', 'Old'])} {name}"


def invented(rng: random.Random) -> str:
    word = (
        rng.choice(STARTS) + rng.choice(MIDDLES) + rng.choice("tra vo lix mon ra dex nix sol tec nova ria lo".split())
    )
    return word.capitalize()


def person(rng: random.Random) -> str:
    last = rng.choice(LAST_NAMES) if rng.random() < 0.7 else place_name(rng).split()[-1]
    name = f"{rng.choice(FIRST_NAMES)} {last}"
    return f"{rng.choice(['Dr', 'Captain', 'Professor', 'Ms', 'Mr'])} {name}" if rng.random() < 0.15 else name


def company(rng: random.Random) -> str:
    kind = rng.choice("Logistics Foods Instruments Shipping Systems Energy Textiles Group Partners Ltd Works".split())
    return f"{rng.choice([invented, place_name])(rng)} {kind}"


def code(rng: random.Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 5)))
    shape = rng.random()
    if shape < 0.6:
        return f"{letters}-{digits}"
    if shape < 0.85:
        return f"{letters}{digits}"
    return f"{digits}-{letters}-{rng.randint(1, 99)}"


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
    unit = rng.choice([*"minutes hours days weeks months years".split(), "working days", "calendar days", "seconds"])
    number = rng.choice(NUMBER_WORDS) if rng.random() < 0.5 else str(rng.randint(2, 180))
    return f"{number} {unit}"


def millions(rng: random.Random) -> str:
    return f"{rng.choice('$€£')}{rng.randint(1, 950) / 10:.1f} million"


def money(rng: random.Random) -> str:
    amount = rng.choice(
        [rng.randint(2, 99), rng.randint(100, 999), rng.randint(1, 99) * 50, rng.randint(1_000, 90_000)]
    )
    if rng.random() < 0.2:
        return millions(rng)
    mark = rng.choice(["$", "€", "£", "EUR ", "USD ", "CHF "])
    cents = f".{rng.randint(0, 99):02d}" if amount < 100 and rng.random() < 0.4 else ""
    return (
        f"{mark}{amount:,}{cents}"
        if rng.random() < 0.85
        else f"{amount:,} {rng.choice(['euros', 'dollars', 'crowns'])}"
    )


def quantity(rng: random.Random, units: Sequence[str], largest: int) -> str:
    number = str(rng.randint(2, largest)) if rng.random() < 0.6 else f"{rng.randint(2, largest * 10) / 10:.1f}"
    return f"{number} {rng.choice(units)}"


def percent(rng: random.Random) -> str:
    number = str(rng.randint(1, 98)) if rng.random() < 0.6 else f"{rng.randint(1, 999) / 10:.1f}"
    return f"{number}{rng.choice([' percent', ' per cent', '%', '%'])}"


def street(rng: random.Random) -> str:
    return (
        f"{rng.randint(1, 240)} {place_name(rng)} {rng.choice(['Street', 'Road', 'Lane', 'Avenue', 'Square', 'Quay'])}"
    )


def file_path(rng: random.Random) -> str:
    names = [invented(rng).lower() for _ in range(2)]
    return (
        rng.choice(["/etc/", "/var/lib/", "/opt/", "C:\\"])
        + f"{names[0]}/{names[1]}.{rng.choice(['conf', 'log', 'db'])}"
    )


def error(rng: random.Random) -> str:
    """The name of a fault as a display shows it; near relatives of it stand in the same list."""
    word = rng.choice(
        ["error", "error", "fault", "alarm", "code", "code", "message", "warning", "fault code", "error code"]
    )
    letters = rng.choice(["", "E", "E", "F", "A", "H", "P", "U", "ER-", "LO-", "C"])
    return f"{word} {letters}{rng.randint(1, 99):02d}" if rng.random() < 0.8 else f"{word} {rng.randint(100, 1_200)}"


ORDINALS = ("first", "second", "third", "fourth", "last")
OCCASIONS = (
    "weekly", "monthly", "daily", "hourly", "once a year", "twice a year", "once a quarter", "every other year",
    "three times a day", "at the start of each shift", "after every use", "before each journey", "every second shift",
    "in March and September", "every spring", "once per season", "each autumn before the frost", "at least twice a week",
)  # fmt: skip


def frequency(rng: random.Random) -> str:
    shape = rng.random()
    number = rng.choice(NUMBER_WORDS) if rng.random() < 0.6 else str(rng.randint(2, 90))
    if shape < 0.3:
        return rng.choice(OCCASIONS)
    if shape < 0.65:
        return f"every {number} {rng.choice(['days', 'weeks', 'months', 'years', 'years', 'hours'])}"
    if shape < 0.75:
        return f"every {rng.randint(1, 90) * 50:,} {rng.choice(['operating hours', 'kilometres', 'cycles', 'pages'])}"
    day = rng.choice([*WEEKDAYS, "working day"])
    if shape < 0.9:
        month = rng.choice(["each month", "every month", "the month", "each quarter"])
        return f"{rng.choice(['', 'on '])}the {rng.choice(ORDINALS)} {day} of {month}"
    return f"every {rng.choice(['', 'second ', 'other '])}{rng.choice(WEEKDAYS)}"


def rating(rng: random.Random) -> str:
    return rng.choice([f"IP{rng.randint(1, 6)}{rng.randint(0, 9)}", f"IP {rng.randint(1, 6)}{rng.randint(0, 9)}",
                       f"IK{rng.randint(1, 10):02d}", f"NEMA {rng.randint(1, 13)}", f"class {rng.choice('ABCDEF')}"])  # fmt: skip


def thousands(rng: random.Random) -> str:
    return f"{rng.randint(1_000, rng.choice([9_999, 99_999, 2_000_000])):,}"


GENERATORS: Mapping[str, Callable[[random.Random], str]] = {
    "duration": duration,
    "date": date,
    "year": lambda rng: str(rng.randint(1650, 2035)),
    "month": lambda rng: rng.choice(MONTHS),
    "weekday": lambda rng: rng.choice(WEEKDAYS),
    "time": clock,
    "time_range": lambda rng: f"{clock(rng)} {rng.choice(['to', 'until', 'and'])} {clock(rng)}",
    "money": money,
    "millions": millions,
    "percent": percent,
    "integer": lambda rng: str(rng.randint(2, 999)) if rng.random() < 0.7 else rng.choice(NUMBER_WORDS),
    "large_number": thousands,
    "length": lambda rng: quantity(rng, ["mm", "cm", "metres", "m", "km", "kilometres", "inches"], 90),
    "weight": lambda rng: quantity(rng, ["kg", "g", "grams", "tonnes", "kilograms", "mg"], 500),
    "temperature": lambda rng: f"{rng.randint(-30, 260)} {rng.choice(['degrees Celsius', 'degrees', '°C'])}",
    "voltage": lambda rng: quantity(rng, ["V", "volts", "kV"], 480),
    "pressure": lambda rng: quantity(rng, ["bar", "kPa", "psi", "MPa"], 120),
    "torque": lambda rng: quantity(rng, ["Nm", "newton metres"], 220),
    "volume": lambda rng: quantity(rng, ["litres", "ml", "cubic metres", "l"], 800),
    "power": lambda rng: quantity(rng, ["W", "kW", "watts", "MW"], 900),
    "speed": lambda rng: quantity(rng, ["km/h", "knots", "metres per second", "rpm"], 160),
    "code": code,
    "error": error,
    "frequency": frequency,
    "rating": rating,
    "pin": lambda rng: "".join(rng.choice("0123456789") for _ in range(rng.choice([4, 4, 5, 6]))),
    "channel": lambda rng: f"channel {rng.randint(1, 88)}",
    "version": lambda rng: ".".join(str(rng.randint(0, 20)) for _ in range(rng.choice([2, 3]))),
    "phone": lambda rng: rng.choice(
        [f"extension {rng.randint(100, 9999)}", f"{rng.randint(100, 999)} {rng.randint(1000, 9999)}"]
    ),
    "email": lambda rng: (
        f"{invented(rng).lower()}@{place_name(rng).split()[-1].lower()}.{rng.choice(['org', 'com', 'net'])}"
    ),
    "person": person,
    "city": place_name,
    "country": lambda rng: rng.choice(COUNTRIES),
    "company": company,
    "street_address": street,
    "room": lambda rng: (
        f"{rng.choice(['Room', 'Hall', 'Office', 'Bay', 'Gate'])} {rng.choice('ABCDE')}{rng.randint(1, 90)}"
        if rng.random() < 0.4
        else f"Room {rng.randint(1, 480)}"
    ),
    "file_path": file_path,
    "port_number": lambda rng: str(rng.randint(80, 65_000)),
    "color": lambda rng: rng.choice(COLORS),
    "material": lambda rng: rng.choice(MATERIALS),
    "product": lambda rng: f"the {invented(rng)} {rng.choice([str(rng.randint(2, 900)), code(rng), 'Pro', 'Mini'])}",
    "department": lambda rng: (
        "the "
        + rng.choice("finance purchasing quality research sales legal training security transport planning".split())
        + rng.choice([" department", " office", " team"])
    ),
    "machine_part": lambda rng: (
        "the "
        + rng.choice("inlet outlet main rear front left upper auxiliary primary spare".split())
        + " "
        + rng.choice("valve pump bearing filter gasket motor sensor drive belt fan relay shaft panel hose".split())
    ),
    "project": lambda rng: f"Project {invented(rng)}",
}


def draw(kind: str, pools: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """A random value of a pool of the facts file, or of a generated type.

    Raises KeyError for a kind that is neither.
    """
    return rng.choice(pools[kind]) if kind in pools else GENERATORS[kind](rng)
