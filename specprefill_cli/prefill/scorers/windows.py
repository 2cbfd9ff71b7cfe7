"""Windows of a document that the draft cannot read at once: each is a prompt of its own, with prefix and suffix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prompting import Prompt

# Tokens that neighbouring windows share, at most: half of them give the tokens at an edge something to look back at.
OVERLAP = 512
# Share of the draft's context that a window takes; the rest is for the distance between it and the question.
CONTEXT_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Window:
    """Document tokens [start, end) that are read together; the importance of those in `core` is taken from here.

    Cores divide the document. gap: positions left free before the suffix, so that the question stands as far behind a
    token as in the whole prompt, or as the draft's context allows: attention depends on that distance
    """

    start: int
    end: int
    core: tuple[int, int]
    gap: int

    def prompt(self, whole: Prompt) -> Prompt:
        """The prompt that holds only this part of the document."""
        first, last = whole.document
        cut = last - first - (self.end - self.start)
        tokens = (whole.tokens[:first], whole.tokens[first + self.start : first + self.end], whole.tokens[last:])
        return Prompt(
            tokens=torch.cat(tokens),
            document=(first, last - cut),
            question=(whole.question[0] - cut, whole.question[1] - cut),
            offsets=whole.offsets[self.start : self.end],
        )

    def request(self, whole: PrefillRequest) -> PrefillRequest:
        """The request to score this window. Its KV does not depend on the question, nor on the gap before it."""
        prompt = self.prompt(whole.draft_prompt)
        return replace(whole, draft_prompt=prompt, draft_gap=self.gap, keep_draft_state=False)

    def parts(self, prompt: Prompt) -> tuple[Tensor, Tensor]:
        """Key indices in the window's prompt: of the core, and of prefix and suffix, which every window holds."""
        first, last = prompt.document
        core = torch.arange(first + self.core[0] - self.start, first + self.core[1] - self.start)
        return core, torch.cat([torch.arange(first), torch.arange(last, prompt.length)])


def divide(tokens: int, size: int, room: int) -> tuple[Window, ...]:
    """Windows of about the same size, at most `size`, over a document of that many tokens, in order.

    room: document tokens for which the draft has positions; distances beyond are shortened evenly
    """
    overlap = min(OVERLAP, size // 4)
    count = -(-tokens // (size - overlap)) if tokens > size else 1
    edges = [tokens * number // count for number in range(count + 1)]
    shortening = 1.0 if tokens <= room else max(0, room - size) / (tokens - edges[1])
    return tuple(
        Window(
            start=max(0, first - overlap // 2),
            end=(end := min(tokens, last + overlap // 2)),
            core=(first, last),
            gap=int(shortening * (tokens - end)),
        )
        for first, last in pairwise(edges)
    )


def windows_of(request: PrefillRequest, look_ahead: int) -> tuple[Window, ...]:
    """The windows in which the draft must read a request's document; none where it fits the draft's context whole.

    look_ahead: tokens that the draft decodes behind the prompt
    """
    prompt, draft = request.draft_prompt, request.draft
    if prompt.length + look_ahead <= draft.context:
        return ()
    start, end = prompt.document
    room = draft.context - look_ahead - (prompt.length - (end - start))
    size = min(room, max(request.chunk_size, int(CONTEXT_SHARE * draft.context)))
    # Models whose rotation depends on the length rotate the keys of one cache alike only without a gap.
    return divide(end - start, size, size if rotation_depends_on_length(draft.config) else room)


def one_softmax(masses: Sequence[Tensor]) -> Tensor:
    """Normalisers [heads, Q] of one softmax over the cores of all windows, prefix and suffix.

    masses: of each window [2, heads, Q], logarithms for the parts of `Window.parts`. A window may have fewer look-ahead
    queries: only those that all have count. Prefix and suffix count once, with the mean over windows.
    """
    queries = min(window.shape[-1] for window in masses)
    cores, shared = torch.stack([window[..., :queries] for window in masses], 1).logsumexp(1)
    return torch.logaddexp(cores, shared - torch.tensor(float(len(masses))).log())
