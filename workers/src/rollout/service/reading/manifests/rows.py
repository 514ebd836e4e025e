"""From a datum of a call back to a row: which of its tokens are the prompt, which the answer.

Refuses what no row of a manifest's data says: targets that are not the next tokens, weights of their own for single tokens.

Axes: N tokens of a datum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout.rendering.plain import PlainRenderer
from rollout.service.calls import CallDatum
from rollout.service.reading.manifests.loop import LoopRefused
from rollout.types import Message

DTYPES = {"float32": "<f4", "int64": "<i8"}
SPREAD_MAX = 1e-3
"""Values of one row are equal up to this share of the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedRow:
    """``value``: what weighs each token of the answer, a weight or an advantage."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowText:
    """A row as a manifest's data have it; ``same``: encoded again, it is the recorded tokens, or but for an end token behind them."""

    prompt: str
    answer: str
    same: bool
    adds_end: bool


def read_supervised(where: str, datum: CallDatum) -> LearnedRow | None:
    """A row of cross entropy; None where no token of it counts. Raises LoopRefused."""
    weights = _input(datum, "weights")
    if weights is None:
        weights = np.ones(len(datum.tokens) // 4, dtype=np.float32)
    if (weights < 0).any():
        raise LoopRefused(
            f"{where}: it has weights below 0, as the gradient of a loss of the client's own has"
        )
    return _row(where, datum, weights != 0, weights, "weights")


def read_policy(where: str, datum: CallDatum) -> LearnedRow | None:
    """A row of a policy's loss; None where no token of it counts. Raises LoopRefused."""
    logprobs, advantages = _input(datum, "logprobs"), _input(datum, "advantages")
    assert logprobs is not None and advantages is not None, "the call was answered"
    scored = (logprobs != 0) | (advantages != 0)
    if (
        scored.any() and not advantages.any()
    ):  # a certain token between others has the logprob 0, too
        places = np.flatnonzero(scored)
        scored[places[0] : places[-1] + 1] = True
    return _row(where, datum, scored, advantages, "advantages")


def write_row(renderer: PlainRenderer, row: LearnedRow) -> RowText:
    """Texts with special tokens written out, so that a plain renderer reads the same ids from them."""
    end, prefix = renderer.stop_token_ids[0], renderer.prefix
    ends = row.answer[-1:] == (end,)
    prompt = row.prompt[len(prefix) :] if row.prompt[: len(prefix)] == prefix else row.prompt
    asked, said = (
        renderer.tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False)
        for ids in (prompt, row.answer[:-1] if ends else row.answer)
    )
    messages = (Message(role="user", content=asked), Message(role="assistant", content=said))
    again = renderer.render_training(messages)[0]
    wanted = row.prompt + row.answer
    return RowText(
        prompt=asked,
        answer=said,
        same=again in (wanted, (*wanted, end)),
        adds_end=not ends,
    )


def _row(
    where: str, datum: CallDatum, scored: np.ndarray, values: np.ndarray, name: str
) -> LearnedRow | None:
    places = np.flatnonzero(scored)
    if not len(places):
        return None
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 != len(places):
        raise LoopRefused(
            f"{where}: tokens that count lie in several places; a row has one answer, at its end"
        )
    tokens, targets = np.frombuffer(datum.tokens, "<i4"), _input(datum, "target_tokens")
    assert targets is not None, "the call was answered"
    if (targets[first:last] != tokens[first + 1 : last + 1]).any():
        raise LoopRefused(f"{where}: targets are not the tokens that follow; a row's are")
    inside = values[first : last + 1].astype(np.float64)
    if np.ptp(inside) > SPREAD_MAX * np.abs(inside).max():
        raise LoopRefused(
            f"{where}: {name} differ within one answer (from {inside.min():.4g} to {inside.max():.4g}), as those of a"
            " loss or a critic of the client's own do"
        )
    return LearnedRow(
        prompt=tuple(tokens[: first + 1].tolist()),
        answer=tuple(int(one) for one in targets[first : last + 1]),
        value=float(inside.mean()),
    )


def _input(datum: CallDatum, name: str) -> np.ndarray | None:
    tensor = datum.inputs.get(name)
    if tensor is None:
        return None
    if len(tensor.shape) != 1 or tensor.dtype not in DTYPES:
        raise LoopRefused(
            f"loss_fn_inputs.{name}: {tensor.dtype} of shape {list(tensor.shape)}; a row has one number for each token"
        )
    return np.frombuffer(tensor.data, DTYPES[tensor.dtype])
