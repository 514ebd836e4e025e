"""Log-probabilities of a prompt's and a completion's tokens under weights that were saved: the learner's forward over one module.

Axes: N tokens of the prompt or of prompt and completion, T of a completion, V vocabulary, K tokens of one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from rollout.learner.forward.packed_rows import (
    SequenceTokens,
    build_sequence_row,
    token_logprobs,
)
from rollout.service.calls import (
    CallTensor,
    SampleAnswer,
    SampleCall,
    SampledSequence,
    TopTokens,
)
from rollout.service.training.bases import TrainingBase

NO_TOKEN, NO_LOGPROB = 0, -99999.0
"""What clients read as no token, in a place that nothing comes before."""


@dataclass(slots=True, kw_only=True)
class PromptScorer:
    """Owns one module, of the base and the weights that were scored with last. One call at a time."""

    _base: str = field(default="", init=False)
    _digest: str = field(default="", init=False)
    _module: nn.Module | None = field(default=None, init=False)

    def holds(self, base: TrainingBase, digest: str) -> bool:
        """Whether these weights are there already."""
        return (self._base, self._digest) == (base.name, digest)

    def load(self, base: TrainingBase, digest: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over weights by the names of the base's own."""
        module = (
            self._module if self._module is not None and self._base == base.name else base.build()
        )
        self._base, self._digest = base.name, ""
        for name, parameter in module.named_parameters():
            parameter.data = weights[name]
        self._module, self._digest = module, digest

    def score(self, prompt: tuple[int, ...]) -> torch.Tensor:
        """float32 [N] at temperature 1; NaN for the first token, which nothing comes before."""
        assert self._module is not None, "load comes first"
        nothing = torch.full((1,), torch.nan)
        if len(prompt) == 1:
            return nothing
        scored = (0, *([1] * (len(prompt) - 1)))
        row = build_sequence_row([SequenceTokens(token_ids=prompt, scored=scored)])
        with torch.no_grad():
            found = token_logprobs(self._module, row).logprobs_C
        return torch.cat((nothing, found.float()))

    def distributions(self, tokens: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """Logprobs float32 [N - 1, V]: row i is of the token that comes after tokens 0 to i."""
        assert self._module is not None, "load comes first"
        with torch.no_grad():
            logits_NV = self._module(torch.tensor([tokens[:-1]]), use_cache=False).logits[0].float()
            return torch.log_softmax(logits_NV / temperature, dim=-1)


def wants_scores(call: SampleCall) -> bool:
    """Whether anything beside what the engine draws was asked for."""
    return bool(call.prompt_logprobs or call.top_prompt or call.top_sampled or call.targets)


def add_scores(scorer: PromptScorer, call: SampleCall, answer: SampleAnswer) -> SampleAnswer:
    """The answer with what was asked for beside the completions. The prompt's are of temperature 1.

    Those of completions are of the call's temperature (1 for 0) before ``top_k`` and ``top_p`` cut anything off.
    """
    found: dict[str, Any] = {}
    if call.prompt_logprobs:
        logprobs_N = scorer.score(call.prompt)
        logprobs_N[: len(call.prompt) - call.last_n if call.last_n else 0] = torch.nan
        found["prompt_logprobs"] = logprobs_N.numpy().astype("<f4").tobytes()
    if call.top_prompt or call.targets:
        found |= _prompt_scores(scorer, call)
    if call.top_sampled:
        found["sequences"] = tuple(_with_top(scorer, call, one) for one in answer.sequences)
    return msgspec.structs.replace(answer, **found)


def _prompt_scores(scorer: PromptScorer, call: SampleCall) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(call.prompt) > 1:
        logprobs_NV = scorer.distributions(call.prompt)
    else:
        logprobs_NV = torch.zeros((0, max(call.top_prompt, 1)))
    if call.top_prompt:
        blank = len(call.prompt) - call.last_n if call.last_n else 1
        found["top_prompt"] = _top(logprobs_NV[blank - 1 :], call.top_prompt, blank=blank)
    if call.targets is not None:
        shape = call.targets.shape
        ids_NK = torch.from_numpy(np.frombuffer(call.targets.data, "<i8").reshape(shape).copy())
        picked_NK = logprobs_NV.gather(1, ids_NK.clamp(min=0)).masked_fill(ids_NK < 0, 0.0)
        data = picked_NK.contiguous().numpy().astype("<f4").tobytes()
        found["targets"] = CallTensor("float32", shape, data)
    return found


def _with_top(scorer: PromptScorer, call: SampleCall, one: SampledSequence) -> SampledSequence:
    tokens = np.frombuffer(one.tokens, "<i4").tolist()
    if not tokens:
        return one
    logprobs_NV = scorer.distributions((*call.prompt, *tokens), call.temperature or 1.0)
    top = _top(logprobs_NV[len(call.prompt) - 1 :], call.top_sampled, blank=0)
    return msgspec.structs.replace(one, top=top)


def _top(logprobs_TV: torch.Tensor, k: int, *, blank: int) -> TopTokens:
    """The most likely tokens, behind ``blank`` places without any."""
    values_TK, ids_TK = torch.topk(logprobs_TV, k, dim=-1)
    none_ids = np.full((blank, k), NO_TOKEN, "<i4")
    none_logprobs = np.full((blank, k), NO_LOGPROB, "<f4")
    ids = np.concatenate([none_ids, ids_TK.numpy().astype("<i4")])
    logprobs = np.concatenate([none_logprobs, values_TK.numpy().astype("<f4")])
    return TopTokens(k=k, ids=ids.tobytes(), logprobs=logprobs.tobytes())
