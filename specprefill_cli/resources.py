"""The files that ship with specprefill. In a checkout, `prompts` and `sample_docs` lie beside the package; in a wheel, in it."""

from pathlib import Path

from specprefill_cli.errors import SpecprefillError

_PACKAGE = Path(__file__).resolve().parent
# The pair that ships with the package, and its calibration.
BUNDLED_FOLDER = _PACKAGE / "bundled" / "tiny"
# The adapter of the pair `smollm2`, and its calibration.
SMOLLM2_FOLDER = _PACKAGE / "bundled" / "smollm2"
# The sentence encoder that ships with the package.
ENCODER_FOLDER = _PACKAGE / "bundled" / "encoder"
GLOSSARY_FOLDER = _PACKAGE / "bundled" / "glossary"


def packaged_folder(name: str) -> Path:
    """Return the folder `name` that ships with specprefill. Raises SpecprefillError for an incomplete installation."""
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise SpecprefillError(
        f"{_PACKAGE}: the folder '{name}' is missing from this installation; install specprefill again"
    )
