"""Makes the pictures of the README and the guide from real runs: `python docs/build_pictures.py`.

Writes beside itself: terminal.svg (the recording of `ask`), models.svg (what each model read in that run), modes.svg, and
page.png (the page of `--html`, where Chromium or Chrome is installed).
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parent
DOCUMENT = "sample_docs/harbour-handbook.pdf"
QUESTION = "What mileage allowance does the company pay if you use your own car?"
WIDTH = 120
COMPUTED, ACCEPTED, DROPPED, READ = "#d55e00", "#0072b2", "#e4e4e4", "#f2b98f"
# Rich's own format loads a font from the web.
TERMINAL = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="specprefill ask">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }} {styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def ask(*options: str) -> subprocess.CompletedProcess[str]:
    """Run `ask` about the handbook in the repository's folder, in colour."""
    command = [sys.executable, "-m", "specprefill_cli", "ask", DOCUMENT, QUESTION, "--no-server", *options]
    environment = {**os.environ, "FORCE_COLOR": "1"}
    return subprocess.run(command, cwd=DOCS.parent, env=environment, check=True, capture_output=True, text=True)


def terminal(answer: str, notes: str) -> str:
    """The recording of a run as SVG. answer, notes: its standard output, and its standard error with colours."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text.assemble(("$ ", "green"), (f'specprefill ask {DOCUMENT} "{QUESTION}"', "bold")))
    console.print(Text(answer.rstrip(), style="bold green"))
    console.print(Text.from_ansi(notes.rstrip()))
    return console.export_svg(title="specprefill", code_format=TERMINAL, unique_id="terminal")


def box(x: float, y: float, width: float, colour: str, height: float = 34) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y}" width="{max(width, 1):.1f}" height="{height}" fill="{colour}"/>'


def text(x: float, y: float, words: str, style: str = "") -> str:
    """A line of text; its left end stands at x."""
    return f'<text x="{x:.1f}" y="{y}" {style}>{escape(words)}</text>'


def drawing(height: int, label: str, parts: Iterable[str]) -> str:
    """An SVG of 900 units by `height`, on white."""
    lines = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="15" '
        f'role="img" aria-label="{escape(label)}">\n<rect width="900" height="{height}" fill="#ffffff"/>\n{lines}\n</svg>\n'
    )


def models(record: dict) -> str:
    """Both models and the tokens that each read, to scale. record: `ask --json`."""
    tokens, left, scale = record["prompt_tokens"], 30, 840 / record["prompt_tokens"]
    spans = record["spans"]
    start, end = spans[0]["start"], spans[-1]["end"]
    kept = [span for span in spans if span["fate"] == "recompute"]
    parts = [
        text(left, 32, f"Draft: {record['pair']['draft']}", 'font-weight="bold"'),
        text(left, 52, f"reads all {tokens:,} tokens and scores each chunk of 32 for the question"),
        box(left, 64, tokens * scale, READ),
        box(left, 64, start * scale, COMPUTED),
        box(left + end * scale, 64, (tokens - end) * scale, COMPUTED),
        text(left, 246, f"Target: {record['pair']['target']}", 'font-weight="bold"'),
        text(left, 266, f"computes {record['kept_tokens']:,} tokens at {record['positions']} positions, then answers"),
        box(left, 156, tokens * scale, DROPPED),
        box(left, 156, start * scale, COMPUTED),
        box(left + end * scale, 156, (tokens - end) * scale, COMPUTED),
        text(left, 212, "prefix"),
        text(left + 420, 212, f"document; {len(kept)} spans kept", 'text-anchor="middle"'),
        text(left + 840, 212, "suffix (question)", 'text-anchor="end"'),
        text(left, 292, f"answer: {record['answer']}", 'font-weight="bold"'),
    ]
    for span in kept:
        x, width = left + span["start"] * scale, (span["end"] - span["start"]) * scale
        parts.append(box(x, 64, width, COMPUTED))
        parts.append(box(x, 156, width, COMPUTED))
        parts.append(f'<path d="M{x + width / 2:.1f} 104 V148" stroke="#555555" marker-end="url(#head)"/>')
    arrow = '<defs><marker id="head" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
    arrow += '<path d="M0 0 L6 3 L0 6 z" fill="#555555"/></marker></defs>'
    return drawing(310, "what the draft and the target read", [arrow, *parts])


# Of 24 chunks, by rank of importance: the first five are important, the next five risky for draft KV.
IMPORTANT, RISKY = (3, 4, 11, 17, 18), (1, 8, 12, 20, 22)
FATES = (
    ("full", "computes everything", range(24), ()),
    ("select", "computes the important chunks, drops the rest", IMPORTANT, ()),
    ("draft-kv", "accepts draft KV, recomputes the riskiest chunks", RISKY, range(24)),
    ("hybrid", "computes the important chunks, accepts or drops the others", IMPORTANT, (2, 5, 6, 10, 13, 16, 19, 21)),
)


def modes(rows: Sequence[tuple[str, str, Iterable[int], Iterable[int]]] = FATES) -> str:
    """The fates of one document's chunks in each mode; rows: name, words, chunks computed, chunks accepted."""
    parts = []
    for number, (name, words, computed, accepted) in enumerate(rows):
        y = 24 + 74 * number
        parts.append(f'<text x="30" y="{y}"><tspan font-weight="bold">{name}</tspan> {escape(words)}</text>')
        for chunk in range(24):
            fate = COMPUTED if chunk in computed else ACCEPTED if chunk in accepted else DROPPED
            parts.append(box(30 + 35 * chunk, y + 10, 32, fate))
    for place, (colour, words) in enumerate(((COMPUTED, "recompute"), (ACCEPTED, "accept"), (DROPPED, "drop"))):
        parts += [box(30 + 150 * place, 318, 16, colour, 16), text(54 + 150 * place, 331, words)]
    return drawing(346, "the fates of chunks in each mode", parts)


BROWSERS = ("chromium", "google-chrome", "chrome")
PAGE_SIZE = "960,900"


def page(target: Path) -> None:
    """Write a picture of the page that `ask --html` makes; without a browser, say so and leave the old one."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"{target.name} is not drawn: install one of {', '.join(BROWSERS)}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder) / "page.html"
        ask("--html", str(html))
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={PAGE_SIZE}")
        command = [browser, *options, f"--screenshot={target}", html.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Run `ask`, and write the pictures."""
    run = ask()
    (DOCS / "terminal.svg").write_text(terminal(run.stdout, run.stderr), encoding="utf-8")
    (DOCS / "models.svg").write_text(models(json.loads(ask("--json").stdout)), encoding="utf-8")
    (DOCS / "modes.svg").write_text(modes(), encoding="utf-8")
    page(DOCS / "page.png")


if __name__ == "__main__":
    main()
