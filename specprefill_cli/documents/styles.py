"""What a DOCX says by its styles: the level of a heading, the marks of a text, and the numbers of clauses and lists."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from xml.etree.ElementTree import Element

from specprefill_cli.documents.containers import name_of
from specprefill_cli.documents.numbers import write_number

HEADING = re.compile(r"heading ([1-6])", re.IGNORECASE)
# Levels of headings, and the most styles that one is based on: damaged ones may go in circles.
LEVELS, DEEPEST = 6, 20
# Forms of numbers, as HTML names them; others are Arabic.
FORMS = {"lowerLetter": "a", "upperLetter": "A", "lowerRoman": "i", "upperRoman": "I", "decimalZero": "01"}


def attribute(element: Element | None, name: str) -> str:
    """An attribute's value in any namespace; empty if it is missing."""
    attributes = element.attrib if element is not None else {}
    return next((value for key, value in attributes.items() if name_of(key) == name), "")


def by_attribute(parents: Iterable[Element], path: str, name: str) -> dict[str, Element]:
    """Elements by the value of an attribute."""
    return {attribute(element, name): element for parent in parents for element in parent.iterfind(path)}


def nearest(holders: Iterable[Element], path: str) -> str | None:
    """The value of a property of the first element that has it; None: none has."""
    properties = chain.from_iterable(holder.iterfind(path) for holder in holders)
    return next((attribute(element, "val") for element in properties), None)


def heading_level(holders: Iterable[Element]) -> int:
    """The level of a paragraph with its styles as a heading; 0 for other paragraphs."""
    for holder in holders:
        # A style's name, unlike its identifier, does not depend on the program's language.
        if match := HEADING.fullmatch(nearest([holder], "{*}name") or ""):
            return int(match[1])
        if outline := nearest([holder], "{*}pPr/{*}outlineLvl"):
            return int(outline) + 1 if int(outline) < LEVELS else 0
    return 0


class Styles:
    """The styles and the lists of a document. counts: by list, the number of the last item of each level."""

    def __init__(self, styles: Sequence[Element] = (), numbering: Sequence[Element] = ()) -> None:
        self.styles = by_attribute(styles, "{*}style", "styleId")
        self.lists = by_attribute(numbering, "{*}num", "numId")
        self.definitions = by_attribute(numbering, "{*}abstractNum", "abstractNumId")
        self.counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self.restarted: set[tuple[str, int]] = set()

    def holders(self, element: Element, kind: str) -> list[Element]:
        """A paragraph (`p`) or a run (`r`), and the styles that give it properties, nearest first."""
        holders, identifier = [element], nearest([element], f"{{*}}{kind}Pr/{{*}}{kind}Style")
        while identifier in self.styles and len(holders) < DEEPEST:
            holders.append(self.styles[identifier])
            identifier = nearest(holders[-1:], "{*}basedOn")
        return holders

    def item_mark(self, holders: list[Element]) -> str:
        """Count a paragraph with its styles if it is a list's item, and return its mark: `-`, `(a)` or `4.2`; else ""."""
        identifier, level = (nearest(holders, f"{{*}}pPr/{{*}}numPr/{{*}}{name}") for name in ("numId", "ilvl"))
        if identifier in self.lists:
            return self.count(identifier or "", int(level or 0))
        return "-" if identifier != "0" and holders[0].find("{*}pPr/{*}numPr") is not None else ""

    def count(self, identifier: str, depth: int) -> str:
        """Count an item of a list, and return its mark. depth: its level, from 0."""
        name = self.definition(identifier)
        overrides = by_attribute([self.lists[identifier]], "{*}lvlOverride", "ilvl")
        levels = by_attribute([self.definitions[name]] if name in self.definitions else [], "{*}lvl", "ilvl")
        levels |= by_attribute(overrides.values(), "{*}lvl", "ilvl")
        forms = {int(key): nearest([level], "{*}numFmt") or "" for key, level in levels.items()}
        counts = self.counts[name]
        restart = nearest([overrides[str(depth)]], "{*}startOverride") if str(depth) in overrides else None
        if restart is not None and (identifier, depth) not in self.restarted:
            self.restarted.add((identifier, depth))
            counts[depth] = int(restart)
        elif depth in counts:
            counts[depth] += 1
        for key in sorted(forms):
            if key > depth:
                counts.pop(key, None)
            elif key not in counts:
                counts[key] = int(nearest([levels[str(key)]], "{*}start") or 1)
        if forms.get(depth, "bullet") == "bullet":
            return "-"
        level = levels[str(depth)]
        is_legal = level.find("{*}isLgl") is not None

        def written(match: re.Match[str]) -> str:
            part = int(match[1]) - 1
            return write_number(counts.get(part, 1), "" if is_legal else FORMS.get(forms.get(part, ""), ""))

        return re.sub("%([1-9])", written, nearest([level], "{*}lvlText") or "")

    def definition(self, identifier: str) -> str:
        """The definition of a list, by its identifier; some name a style whose list has it."""
        name = nearest([self.lists[identifier]], "{*}abstractNumId") or ""
        style = nearest([self.definitions[name]], "{*}numStyleLink") if name in self.definitions else None
        linked = nearest([self.styles[style]], "{*}pPr/{*}numPr/{*}numId") if style in self.styles else None
        return nearest([self.lists[linked]], "{*}abstractNumId") or "" if linked in self.lists else name
