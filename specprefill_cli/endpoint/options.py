"""What an endpoint cannot do: refused by name where a user asks for it."""

from __future__ import annotations

from specprefill_cli.errors import UsageError
from specprefill_cli.record import BASELINE
from specprefill_cli.settings import AUTO, OFF, SETTINGS, Settings

SELECT = "select"
MODES_THERE = (AUTO, BASELINE, SELECT)
# Settings of the target's weights, and of how they are run.
OF_WEIGHTS = ("adapter", "style", "quantization", "rope_scaling", "tensor_parallel")


def check_possible(settings: Settings) -> None:
    """Raises UsageError that names the settings which need the target's weights here."""
    asked = [f"--mode {settings.mode}"] if settings.mode not in MODES_THERE else []
    names = [name for name in OF_WEIGHTS if getattr(settings, name) != SETTINGS[name].default]
    asked += ["--confirm"] if settings.confirm else []
    names += ["positions"] if settings.positions != AUTO else []
    names += ["speculate"] if settings.speculate not in (AUTO, OFF) else []
    names += ["proposer"] if settings.proposer != AUTO else []
    asked += [f"{SETTINGS[name].flag} {getattr(settings, name)}" for name in names]
    if asked:
        raise UsageError(
            f"{', '.join(asked)}: an endpoint takes text only; leave it out, or give a --target with weights here"
        )
