"""The text of a page as it is collected piece by piece, and that of its open tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress

from specprefill_cli.documents.cleaning import superscript
from specprefill_cli.documents.tables import Cell, filled_rows, span_of, table_lines

NOTHING, SPACE, LINE = range(3)
SEPARATORS = ("", " ", "\n")
# Characters before raised text that decide how it is written.
MARKED_TAIL = 20
Attributes = Mapping[str, str]


@dataclass
class Flow:
    """Text of the page, or of a cell. gap: the widest gap since the last piece; prefix: number of a list item."""

    pieces: list[str] = field(default_factory=list)
    gap: int = NOTHING
    prefix: str = ""

    def separate(self, gap: int) -> None:
        self.gap = max(self.gap, gap)

    def write(self, text: str) -> None:
        self.pieces += [SEPARATORS[self.gap] if self.pieces else "", self.prefix + text]
        self.gap, self.prefix = NOTHING, ""

    def write_apart(self, text: str, gap: int) -> None:
        if text.strip():
            self.separate(gap)
            self.write(text)
            self.separate(gap)

    def write_raised(self, text: str) -> None:
        if self.pieces and self.gap == NOTHING:
            tail = self.pieces[-1][-MARKED_TAIL:]
            self.pieces.append(superscript(tail, text).removeprefix(tail))
        else:
            self.write(superscript("", text))


@dataclass
class Table:
    """An open table. heads: rows that are a header; flow: text of the open cell, with its spans in `span`."""

    rows: list[list[Cell]] = field(default_factory=list)
    heads: list[bool] = field(default_factory=list)
    flow: Flow | None = None
    span: tuple[int, int] = (1, 1)
    has_blocks: bool = False

    def start_row(self) -> None:
        self.end_cell()
        self.rows.append([])
        self.heads.append(True)

    def start_cell(self, is_head: bool, attributes: Attributes) -> None:
        self.end_cell()
        if not self.rows:
            self.start_row()
        self.heads[-1] &= is_head
        columns, rows = (attributes.get(name, "") for name in ("colspan", "rowspan"))
        self.flow, self.span = Flow(), (span_of(columns), span_of(rows))

    def end_cell(self) -> None:
        if self.flow is not None:
            self.rows[-1].append(Cell("".join(self.flow.pieces), *self.span))
            self.flow = None

    def lines(self) -> list[str]:
        """The rows; or the texts of the cells, where the table only arranges parts of the page."""
        self.end_cell()
        filled = [any(cell.text.strip() for cell in row) for row in self.rows]
        rows, heads = list(compress(self.rows, filled)), [*compress(self.heads, filled), False]
        if self.has_blocks or max(map(len, rows), default=0) < 2:
            return [cell.text for row in rows for cell in row if cell.text.strip()]
        return list(table_lines(filled_rows(rows), marked=heads.index(False) % len(rows)))
