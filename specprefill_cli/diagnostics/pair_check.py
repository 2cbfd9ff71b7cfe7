"""What works with a pair, by name, from its configurations and tokenizers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.diagnostics.finding import Check, State
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import rotation_depends_on_length, window_layers
from specprefill_cli.models.classes import model_class
from specprefill_cli.models.loading import ModelOutline
from specprefill_cli.prompting import Template, render

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TWO_TOKENIZERS = "draft and target have different tokenizers, so that nothing of the draft's KV or tokens can be taken"

TURNS = "turns its keys by the length of the prompt, which mapped keys cannot follow"


def check_pair(draft: ModelOutline, target: ModelOutline, template: Template) -> list[Check]:
    """Findings about a pair: its models, tokenizers, modes, context, windows and prompt."""
    same = draft.fingerprint == target.fingerprint
    return [
        check_model_class("draft", draft),
        check_model_class("target", target),
        Check("tokenizer", State.OK if same else State.LIMITED, "the same for both" if same else "two different ones"),
        check_select(draft),
        check_draft_kv(same, target),
        check_shared("speculative decoding", same),
        check_context(draft, target),
        check_windows("draft", draft.config),
        check_windows("target", target.config),
        *(check for check in (check_rotary(draft), check_rotary(target)) if check is not None),
        check_prompt(template, draft, target),
    ]


def check_model_class(role: str, outline: ModelOutline) -> Check:
    """Whether the model's attention can be replaced by ours."""
    text = outline.config.get_text_config()
    kind = model_class(outline.config)
    if kind is None or not kind.is_backend_compatible():
        return Check(role, State.BROKEN, f"{outline.name}: {text.model_type} computes attention in its own way")
    return Check(
        role, State.OK, f"{outline.name}: {text.model_type}, {text.num_hidden_layers} layers of {text.hidden_size}"
    )


def check_select(draft: ModelOutline) -> Check:
    windows = window_layers(draft.config)
    if None not in windows:
        return Check("select", State.LIMITED, f"only for prompts up to {max(windows):,} tokens: all of the draft's "
                     "layers have a window; longer ones need --scorer lexical or another --draft")  # fmt: skip
    return Check("select", State.OK, "the target reads what the draft chose, with one tokenizer or two")


def check_shared(name: str, same: bool) -> Check:
    """A mode or a way to decode that needs one tokenizer for both."""
    return Check(name, State.OK, "possible: one tokenizer") if same else Check(name, State.NO, TWO_TOKENIZERS)


def check_draft_kv(same: bool, target: ModelOutline) -> Check:
    if rotation_depends_on_length(target.config):
        return Check("draft-kv", State.NO, f"{target.name} {TURNS}")
    return check_shared("draft-kv", same)


def check_context(draft: ModelOutline, target: ModelOutline) -> Check:
    shorter = min(draft.context, target.context)
    detail = f"prompt and answer up to {shorter:,} tokens (draft {draft.context:,}, target {target.context:,})"
    if draft.context < target.context:
        return Check("context", State.LIMITED, f"{detail}; longer ones are read with mode full")
    return Check("context", State.OK, detail)


def check_windows(role: str, config: PretrainedConfig) -> Check:
    windows = window_layers(config)
    limited = [window for window in windows if window is not None]
    if not limited:
        return Check(f"{role}'s windows", State.OK, "none: every layer sees the whole prompt")
    detail = f"{len(limited)} of {len(windows)} layers see {max(limited):,} tokens; they are masked by position"
    return Check(f"{role}'s windows", State.OK, detail)


def check_rotary(outline: ModelOutline) -> Check | None:
    """A finding for `longrope` and `dynamic`, whose factors change with the length of what is read at once."""
    if not rotation_depends_on_length(outline.config):
        return None
    return Check(
        "rotary embedding", State.LIMITED, f"{outline.name}: keys turn with the length; a prompt is read in one pass"
    )


def check_prompt(template: Template, *outlines: ModelOutline) -> Check:
    try:
        for outline in outlines:
            render(template, "document", "question", outline.tokenizer)
    except SpecprefillError as error:
        return Check("prompt", State.BROKEN, str(error))
    return Check("prompt", State.OK, f"template '{template.name}'")
