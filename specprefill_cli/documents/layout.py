"""The text of a PDF page in reading order: columns one after the other, raised numbers marked, notes in their places."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile, zip_longest
from statistics import median

from specprefill_cli.documents.cleaning import superscript
from specprefill_cli.documents.headers import is_number
from specprefill_cli.documents.pieces import (
    FAR,
    FEWEST_LINES,
    LOWER_START,
    MARK_GAP,
    SAME_LINE,
    Box,
    Character,
    Grid,
    Note,
    Piece,
    block_lines,
    goes_on,
    grouped,
    is_title,
    rejoined,
)
from specprefill_cli.documents.tables import fill_merged, table_lines

# In heights of a line: the gap between columns, and between their baselines.
COLUMN_GAP, LINE_OFFSET = 0.8, 0.6
# Height of a mark in heights of its line, and how far it is raised; a smaller text beside a larger one begins with an initial.
LEAST_MARK, MARK_HEIGHT, MARK_RAISE, MOST_RAISE = 0.5, 0.85, 0.15, 0.6
# What a form shows for a box.
TICKS = ("[x]", "[ ]")
# Columns of prose: lines of so many characters, of which so many go on with a small letter.
SHORTEST_LINE, FLOWING = 20, 0.25
# More pieces than this share of the characters: rotated or scattered text, whose order PDFium knows better.
MOST_PIECES = 0.25
# Characters of a cell: where one is longer, the lines of a table only frame whole paragraphs.
LONGEST_CELL = 500


def grid_lines(grid: Grid, pieces: Sequence[Piece]) -> Iterable[str]:
    """The rows of the table from its pieces; the lines of text where those of the table only frame whole paragraphs."""
    cells = [[list[Piece]() for _ in grid.columns[1:]] for _ in grid.rows[1:]]
    for piece in pieces:
        row, column = grid.cell(piece)
        cells[-row][column - 1].append(piece)
    texts = [list(cell_texts(row)) for row in cells]
    if max(len(text) for row in texts for text in row) > LONGEST_CELL:
        return [lines_of(pieces)]
    merged = fill_merged(zip(*fill_merged(texts, grid.verticals), strict=True), grid.horizontals)
    rows = (zip_longest(*(text.split("\n") for text in row), fillvalue="") for row in zip(*merged, strict=True))
    return table_lines(list(row) for row in chain.from_iterable(rows) if any(row))


def cell_texts(row: Sequence[Sequence[Piece]]) -> Iterator[str]:
    """Yield the texts of a row's cells; where numbers stand below each other without lines between, in a line for each."""
    stacks = [cell for cell in row if len(cell) > 1 and all(is_number(piece.text) for piece in cell)]
    numbers = sorted(chain(*stacks), key=lambda piece: -piece.base)
    levels = grouped(numbers, lambda level, piece: level[0].is_level(piece.base))
    depths = [-level[0].base for level in levels] if len(numbers) >= FEWEST_LINES else [0.0]
    for cell in row:
        placed = [(bisect_right(depths[1:], SAME_LINE * piece.height - piece.base), piece) for piece in cell]
        # A single text between the lines belongs to all of them.
        is_shared = len(cell) == 1 and not cell[0].is_level(-depths[placed[0][0]])
        lines = [[piece.text for place, piece in placed if is_shared or place == line] for line in range(len(depths))]
        yield "\n".join(map(" ".join, lines)) if cell else ""


def pieces_of(characters: Iterable[Character], grids: Sequence[Grid]) -> list[Piece]:
    """The pieces of a page in drawing order, raised marks written by `superscript`; lines of tables part pieces."""
    pieces: list[Piece] = []
    mark = blank = ""
    for character, box, base in characters:
        if character.isspace():
            blank = " "
            continue
        height = box.top - box.bottom
        last = pieces[-1] if pieces else Piece("", 0, 0, base, 0)
        gap = box.left - last.right
        if is_raised(last, base, height) and abs(gap) < MARK_GAP * last.height:
            mark, last.right, blank = mark + blank + character, box.right, ""
            continue
        if mark:
            last.text, mark = superscript(last.text, mark), ""
        if is_raised(last, 2 * last.base - base, height) and -last.height < gap < MARK_GAP * last.height:
            # A lowered letter, as in formulas.
            last.text, last.right, blank = last.text + blank + character, box.right, ""
            continue
        is_mark = len(last.text) < 4 and is_raised(Piece("", 0, 0, base, height), last.base, last.height)
        if is_mark and 0 <= gap < height:
            # At the beginning of a note.
            last.text, last.base, last.height, blank = superscript("", last.text), base, height, " "
        is_near = last.text and last.is_level(base) and -last.height < gap < COLUMN_GAP * last.height
        if is_near and not any(grid.parts(last.right, box.left, base, height) for grid in grids):
            last.text += blank + character
            last.right = box.right
        else:
            pieces.append(Piece(character, box.left, box.right, base, height))
        blank = ""
    if mark:
        pieces[-1].text = superscript(pieces[-1].text, mark)
    return pieces


def is_raised(line: Piece, base: float, height: float) -> bool:
    """Whether text on a baseline is small and raised beside a line."""
    is_small = LEAST_MARK * line.height <= height < MARK_HEIGHT * line.height
    return is_small and MARK_RAISE * line.height < base - line.base < MOST_RAISE * line.height


