#!/usr/bin/env python3
"""Render the PDF sample documents from their Markdown sources.

    python sample_docs/build.py

Needs fpdf2. The sources use a small part of Markdown: one "# " line with the title, "## " sections,
paragraphs separated by blank lines, paragraphs in *italics*, and pipe tables. What stands before the first
section goes on the title page; every section starts a new page. The built-in PDF fonts are used, so the
text has to stay within latin-1. With the same version of fpdf2 the output is the same bytes every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fpdf import FPDF, FontFace

HERE = Path(__file__).resolve().parent
CREATED = datetime(2025, 1, 15, 12, 0, tzinfo=UTC)
BODY, HEADING = "Times", "Helvetica"


@dataclass(frozen=True)
class Layout:
    """Page format and type sizes of one document; lengths in millimetres, type sizes in points."""

    name: str
    paper: tuple[float, float]
    margin: float
    size: float
    leading: float
    contents: bool = False


LAYOUTS = (
    Layout("harbour-handbook", paper=(148, 210), margin=22, size=12, leading=6.8, contents=True),
    Layout("orchard-report", paper=(210, 297), margin=30, size=12, leading=6.8),
)


class Document(FPDF):
    """A PDF with a page number in the footer of every page but the first."""

    def footer(self) -> None:
        if self.page_no() > 1:
            self.set_y(-15)
            self.set_font(BODY, size=10)
            self.cell(0, 5, str(self.page_no()), align="C")


def parse(text: str) -> list[tuple[str, object]]:
    """Split Markdown into (kind, content) blocks; kind is title, section, table, caption or text."""
    blocks: list[tuple[str, object]] = []
    for chunk in filter(None, (part.strip() for part in text.split("\n\n"))):
        if chunk.startswith("## "):
            blocks.append(("section", chunk[3:].strip()))
        elif chunk.startswith("# "):
            blocks.append(("title", chunk[2:].strip()))
        elif chunk.startswith("|"):
            rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in chunk.splitlines()]
            blocks.append(("table", [rows[0], *rows[2:]]))  # rows[1] is the |---| line
        elif chunk.startswith("*") and chunk.endswith("*"):
            blocks.append(("caption", " ".join(chunk.strip("*").split())))
        else:
            blocks.append(("text", " ".join(chunk.split())))
    return blocks


def paragraph(pdf: Document, height: float, text: str, align: str = "L") -> None:
    """Write a text over the full width and move to the line below it."""
    pdf.multi_cell(0, height, text, align=align, new_x="LMARGIN", new_y="NEXT")


def heading(pdf: Document, text: str) -> None:
    """Write a section heading."""
    pdf.set_font(HEADING, style="B", size=15)
    paragraph(pdf, 8, text)
    pdf.ln(4)


def title_page(pdf: Document, title: str, lines: list[str]) -> None:
    """Write the title and the lines under it, centred."""
    pdf.add_page()
    pdf.set_y(pdf.h * 0.3)
    pdf.set_font(HEADING, style="B", size=22)
    paragraph(pdf, 11, title, align="C")
    pdf.set_font(BODY, size=14)
    for line in lines:
        pdf.ln(6)
        paragraph(pdf, 7, line, align="C")


def contents_page(pdf: Document, sections: list[str]) -> None:
    """List the sections with their pages; each section has one page, and the first follows this one."""
    pdf.add_page()
    heading(pdf, "Contents")
    pdf.set_font(BODY, size=11)
    for page, section in enumerate(sections, start=pdf.page_no() + 1):
        pdf.cell(pdf.epw - 10, 6.4, section)
        pdf.cell(10, 6.4, str(page), align="R", new_x="LMARGIN", new_y="NEXT")


def table(pdf: Document, layout: Layout, rows: list[list[str]]) -> None:
    """Draw a ruled table: the first column on the left, numbers on the right, totals in bold."""
    others = len(rows[0]) - 1
    bold = FontFace(emphasis="BOLD")
    widths, align = (2, *[1] * others), ("LEFT", *["RIGHT"] * others)
    with pdf.table(col_widths=widths, text_align=align, line_height=layout.leading, headings_style=bold) as ruled:
        for cells in rows:
            ruled.row(cells, style=bold if cells[0].startswith(("Total", "Surplus")) else None)
    pdf.ln(layout.leading)


def render(layout: Layout) -> None:
    """Render one document; the PDF goes next to this script."""
    blocks = parse((HERE / "sources" / f"{layout.name}.md").read_text(encoding="utf-8"))
    sections = [content for kind, content in blocks if kind == "section"]
    first = next(i for i, (kind, _) in enumerate(blocks) if kind == "section")
    title, lines = blocks[0][1], [content for _, content in blocks[1:first]]

    pdf = Document(format=layout.paper)
    pdf.set_creation_date(CREATED)
    pdf.set_title(title)
    pdf.set_lang("en-GB")
    pdf.set_margin(layout.margin)
    pdf.set_auto_page_break(True, margin=20)
    title_page(pdf, title, lines)
    if layout.contents:
        contents_page(pdf, sections)
    for kind, content in blocks[first:]:
        if kind == "section":
            pdf.add_page()
            heading(pdf, content)
            continue
        pdf.set_font(BODY, style="I" if kind == "caption" else "", size=layout.size)
        if kind == "table":
            table(pdf, layout, content)
        else:
            paragraph(pdf, layout.leading, content)
            pdf.ln(2 if kind == "caption" else layout.leading / 2)
    pdf.output(str(HERE / f"{layout.name}.pdf"))


if __name__ == "__main__":
    for each in LAYOUTS:
        render(each)
