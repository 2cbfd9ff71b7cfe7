"""The context of a model, and rotary embeddings stretched beyond what it was trained on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specprefill_cli.errors import SpecprefillError, UsageError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NONE = "none"
WRITTEN = re.compile(r"(yarn|linear):(\d+(?:\.\d+)?)")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """kind: "yarn" (arXiv 2309.00071) or "linear" (position interpolation, arXiv 2306.15595).

    factor: how many times as long the context becomes. It does not depend on the prompt, so that cached keys stay valid.
    """

    kind: str
    factor: float

    @classmethod
    def parse(cls, text: str) -> RopeScaling | None:
        """The scaling written as KIND:FACTOR; None for "none". Raises UsageError for anything else."""
        if text == NONE:
            return None
        match = WRITTEN.fullmatch(text)
        if match is None or not 1 < float(match[2]) <= 64:
            raise UsageError(
                f"--rope-scaling {text}: unknown; use none, yarn:FACTOR or linear:FACTOR with a factor above 1 and at most "
                "64, such as yarn:4"
            )
        return cls(kind=match[1], factor=float(match[2]))

    def apply(self, config: PretrainedConfig, name: str) -> None:
        """Write the scaling into a model's configuration.

        Raises SpecprefillError for a model that scales its embedding already, or has several.
        """
        text = config.get_text_config()
        rope = getattr(text, "rope_parameters", None) or {}
        if rope.get("rope_type") != "default" or any(isinstance(value, dict) for value in rope.values()):
            raise SpecprefillError(
                f"{name}: --rope-scaling {self.kind}:{self.factor:g} does not suit its rotary embedding "
                f"({rope.get('rope_type', 'one for each kind of layer')}); leave the option out"
            )
        trained = text.max_position_embeddings
        text.rope_parameters = {
            **rope,
            "rope_type": self.kind,
            "factor": self.factor,
            "original_max_position_embeddings": trained,
        }
        if self.kind == "linear":
            del text.rope_parameters["original_max_position_embeddings"]
        text.max_position_embeddings = int(trained * self.factor)


def context_length(config: PretrainedConfig) -> int:
    """The context in tokens; with YaRN (arXiv 2309.00071), the extended one.

    With YaRN many configurations state the original length; with `dynamic` scaling all do, and it is the limit here.
    With other kinds of scaling they state the extended length.
    """
    text = config.get_text_config()
    stated = int(getattr(text, "max_position_embeddings", 0) or 1_048_576)
    rotary = getattr(text, "rope_parameters", None) or {}
    if rotary.get("rope_type") != "yarn":
        return stated
    return max(stated, int(rotary.get("factor", 1.0) * rotary.get("original_max_position_embeddings", 0)))
