"""What another machine must have before it can answer rows of a batch, checked there."""

from __future__ import annotations

import os
from dataclasses import dataclass

from specprefill_cli import __version__
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.calibration import calibration_folder
from specprefill_cli.models.hub import is_local, may_download
from specprefill_cli.models.pairs import find_pair
from specprefill_cli.models.sources import model_source
from specprefill_cli.settings import Settings


@dataclass(frozen=True)
class Needs:
    """What a batch has on the driver's machine, and a worker's machine must have too.

    folder: the working directory; documents: those named by rows that can be read here
    models: names of the pair's models that are in folders or files here; calibrated: whether the pair was calibrated here
    """

    version: str
    folder: str
    settings: Settings
    documents: tuple[str, ...]
    models: tuple[str, ...]
    calibrated: bool


def needs_of(settings: Settings, documents: tuple[str, ...]) -> Needs:
    """What a batch needs, from what is there on this machine."""
    pair = find_pair(settings.pair, settings.draft, settings.target)
    return Needs(
        version=__version__,
        folder=os.getcwd(),
        settings=settings,
        documents=tuple(name for name in documents if os.access(name, os.R_OK)),
        models=tuple(filter(is_local, (pair.draft, pair.target))),
        calibrated=calibration_folder(pair).is_dir(),
    )


def missing_here(needs: Needs) -> str | None:
    """What this machine lacks, as one line with the remedy; None where nothing is missing."""
    if needs.version != __version__:
        return f"specprefill {__version__} is installed there, and {needs.version} here; install the same version"
    try:
        os.chdir(needs.folder)
    except OSError as error:
        return f"the working directory {needs.folder} cannot be entered ({error.strerror}); run from shared storage"
    try:
        check_models(needs)
    except SpecprefillError as error:
        return str(error)
    unreadable = next((name for name in needs.documents if not os.access(name, os.R_OK)), None)
    return unreadable and f"{unreadable}: cannot be read there; put the documents on shared storage"


def check_models(needs: Needs) -> None:
    """Raises SpecprefillError for settings, a model or a calibration that this machine has not."""
    from specprefill_cli.answering.session import check_settings

    settings = needs.settings
    check_settings(settings)
    pair = find_pair(settings.pair, settings.draft, settings.target)
    for name in (pair.draft, pair.target):
        if name not in needs.models:
            may_download(name, settings.offline)
        elif not is_local(name):
            raise SpecprefillError(f"{name}: there is no such model; put it on shared storage")
        model_source(name)
    if needs.calibrated and not calibration_folder(pair).is_dir():
        raise SpecprefillError(f"{calibration_folder(pair)}: the pair's calibration is not there; copy it")
