"""Changing the config file: one key at a time; everything else in it stays, comments included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.cli.sources import not_toml, parse_config, read_text
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import write_whole
from specprefill_cli.settings import AUTO, parse_setting

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def set_value(path: Path, name: str, text: str) -> Any:
    """Write a setting into the file, in its type, and return its value.

    Raises UsageError, and leaves the file as it is, for an unknown setting, a value out of its range, or a file that
    cannot be read or would not be valid with it; SpecprefillError for one that cannot be written.
    """
    value = parse_setting(name, text, "config set")
    document = read_document(path)
    # TOML has no null.
    document[name] = AUTO if value is None else value
    changed = document.as_string()
    parse_config(changed, path)
    write(path, changed)
    return value


def unset_value(path: Path, name: str) -> None:
    """Remove a key from the file, even one that is no setting.

    Raises UsageError when it is not there or the file cannot be read, SpecprefillError when it cannot be written.
    """
    document = read_document(path)
    if name not in document:
        raise UsageError(f"{path}: '{name}' is not set there; `specprefill config show` says where values come from")
    del document[name]
    write(path, document.as_string())


def read_document(path: Path) -> TOMLDocument:
    """Raises UsageError for a file that cannot be read, or is not TOML."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: this is not a file; set SPECPREFILL_CONFIG to one")
    try:
        return tomlkit.parse(read_text(path) if path.exists() else "")
    except TOMLKitError as error:
        raise not_toml(path, error) from error


def write(path: Path, text: str) -> None:
    """Write the file, in a new folder where needed. Raises SpecprefillError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecprefillError(
            f"{path.parent}: cannot be created ({error.strerror}); set SPECPREFILL_CONFIG"
        ) from error
    write_whole(path, text)
