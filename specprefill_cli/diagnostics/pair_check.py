"""What works with a pair, judged by its configurations and tokenizers alone."""

from __future__ import annotations

from specprefill_cli.diagnostics.doctor import Check, State
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import rotation_depends_on_length, window_layers
from specprefill_cli.models.hub import model_class
from specprefill_cli.models.outline import ModelOutline
from specprefill_cli.prompting import Template, render

DIFFERENT_TOKENIZERS = "draft and target have different tokenizers, so the target cannot use the draft's KV or tokens"


def check_pair(draft: ModelOutline, target: ModelOutline, template: Template, draft_template: Template) -> list[Check]:
    """Check a pair's models, tokenizers, modes, context, windows and prompts.

    draft_template: what the draft reads where its tokenizer is not the target's
    """
    same = draft.fingerprint == target.fingerprint
    return [
        check_model_class("draft", draft),
        check_model_class("target", target),
        Check("tokenizer", State.OK if same else State.LIMITED, "the same for both" if same else "two different ones"),
        check_select(draft),
        check_draft_kv(same, target),
        check_shared_tokenizer("speculative decoding", same),
        check_context(draft, target),
        check_windows("draft", draft),
        check_windows("target", target),
        *(check_rotary(outline) for outline in (draft, target) if rotation_depends_on_length(outline.config)),
        check_prompt("prompt", template, target),
        *(() if same else (check_prompt("draft's prompt", draft_template, draft),)),
    ]


def check_model_class(role: str, outline: ModelOutline) -> Check:
    """Whether the model's attention can be replaced by ours."""
    text = outline.config.get_text_config()
    cls = model_class(outline.config)
    if cls is None or not cls.is_backend_compatible():
        return Check(role, State.BROKEN, f"{outline.name}: {text.model_type} computes attention in its own way")
    detail = f"{outline.name}: {text.model_type}, {text.num_hidden_layers} layers of {text.hidden_size}"
    return Check(role, State.OK, detail)


def check_select(draft: ModelOutline) -> Check:
    """Whether a layer of the draft sees the whole prompt, however long."""
    windows = window_layers(draft.config)
    if None in windows:
        return Check(
            "select", State.OK, "the target reads the chunks that the draft selects; their tokenizers may differ"
        )
    longest = max(window for window in windows if window is not None)
    detail = (
        f"only for prompts up to {longest:,} tokens: all of the draft's layers have a window; longer ones need "
        "--scorer lexical or another --draft"
    )
    return Check("select", State.LIMITED, detail)


def check_draft_kv(same_tokenizer: bool, target: ModelOutline) -> Check:
    """Whether mapped KV can stand for the target's own."""
    if rotation_depends_on_length(target.config):
        detail = (
            f"{target.name}'s rotary embedding depends on the length of the prompt, and mapped keys cannot follow it"
        )
        return Check("draft-kv", State.NO, detail)
    return check_shared_tokenizer("draft-kv", same_tokenizer)


def check_shared_tokenizer(name: str, same: bool) -> Check:
    """Whether a mode or a way to decode is possible that needs one tokenizer for both models."""
    return Check(name, State.OK, "possible: one tokenizer") if same else Check(name, State.NO, DIFFERENT_TOKENIZERS)


def check_context(draft: ModelOutline, target: ModelOutline) -> Check:
    """How many tokens fit both models."""
    shorter = min(draft.context, target.context)
    detail = f"prompt and answer up to {shorter:,} tokens (draft {draft.context:,}, target {target.context:,})"
    if draft.context < target.context:
        return Check("context", State.LIMITED, f"{detail}; longer documents are read in windows, by `select`")
    return Check("context", State.OK, detail)


def check_windows(role: str, outline: ModelOutline) -> Check:
    """How many layers have a sliding window, and how large it is."""
    layers = window_layers(outline.config)
    windows = [window for window in layers if window is not None]
    detail = "none: every layer sees the whole prompt"
    if windows:
        detail = f"{len(windows)} of {len(layers)} layers see {max(windows):,} tokens; they are masked by position"
    return Check(f"{role}'s windows", State.OK, detail)


def check_rotary(outline: ModelOutline) -> Check:
    """Report `longrope` and `dynamic`, whose factors depend on the number of tokens read at once."""
    detail = f"{outline.name}: it depends on the length of the prompt; one pass reads all of it"
    return Check("rotary embedding", State.LIMITED, detail)


def check_prompt(name: str, template: Template, outline: ModelOutline) -> Check:
    """Whether a template works with a model's tokenizer."""
    try:
        render(template, "document", "question", outline.tokenizer)
    except SpecprefillError as error:
        return Check(name, State.BROKEN, str(error))
    return Check(name, State.OK, f"template '{template.name}'")
