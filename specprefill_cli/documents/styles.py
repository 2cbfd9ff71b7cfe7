"""What a DOCX says by its styles: the level of a heading, the marks of a text, and the numbers of clauses and lists."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from xml.etree.ElementTree import Element

from specprefill_cli.documents.cleaning import write_number
from specprefill_cli.documents.containers import name_of

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


def value_of(element: Element, name: str) -> str:
    """The value of the element with this name inside another; empty if it is missing."""
    return attribute(element.find(f"{{*}}{name}"), "val")


def own_properties(element: Element) -> dict[str, str]:
    """The properties that a paragraph, a run or a style has itself, by name; empty values for those that are only there."""
    holders = [holder for holder in element if name_of(holder.tag) in ("pPr", "rPr")]
    entries = chain(*holders, *(holder.iterfind("{*}numPr/*") for holder in holders))
    return {name_of(entry.tag): attribute(entry, "val") for entry in entries}


def heading_level(properties: Mapping[str, str]) -> int:
    """The level of a paragraph as a heading; 0 for other paragraphs."""
    outline = int(properties.get("outlineLvl") or LEVELS)
    return outline + 1 if outline < LEVELS else 0


class Styles:
    """The styles and the lists of a document.

    properties: of each style, with those of the styles that it is based on
    counts: by list, the number of the last item of each level
    """

    def __init__(self, styles: Sequence[Element] = (), numbering: Sequence[Element] = ()) -> None:
        elements = by_attribute(styles, "{*}style", "styleId")
        self.properties: dict[str, dict[str, str]] = {}
        for identifier, style in elements.items():
            based_on = [style]
            while (name := value_of(based_on[-1], "basedOn")) in elements and len(based_on) < DEEPEST:
                based_on.append(elements[name])
            self.properties[identifier] = {}
            for element in reversed(based_on):
                self.properties[identifier] |= own_properties(element)
                # A style's name, unlike its identifier, does not depend on the program's language.
                if match := HEADING.fullmatch(value_of(element, "name")):
                    self.properties[identifier]["outlineLvl"] = str(int(match[1]) - 1)
        self.lists = by_attribute(numbering, "{*}num", "numId")
        self.definitions = by_attribute(numbering, "{*}abstractNum", "abstractNumId")
        self.counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self.notes: dict[tuple[str, str], int] = {}
        self.restarted: set[tuple[str, int]] = set()

    def note_mark(self, element: Element) -> str:
        """The mark of a foot- or endnote, or of a reference to it, by the order of the references; empty without one."""
        kind, identifier = element.tag.rpartition("}")[2].removesuffix("Reference"), attribute(element, "id")
        count = sum(name == kind for name, _ in self.notes)
        number = self.notes.setdefault((kind, identifier), 0 if element.tag.endswith(kind) else count + 1)
        return f"[{write_number(number, 'i' if kind == 'endnote' else '')}]" * (number > 0)

    def of_style(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        """The properties of the style that an element's own properties name."""
        return self.properties.get(properties.get("pStyle") or properties.get("rStyle") or "", {})

    def item_mark(self, properties: Mapping[str, str]) -> str:
        """Count a paragraph that is an item of a list, and return its mark: `-`, `(a)` or `4.2`; "" for others."""
        identifier = properties.get("numId", "")
        if identifier in self.lists:
            return self.count(identifier, properties.get("ilvl", ""), properties.get("pStyle"))
        # A style's list is left by the number 0.
        return "-" if identifier.strip("0") else ""

    def count(self, identifier: str, named_depth: str, style: str | None) -> str:
        """Count an item of a list, and return its mark. named_depth: its level, from 0; "": that of its style, or 0."""
        name = self.definition(identifier)
        overrides = by_attribute([self.lists[identifier]], "{*}lvlOverride", "ilvl")
        levels = by_attribute(filter(None, [self.definitions.get(name)]), "{*}lvl", "ilvl")
        levels |= by_attribute(overrides.values(), "{*}lvl", "ilvl")
        of_style = (key for key, level in levels.items() if style and value_of(level, "pStyle") == style)
        depth = int(named_depth or next(of_style, 0))
        forms, counts = {int(key): value_of(level, "numFmt") for key, level in levels.items()}, self.counts[name]
        restart = value_of(overrides[str(depth)], "startOverride") if str(depth) in overrides else ""
        if restart and (identifier, depth) not in self.restarted:
            self.restarted.add((identifier, depth))
            counts[depth] = int(restart)
        elif depth in counts:
            counts[depth] += 1
        for key in forms:
            if key <= depth:
                counts.setdefault(key, int(value_of(levels[str(key)], "start") or 1))
            elif depth < int(value_of(levels[str(key)], "lvlRestart") or key):
                counts.pop(key, None)
        if forms.get(depth, "bullet") == "bullet":
            return "-"
        level = levels[str(depth)]
        is_legal = level.find("{*}isLgl") is not None

        def written(match: re.Match[str]) -> str:
            part = int(match[1]) - 1
            return write_number(counts.get(part, 1), "" if is_legal else FORMS.get(forms.get(part, ""), ""))

        return re.sub("%([1-9])", written, value_of(level, "lvlText"))

    def definition(self, identifier: str) -> str:
        """The definition of a list, by its identifier; some name a style whose list has it."""
        name = value_of(self.lists[identifier], "abstractNumId")
        style = value_of(self.definitions[name], "numStyleLink") if name in self.definitions else ""
        linked = self.properties.get(style, {}).get("numId", "")
        return value_of(self.lists[linked], "abstractNumId") if linked in self.lists else name
