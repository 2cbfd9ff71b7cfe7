"""Fuzz the readers: damaged files must end in text or a `DocumentError`, within 30 s and 1 GiB each.

    python -m tests.fuzz_readers --count 2000 --seed 0

Mutates files of every format that the tests build, and reads each mutant in a child process of its own. Prints a line
for each mutant that breaks the rule, then figures; the exit code is 1 if there was one. Mutant N of a seed is always
the same file; `--only N --save FILE` writes it. Needs Unix.
"""

import argparse
import copy
import io
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from xml.etree import ElementTree

from specprefill_cli.documents import DocumentError, read_document
from tests.helpers import document_files

MAX_SECONDS = 30
MAX_MIB = 1024
# Beyond this address space the machine itself would suffer.
ADDRESS_SPACE = 6 * 2**30
TEXT, REFUSED = 0, 1
OUTCOMES = {TEXT: "text", REFUSED: "refused"}

PARAGRAPH = "The tenant pays 300 euros; the lazy dog sleeps - Größe, Käse. " * 12
PAGE = (
    b'<!DOCTYPE html><html><head><meta charset="utf-8"><title>T</title><style>x{}</style></head><body><h1>Head</h1><p>a'
    b" &amp; b</p><!-- c --><script>x()</script><table><tr><td>1<td>2</table><pre>a\n b</pre><ul><li>x</ul></body></html>"
)
TABLE = b'name;note\nAnn;"two, or\nthree"\n1,5;2\n\n' * 20
MARKDOWN = b"---\nx: 1\n---\n\n# Head\n\n* item\n\n| a | b |\n|---|---|\n"
# What parsers branch on; spliced in anywhere.
TOKENS = {
    "pdf": b"""<< >> [ ] ( ) < > stream\n endstream endobj obj R /Filter /FlateDecode /LZWDecode /JBIG2Decode /A85 /Length
        /Parent /Kids /Count /Contents /Type /Pages /Font /ToUnicode /Encoding /Crypt /DecodeParms /Predictor /Columns
        /ObjStm /XRef /Prev BT ET Tj TJ ' " Tf Td Tm BI ID EI Do q Q 1e99 -1 0 99999999999 2147483648 null true %""".split(),
    "xml": b"""< > </ /> <![CDATA[ ]]> <!-- --> &amp; &#0; &#xFFFFFF; &x; <!DOCTYPE <!ENTITY xmlns="" <w:p> </w:p> <w:tbl>
        <w:tc> <c> <v> <f> t="s" t="str" r="XFD1048576" <row> -1 1e308 99999999999 <a:p> <p:sp> <td> <pre> <title>""".split(),
    "text": [
        b'"',
        b"'",
        b";",
        b",",
        b"\t",
        b"\n",
        b"\r",
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"-\n",
    ],
}

# Values of attributes and texts in XML.
VALUES = [
    "",
    "0",
    "-1",
    "1",
    "999999999999",
    "1e308",
    "nan",
    "x" * 10_000,
    "XFD1048576",
    "../../x",
    "rId1",
    "true",
    "\u202e",
]


def originals() -> dict[str, tuple[str, bytes]]:
    """Names and contents of the files to damage, by a label."""
    texts = [PARAGRAPH, None, "Beta is the second page."]
    office = [
        ("docx", document_files.word()),
        ("pptx", document_files.slides()),
        ("xlsx", document_files.workbook()),
        ("epub", document_files.book(document_files.CHAPTERS, ["a%20b.xhtml", "b.xhtml"])),
    ]
    plain = [("html", PAGE), ("csv", TABLE), ("txt", PARAGRAPH.encode()), ("md", MARKDOWN)]
    pdfs = {
        "pdf": document_files.pdf(texts),
        "pdf, plain streams": document_files.pdf(texts, compressed=False),
        "pdf, encrypted": document_files.pdf(texts, owner="secret"),
    }
    named = {label: ("a.pdf", data) for label, data in pdfs.items()}
    return named | {suffix: (f"a.{suffix}", data) for suffix, data in office + plain}


def cut(data: bytearray, place: int, chance: random.Random, tokens: list[bytes]) -> None:
    """Remove up to 200 bytes."""
    del data[place : place + chance.randrange(200)]


def overwrite(data: bytearray, place: int, chance: random.Random, tokens: list[bytes]) -> None:
    """Replace one byte by another."""
    data[place] = chance.randrange(256)


def splice(data: bytearray, place: int, chance: random.Random, tokens: list[bytes]) -> None:
    """Insert a token, sometimes thousands of times."""
    data[place:place] = b" ".join([chance.choice(tokens)] * chance.choice([1, 1, 1, 5, 20_000]))


def repeat(data: bytearray, place: int, chance: random.Random, tokens: list[bytes]) -> None:
    """Repeat a piece of the file elsewhere, sometimes many times."""
    piece = bytes(data[place : place + chance.randrange(300)])
    elsewhere = chance.randrange(len(data))
    data[elsewhere:elsewhere] = piece * chance.choice([1, 1, 2, 500])


def renumber(data: bytearray, place: int, chance: random.Random, tokens: list[bytes]) -> None:
    """Replace a number: lengths, offsets, object numbers, sizes."""
    numbers = list(re.finditer(rb"\d+", data))
    if numbers:
        start, end = chance.choice(numbers).span()
        data[start:end] = chance.choice([b"0", b"1", b"2", b"7", b"-1", b"65536", b"2147483648", b"9" * 30])


def truncate(data: bytearray, place: int, chance: random.Random, tokens: list[bytes]) -> None:
    """Lose the end."""
    del data[place:]


STEPS: list[Callable[[bytearray, int, random.Random, list[bytes]], None]] = [
    *(cut, overwrite, overwrite, splice, splice, repeat, renumber, renumber, truncate)
]


