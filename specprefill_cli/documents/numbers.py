"""Numbers of a list's items, as a document shows them."""

# From here on, only digits are short.
LARGE = 4_000
ROMAN = (("m", 1000), ("cm", 900), ("d", 500), ("cd", 400), ("c", 100), ("xc", 90), ("l", 50), ("xl", 40), ("x", 10),
         ("ix", 9), ("v", 5), ("iv", 4), ("i", 1))  # fmt: skip


def write_number(number: int, form: str) -> str:
    """A number in letters (`a` or `A`), Roman (`i` or `I`) or otherwise Arabic digits (`01`: at least two)."""
    if form not in ("a", "A", "i", "I") or not 0 < number < LARGE:
        return f"{number:02}" if form == "01" else str(number)
    written = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1) if form in ("a", "A") else ""
    for digits, value in ROMAN if form in ("i", "I") else ():
        written, number = written + digits * (number // value), number % value
    return written.upper() if form.isupper() else written
