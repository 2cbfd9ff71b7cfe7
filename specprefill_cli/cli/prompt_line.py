"""Lines typed at a terminal, with history and completion."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.cli.choices import suggestions
from specprefill_cli.cli.repl import HELP, SETTINGS

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

PROMPT = "specprefill> "
PATHS = ("/documents", "/save")


def prompted_lines(history: History) -> Iterator[str]:
    """Lines typed at the prompt; Ctrl-C drops a line, Ctrl-D ends the input."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(history=history, completer=completer(), complete_while_typing=False)
    while True:
        try:
            yield session.prompt(PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def open_history() -> History:
    """Earlier lines, in a private file in the user's state folder; in memory where that cannot be written."""
    import platformdirs
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = Path(platformdirs.user_state_dir("specprefill")) / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def completer() -> Completer:
    """A completer of commands and their arguments."""
    from prompt_toolkit.completion import Completer, PathCompleter, WordCompleter
    from prompt_toolkit.document import Document

    commands = WordCompleter(list(HELP), sentence=True)
    paths = PathCompleter(expanduser=True)
    arguments: dict[str, Completer] = dict.fromkeys(PATHS, paths)
    for command, name in {**SETTINGS, "/mode": "mode"}.items():
        arguments[command] = WordCompleter(list(suggestions(name)))

    class LineCompleter(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterable[Any]:
            name, space, rest = document.text_before_cursor.partition(" ")
            if not space:
                return commands.get_completions(document, complete_event)
            if name not in arguments:
                return ()
            return arguments[name].get_completions(Document(rest.rpartition(" ")[2]), complete_event)

    return LineCompleter()