def damage(data: bytes, chance: random.Random, tokens: list[bytes]) -> bytes:
    """Damage a file in 1 to 20 places."""
    damaged = bytearray(data)
    for _ in range(chance.choice([1, 2, 5, 20])):
        if damaged:
            chance.choice(STEPS)(damaged, chance.randrange(len(damaged)), chance, tokens)
    return bytes(damaged)


def damage_tree(xml: bytes, chance: random.Random) -> bytes:
    """Change XML that stays well-formed: attributes, texts, lost, copied and deeply nested elements."""
    root = ElementTree.fromstring(xml)
    for _ in range(chance.choice([1, 3, 10])):
        elements = list(root.iter())
        element, other = chance.choice(elements), chance.choice(elements)
        match chance.randrange(5):
            case 0 if element.attrib:
                element.set(chance.choice(list(element.attrib)), chance.choice(VALUES))
            case 1 if element.attrib:
                del element.attrib[chance.choice(list(element.attrib))]
            case 2:
                element.text = chance.choice(VALUES)
            case 3 if len(element):
                element.remove(chance.choice(list(element)))
            case 4:
                other.extend([copy.deepcopy(element)] * chance.choice([1, 2, 300]) if len(elements) < 5000 else [])
    xml = ElementTree.tostring(root)
    tag, depth = chance.choice(re.findall(rb"<([\w:]+)", xml)), chance.choice([0, 0, 50, 5000])
    place = xml.index(b">") + 1
    return xml[:place] + b"<%s>" % tag * depth + b"</%s>" % tag * depth + xml[place:]


def damage_archive(data: bytes, chance: random.Random) -> bytes:
    """Damage one part of an archive that stays whole, and sometimes lose or double another."""
    source, stream = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    names = source.namelist()
    victim, other = chance.choice(names), chance.choice(names)
    copies = {other: chance.choice([0, 1, 1, 1, 2])}
    contents = {name: source.read(name) for name in names}
    if victim.endswith((".xml", ".rels", ".opf", ".xhtml")) and chance.random() < 0.6:
        contents[victim] = damage_tree(contents[victim], chance)
    else:
        contents[victim] = damage(contents[victim], chance, TOKENS["xml"])
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name in names:
            for _ in range(copies.get(name, 1)):
                archive.writestr(name, contents[name])
    return stream.getvalue()


def mutant(files: dict[str, tuple[str, bytes]], seed: int, number: int) -> tuple[str, str, bytes]:
    """Label, name and content of a mutant."""
    chance = random.Random(f"{seed}/{number}")
    label = list(files)[number % len(files)]
    name, data = files[label]
    if data.startswith(b"PK") and chance.random() < 0.8:
        return label, name, damage_archive(data, chance)
    kind = "pdf" if label.startswith("pdf") else "xml" if label == "html" else "text"
    return label, name, damage(data, chance, TOKENS[kind])


@dataclass
class Result:
    """What became of a mutant: its outcome, or what was wrong."""

    outcome: str
    wrong: str
    seconds: float
    mib: float


def read_in_child(name: str, data: bytes) -> Result:
    """Read a file in a forked process, and measure it."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as noise:
        child = os.fork()
        if child == 0:
            os._exit(read_and_check(name, data, noise.fileno()))
        _, status, usage = os.wait4(child, 0)
        seconds, mib = time.perf_counter() - began, usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        noise.seek(0)
        written = noise.read().decode(errors="replace").strip()
    code = os.waitstatus_to_exitcode(status)
    if code not in OUTCOMES:
        wrong = written or ("too slow" if code == -signal.SIGALRM else f"ended with {code}")
    elif mib > MAX_MIB:
        wrong = f"{mib:.0f} MiB"
    else:
        wrong = written and f"wrote {written}"
    return Result(OUTCOMES.get(code, "failed"), wrong, seconds, mib)


def read_and_check(name: str, data: bytes, noise: int) -> int:
    """Read a file, and return an exit code; what it writes goes to the file descriptor `noise`."""
    os.dup2(noise, 1)
    os.dup2(noise, 2)
    signal.alarm(MAX_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    try:
        document = read_document(data, name)
        document.text.encode()
        assert all(line.isprintable() for line in document.warnings), document.warnings
        return TEXT
    except DocumentError as error:
        return REFUSED if str(error).isprintable() else print(repr(error)) or 2
    except BaseException:
        traceback.print_exc()
        return 2


def main() -> int:
    """Read mutants and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="read this mutant alone, in this process")
    parser.add_argument("--save", help="with --only: write it to this file")
    options = parser.parse_args()
    files = originals()
    if options.only is not None:
        label, name, data = mutant(files, options.seed, options.only)
        if options.save:
            with open(options.save, "wb") as stream:
                stream.write(data)
        document = read_document(data, name)
        print(label, len(document.text), document.warnings)
        return 0
    for name, data in files.values():
        # Also imports every parser once, before the forks.
        assert read_document(data, name).text
    outcomes: Counter[tuple[str, str]] = Counter()
    results = []
    for number in range(options.count):
        label, name, data = mutant(files, options.seed, number)
        result = read_in_child(name, data)
        outcomes[label, result.outcome] += 1
        results.append(result)
        if result.wrong:
            print(f"mutant {number} ({label}): {result.wrong}", flush=True)
    for label in files:
        print(f"{label:20}", *(f"{kind} {outcomes[label, kind]:4}" for kind in ("text", "refused", "failed")), sep="  ")
    failures = sum(bool(result.wrong) for result in results)
    print(
        f"{len(results)} mutants, {failures} failures; slowest {max(result.seconds for result in results):.1f} s, "
        f"largest {max(result.mib for result in results):.0f} MiB"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