def ordered_text(characters: Sequence[Character], notes: Iterable[Note], grids: Sequence[Grid]) -> str | None:
    """The lines of a page in reading order, with its notes; None where the text is too scattered to tell."""
    pieces = pieces_of(characters, grids)
    if len(pieces) > MOST_PIECES * len(characters) + FEWEST_LINES:
        return None
    labels = list(pieces)
    for note in notes:
        place_note(pieces, labels, note, grids)
    for grid in grids:
        if held := [piece for piece in pieces if grid.holds(piece)]:
            base, lines = max(piece.base for piece in held), grid_lines(grid, held)
            table = Piece("\n".join(lines), grid.columns[0], grid.columns[-1], base, held[0].height)
            place = pieces.index(held[0])
            pieces = [*pieces[:place], table, *(piece for piece in pieces[place:] if not grid.holds(piece))]
    return lines_of(pieces)


def lines_of(pieces: Iterable[Piece]) -> str:
    """The lines of a page, from its pieces in drawing order."""
    rows = in_columns(rejoined(grouped(pieces, lambda row, piece: is_beside(row[-1], piece))))
    blocks = grouped(rows, lambda held, row: goes_on(held, row) or is_title(held, row))
    return "\n".join(chain.from_iterable(map(block_lines, blocks)))


def is_beside(left: Piece, right: Piece) -> bool:
    """Whether a piece goes on with the line of another; lines of columns beside each other may be up to half a line apart."""
    gap = right.left - left.right
    near = abs(right.base - left.base) < LINE_OFFSET * min(left.height, right.height)
    return gap > COLUMN_GAP * left.height if near and not left.is_level(right.base) else near and gap > -right.height


def place_note(pieces: list[Piece], labels: Iterable[Piece], note: Note, grids: Sequence[Grid]) -> None:
    """Put a note beside its label, a field also below it; else into its cell of a table, or in a line with its name."""
    text, name, box = note
    field = Piece(text, box.left, box.right, (box.bottom + box.top) / 2, box.top - box.bottom)
    grid = next((grid for grid in grids if grid.holds(field)), None)
    if grid is not None:
        labels = [piece for piece in labels if not grid.holds(piece) or grid.cell(piece) == grid.cell(field)]
    before, after, above = labels_around(labels, box)
    room, gap = box.left - before.right if before else float("inf"), after.left - box.right if after else 0.0
    if after and (gap < room if text in TICKS else before is None and gap < FAR * after.height):
        after.text, after.left = f"{text} {after.text}", box.left
    elif before:
        before.text, before.right = f"{before.text} {text}", box.right
    elif above and name:
        above.text = f"{above.text} {text}"
    else:
        if grid is None:
            field.base, field.text = box.bottom, f"{name}: {text}" if name else text
        below = (index for index, piece in enumerate(pieces) if piece.base < box.bottom)
        pieces.insert(next(below, len(pieces)), field)


def labels_around(pieces: Iterable[Piece], box: Box) -> Sequence[Piece | None]:
    """The nearest pieces that begin before and after a box on its line, and right above it where it begins."""
    labels: list[Piece | None] = [None, None, None]
    middle = (box.bottom + box.top) / 2
    for piece in sorted(pieces, key=lambda piece: (-piece.base, piece.left)):
        from_left = piece.left - box.left
        if box.bottom - piece.height / 2 <= piece.base <= box.top:
            if from_left < 0:
                labels[0] = piece
            elif piece.left >= box.right - piece.height:
                labels[1] = labels[1] or piece
        if middle < piece.base < box.top + FAR * piece.height and -piece.height < from_left < box.right - box.left:
            labels[2] = piece
    return labels


def in_columns(rows: list[list[Piece]]) -> list[list[Piece]]:
    """Rows of pieces in reading order: where rows cross columns of prose, each column follows the one to its left."""
    ordered, block = list[list[Piece]](), list[list[Piece]]()
    low, high = float("-inf"), float("inf")
    for row in [*rows, []]:
        left, right = (row[0].right, row[1].left) if len(row) > 1 else (low, high)
        if block and len(row) == 1:
            left, right = (row[0].right, high) if row[0].left < low else (low, row[0].left)
        if row and max(low, left) < min(high, right) and (block or len(row) > 1):
            block.append(row)
            low, high = max(low, left), min(high, right)
            continue
        ordered += split_columns(block, high)
        ordered += [row] if len(row) == 1 else []
        block, low, high = ([row], row[0].right, row[1].left) if len(row) > 1 else ([], float("-inf"), float("inf"))
    return ordered


def split_columns(block: list[list[Piece]], gutter: float) -> list[list[Piece]]:
    """The left column of a block of rows, then the others, if all are prose; else the block. A table below stays in rows."""
    texts = [[piece.text for piece in row] for row in block]
    # Cells are short, or one of them is a number.
    are_cells = [len(row) > 1 and (any(map(is_number, row)) or max(map(len, row)) < SHORTEST_LINE) for row in texts]
    end = len(block) - len(list(takewhile(bool, reversed(are_cells))))
    left = [[piece for piece in row if piece.left < gutter] for row in block[:end]]
    right = [[piece for piece in row if piece.left >= gutter] for row in block[:end]]
    paired_rows = sum(bool(first and second) for first, second in zip(left, right, strict=True))
    if paired_rows < FEWEST_LINES or not (is_prose(left) and is_prose(right)):
        return block
    return [*filter(None, left), *in_columns([row for row in right if row]), *block[end:]]


def is_prose(column: list[list[Piece]]) -> bool:
    """Whether the lines of a column are long and go on from line to line."""
    lines = [" ".join(piece.text for piece in row) for row in column if row]
    going_on = sum(LOWER_START.match(line) is not None for line in lines[1:])
    return median(map(len, lines)) >= SHORTEST_LINE and going_on >= FLOWING * (len(lines) - 1)
