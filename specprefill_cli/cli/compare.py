"""`specprefill compare`: the modes side by side, for one question or in a session."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli import completion, options
from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.errors import INTERRUPTED, UsageError

if TYPE_CHECKING:
    from rich.console import Console


def compare(
    context: typer.Context,
    documents: Annotated[
        list[str],
        typer.Argument(
            metavar="DOCUMENTS... [QUESTION]",
            help="Files, folders or globs; the last one may be a question, in quotes. Without one, a session begins.",
            show_default=False,
        ),
    ],
    question: Annotated[
        str | None, typer.Option(help="The question, where it could be taken for a document.", show_default=False)
    ] = None,
    modes: Annotated[
        str,
        typer.Option(
            help="Modes to compare, comma-separated.",
            rich_help_panel=options.PREFILL,
            autocompletion=completion.list_of(*completion.MODES),
        ),
    ] = "full,select",
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Do all work again for every question.", rich_help_panel=options.PREFILL),
    ] = False,
    keep: options.Keep = None,
    scorer: options.Scorer = None,
    look_ahead: options.LookAhead = None,
    chunk_size: options.ChunkSize = None,
    draft_window: options.DraftWindow = None,
    prefill_chunk: options.PrefillChunk = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    tensor_parallel: options.TensorParallel = None,
    dtype: options.Dtype = None,
    quantization: options.Quantization = None,
    offline: options.Offline = None,
    max_new_tokens: options.MaxNewTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    speculate: options.Speculate = None,
    proposer: options.Proposer = None,
    json: options.Json = False,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """Answer in each mode with the same loaded pair, and show answers, times and differences side by side.

    Without a question it is a session: every line is a question, /help lists its commands. A second question about the
    same documents finds the models' caches of them; the table says so, and --cold turns it off.

    Examples:
      specprefill compare report.pdf "What is the notice period?"

      specprefill compare report.pdf "Who signed it?" --modes full,select --keep 0.1 --html compare.html

      specprefill compare report.pdf
    """
    flags = locals()
    settings = options.settings_from(flags)
    names, question = split_question(documents, question)
    if question is None and (json or html):
        raise UsageError("--json and --html need a question; in a session use /save FILE")
    if question is None and "-" in names:
        raise UsageError(
            "standard input cannot be a document here: the session reads its lines from it; give a question"
        )
    options.check_html(html)
    notes = Notes(quiet)
    from specprefill_cli.cli.prompt_line import open_history, prompted_lines
    from specprefill_cli.cli.repl import Repl, parse_modes, run_repl
    from specprefill_cli.documents import read_collection

    with notes.progress("reading documents"):
        collection = read_collection(names)
    options.check_no_document(html, collection)
    with notes.progress("loading the models"):
        from dataclasses import replace

        from specprefill_cli.answering.comparison import Comparison
        from specprefill_cli.answering.session import loads_draft, open_session
        from specprefill_cli.cli.idle_options import without_effect
        from specprefill_cli.prefill.registry import MODES

        wanted = parse_modes(modes, settings)
        # Within a session any mode may be chosen later.
        needed = any(loads_draft(replace(settings, mode=mode)) for mode in (wanted if question is not None else MODES))
        session = open_session(settings, draft=needed)
        asked = [session.with_scorer(replace(settings, mode=mode)) for mode in wanted]
        for each in asked:
            session.warm_up(each)
        session.startup_seconds = time.perf_counter() - context.obj["started"]
        comparison = Comparison(session, collection, cold)
    for idle in without_effect(flags, asked):
        notes.warn(idle)
    repl = Repl(comparison, settings, wanted, read_collection)
    out = console(sys.stdout)
    if question is None:
        if sys.stdin is None:
            raise UsageError("standard input is closed; give a question after the documents")
        typed = sys.stdin.isatty()
        if not typed:
            # A line in another encoding is asked with marks in place of its odd bytes; the next ones are asked too.
            sys.stdin.reconfigure(errors="replace")
        if typed:
            notes.tell("Ask about the documents; /help lists commands, /exit leaves.")
        lines = prompted_lines(open_history()) if typed else echoed(iter(sys.stdin.readline, ""), out)
        run_repl(repl, lines, out, notes)
        return
    try:
        with notes.progress("answering") as update:
            compared = comparison.ask(question, settings, wanted, lambda mode: update(f"answering in mode {mode}"))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    from specprefill_cli.reporting.html import answer_result

    if html:
        options.write_html(html, question, collection, [answer_result(one.answer, one.cells) for one in compared])
    from specprefill_cli.reporting.comparison_table import comparison_record, comparison_table

    if json:
        print_json(comparison_record(question, compared))
    else:
        out.print(comparison_table(compared))


def echoed(lines: Iterable[str], out: Console) -> Iterator[str]:
    """Lines that nobody types, each shown before its answer."""
    from specprefill_cli.reporting.safe import plain

    for line in lines:
        out.print(plain(f"> {line.strip()}", style="dim"))
        yield line


def split_question(arguments: Sequence[str], question: str | None) -> tuple[list[str], str | None]:
    """The documents and the question: the last argument is one when it reads like one and does not name a file.

    Raises UsageError for an empty question.
    """
    from specprefill_cli.documents import KNOWN_SUFFIXES
    from specprefill_cli.documents.cleaning import clean_question

    names = list(arguments)
    last = names[-1]
    reads_so = len(last.split()) != 1 or last.endswith("?")
    document = os.path.exists(last) or last.lower().endswith(tuple(KNOWN_SUFFIXES))
    if question is None and len(names) > 1 and reads_so and not document:
        question = names.pop()
    if question is not None:
        clean_question(question)
    return names, question
