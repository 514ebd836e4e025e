"""The text of a reply: without what ended it, unless that is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.errors import SpecError
from rollout.rendering.tokenizer import ModelTokenizer
from rollout.seams import Renderer
from rollout.types import SamplingParams
from rollout_vllm.stops import REPLACEMENT, first_stop


def reply_text(said: Sequence[int], sampling: SamplingParams, renderer: Renderer) -> str:
    """The text of a whole reply.

    A stop text that its last token completed, or a last token of ``sampling.stop_token_ids`` that is no end token
    of the renderer, is left out unless ``include_stop``; what the last token says behind a stop text always is.
    """
    text = renderer.decode(said)
    if len(said) <= sampling.min_new_tokens:
        return text
    known = len(renderer.decode(said[:-1]).rstrip(REPLACEMENT)) if sampling.stop else 0
    place = first_stop(text, known, sampling.stop)
    if place is not None:
        return text[: place[1] if sampling.include_stop else place[0]]
    last = said[-1]
    asked = last in sampling.stop_token_ids and last not in renderer.stop_token_ids
    return renderer.decode(said[:-1]) if asked and not sampling.include_stop else text


def require_stops(
    stop: Sequence[str], stop_token_ids: Sequence[int], tokenizer: ModelTokenizer, vocab_size: int
) -> None:
    """Raise SpecError for a stop text that no completion has, and for a token that the model does not have."""
    for text in stop:
        token = tokenizer.tokenizer.token_to_id(text)
        if token is not None and tokenizer.is_special(token):
            raise SpecError(
                f"spec.train.sampling.stop: {text!r} is a special token, which is no part of a completion's"
                f" text; write stopTokenIds: [{token}]"
            )
    missing = [token for token in stop_token_ids if token >= vocab_size]
    if missing:
        raise SpecError(
            f"spec.train.sampling.stopTokenIds: {missing[0]} is no token of this model; expected 0 to"
            f" {vocab_size - 1}"
        )
