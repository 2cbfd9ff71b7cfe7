"""Checks of a pair by its configurations and tokenizers alone."""

from __future__ import annotations

from specprefill_cli.diagnostics import Check, State
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import rotation_depends_on_length, window_layers
from specprefill_cli.models.hub import model_class
from specprefill_cli.models.loading import ModelOutline
from specprefill_cli.prompting import Template, render

DIFFERENT_TOKENIZERS = "draft and target have different tokenizers, so the target cannot use the draft's KV or tokens"


def check_pair(draft: ModelOutline, target: ModelOutline, template: Template, draft_template: Template) -> list[Check]:
    """Check a pair's models, tokenizers, modes, context, windows and prompts.

    draft_template: of the draft's prompt where its tokenizer is not the target's
    """
    same = draft.fingerprint == target.fingerprint
    length_dependent = [model for model in (draft, target) if rotation_depends_on_length(model.config)]
    shared = (State.OK, "possible: one tokenizer") if same else (State.NO, DIFFERENT_TOKENIZERS)
    draft_kv = shared
    if target in length_dependent:
        reason = "rotary embedding depends on the length of the prompt, and mapped keys cannot follow it"
        draft_kv = (State.NO, f"{target.name}'s {reason}")
    return [
        check_model_class("draft", draft),
        check_model_class("target", target),
        Check("tokenizer", State.OK if same else State.LIMITED, "the same for both" if same else "two different ones"),
        check_select(draft),
        Check("draft-kv", *draft_kv),
        Check("speculative decoding", *shared),
        check_context(draft, target),
        # `longrope` and `dynamic` have factors that depend on the number of tokens read at once.
        *(
            Check(
                "rotary embedding",
                State.LIMITED,
                f"{model.name}: it depends on the length of the prompt; one pass reads all of it",
            )
            for model in length_dependent
        ),
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
        detail = "the target reads the chunks that the draft selects; their tokenizers may differ"
        return Check("select", State.OK, detail)
    longest = max(window for window in windows if window is not None)
    detail = (
        f"only for prompts up to {longest:,} tokens: all of the draft's layers have a window; longer ones need "
        "--scorer lexical or another --draft"
    )
    return Check("select", State.LIMITED, detail)


def check_context(draft: ModelOutline, target: ModelOutline) -> Check:
    """How many tokens fit both models."""
    shorter = min(draft.context, target.context)
    detail = f"prompt and answer up to {shorter:,} tokens (draft {draft.context:,}, target {target.context:,})"
    if draft.context < target.context:
        return Check("context", State.LIMITED, f"{detail}; longer documents are read in windows, by `select`")
    return Check("context", State.OK, detail)


def check_prompt(name: str, template: Template, outline: ModelOutline) -> Check:
    """Whether a template works with a model's tokenizer."""
    try:
        render(template, "document", "question", outline.tokenizer)
    except SpecprefillError as error:
        return Check(name, State.BROKEN, str(error))
    return Check(name, State.OK, f"template '{template.name}'")
