"""Ends vLLM's samples at stop texts, though the server has no tokenizer of its own.

vLLM asks a detokenizer after every token whether a stop text was said. A request that names stop texts among its
``extra_args`` gets one that answers by our rule (``rollout_vllm.stops``); every other request gets vLLM's. Whoever
asked cuts the sample by the same rule: what happens here only spares the tokens behind its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from rollout_vllm.stops import STOP_TEXTS, StopScanner


class StopTextDetokenizer(IncrementalDetokenizer):
    """Writes no text; ends the sample with the token that completes a stop text."""

    def __init__(self, scanner: StopScanner) -> None:
        super().__init__()
        self._scanner = scanner

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:  # noqa: ARG002, FBT001 - vLLM's
        """Take new tokens; what is not None ends the sample, and tokens behind its end are left out."""
        for token_id in new_token_ids:
            self.token_ids.append(token_id)
            if self._scanner.push(token_id):
                return STOP_TEXTS
        return None


def find_stop_texts() -> None:
    """Have vLLM ask us for the detokenizer of a request; may be called again."""
    theirs = IncrementalDetokenizer.from_new_request
    if getattr(theirs, "finds_stop_texts", False):
        return

    def from_new_request(tokenizer: Any, request: EngineCoreRequest) -> IncrementalDetokenizer:
        return _build(request) or theirs(tokenizer, request)

    from_new_request.finds_stop_texts = True  # pyrefly: ignore[missing-attribute] - a mark on a function
    IncrementalDetokenizer.from_new_request = staticmethod(from_new_request)  # pyrefly: ignore[bad-assignment] - its own is a class method, which is called as this is


def _build(request: EngineCoreRequest) -> StopTextDetokenizer | None:
    sampling = request.sampling_params
    said = None if sampling is None else (sampling.extra_args or {}).get(STOP_TEXTS)
    if sampling is None or said is None:
        return None
    tokenizer = _read_tokenizer(said["tokenizer"])

    def decode(token_ids: Sequence[int]) -> str:
        return tokenizer.decode(list(token_ids), skip_special_tokens=True)

    return StopTextDetokenizer(
        StopScanner(decode, said["stop"], least=sampling.min_tokens, begun=said["begun"])
    )


@lru_cache(maxsize=1)
def _read_tokenizer(path: str) -> Tokenizer:
    return Tokenizer.from_file(path)
