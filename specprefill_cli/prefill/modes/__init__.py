"""The registry of modes, by name."""

from collections.abc import Mapping

from specprefill_cli.prefill.modes.base import Mode
from specprefill_cli.prefill.modes.draft_kv import DraftKvMode, HybridMode
from specprefill_cli.prefill.modes.full import FullMode
from specprefill_cli.prefill.modes.select import SelectMode

MODES: Mapping[str, Mode] = {mode.name: mode for mode in (FullMode(), SelectMode(), DraftKvMode(), HybridMode())}
