"""What a call must look like before anything is computed: a refusal names the datum, the field, the value and the fix.

A call that passes can still meet a loss or a gradient that is not finite; that is found where it is computed.

Axes: N tokens of a datum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollout.service.calls import CallDatum, CallTensor, ForwardBackward, OptimStep
from rollout.service.refusals import CallRefused
from rollout.service.training.losses import LOSSES, UNOFFERED, TokenLoss

DATA_MAX = 4096
"""Sequences of one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDatum:
    """Int64 ``tokens`` and ``targets`` [N]; float32 ``inputs`` [N] by name."""

    tokens: np.ndarray
    targets: np.ndarray
    inputs: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLoss:
    """A call that can be computed: its loss with all settings, and its sequences."""

    loss: TokenLoss
    config: dict[str, float]
    data: tuple[CheckedDatum, ...]


def check_loss(call: ForwardBackward, *, vocab: int, context: int) -> CheckedLoss:
    """The call, ready to compute. Raises CallRefused."""
    loss = LOSSES.get(call.loss)
    if loss is None:
        why = f" ({UNOFFERED[call.loss]})" if call.loss in UNOFFERED else ""
        raise CallRefused(
            f"loss_fn: {call.loss!r} is not offered{why}; there are {', '.join(LOSSES)}. Any other loss of"
            " logprobs can be a function of yours: forward_backward_custom"
        )
    if not 0 < len(call.data) <= DATA_MAX:
        raise CallRefused(
            f"data: expected 1 to {DATA_MAX} sequences in a call, got {len(call.data)}"
        )
    config = _check_config(call, loss)
    data = tuple(
        _check_datum(f"data[{i}]", datum, loss, vocab=vocab, context=context)
        for i, datum in enumerate(call.data)
    )
    return CheckedLoss(loss=loss, config=config, data=data)


def check_step(call: OptimStep) -> None:
    """Raise CallRefused for numbers that no step of AdamW has."""
    bounds = {
        "learning_rate": (0.0, math.inf),
        "beta1": (0.0, 1.0),
        "beta2": (0.0, 1.0),
        "eps": (0.0, math.inf),
        "weight_decay": (0.0, math.inf),
        "grad_clip_norm": (0.0, math.inf),
    }
    for name, (low, high) in bounds.items():
        value = getattr(call, name)
        if not low <= value < high:
            raise CallRefused(
                f"adam_params.{name}: expected {low:g} <= value < {high:g}, got {value}"
            )


def _check_config(call: ForwardBackward, loss: TokenLoss) -> dict[str, float]:
    config = dict(loss.defaults)
    for name, value in call.config.items():
        if name not in config:
            known = ", ".join(config) or "none"
            raise CallRefused(
                f"loss_fn_config.{name}: {call.loss} has no such setting; it has {known}: leave it out"
            )
        if isinstance(value, str) or not math.isfinite(value):
            raise CallRefused(f"loss_fn_config.{name}: expected a finite number, got {value!r}")
        config[name] = value
    if config.get("beta", 0.0) < 0:
        raise CallRefused(f"loss_fn_config.beta: expected 0 or more, got {config['beta']:g}")
    low, high = (config.get(f"clip_{end}_threshold", 1.0) for end in ("low", "high"))
    if not 0 <= low <= 1 <= high:
        raise CallRefused(
            "loss_fn_config: expected 0 <= clip_low_threshold <= 1 <= clip_high_threshold (bounds of the"
            f" ratio, not distances from 1), got {low:g} and {high:g}"
        )
    return config


def _check_datum(
    where: str, datum: CallDatum, loss: TokenLoss, *, vocab: int, context: int
) -> CheckedDatum:
    tokens = np.frombuffer(datum.tokens, dtype="<i4").astype(np.int64)
    if not 0 < len(tokens) <= context:
        raise CallRefused(
            f"{where}.model_input: expected 1 to {context} tokens, which the base model can see at once,"
            f" got {len(tokens)}"
        )
    _check_tokens(f"{where}.model_input", tokens, vocab)
    targets = _read(where, "target_tokens", datum, len(tokens), "int64")
    _check_tokens(f"{where}.loss_fn_inputs.target_tokens", targets, vocab)
    names = [*loss.needs, *(name for name in loss.may if name in datum.inputs)]
    extra = sorted(set(datum.inputs) - {"target_tokens", *names})
    if extra:
        raise CallRefused(
            f"{where}.loss_fn_inputs.{extra[0]}: this loss reads {', '.join(('target_tokens', *loss.needs, *loss.may))}"
            " only; leave it out"
        )
    inputs = {name: _read(where, name, datum, len(tokens), "float32") for name in names}
    for name, values in inputs.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise CallRefused(
                f"{where}.loss_fn_inputs.{name}[{bad[0]}]: expected a finite number, got {values[bad[0]]}"
            )
    return CheckedDatum(tokens=tokens, targets=targets, inputs=inputs)


def _check_tokens(where: str, tokens: np.ndarray, vocab: int) -> None:
    bad = np.flatnonzero((tokens < 0) | (tokens >= vocab))
    if len(bad):
        raise CallRefused(
            f"{where}[{bad[0]}]: token {tokens[bad[0]]} is outside the vocabulary of {vocab}; use the"
            " tokenizer of the base model"
        )


def _read(where: str, name: str, datum: CallDatum, length: int, dtype: str) -> np.ndarray:
    """One input as int64 or float32 [N]."""
    tensor = datum.inputs.get(name)
    field = f"{where}.loss_fn_inputs.{name}"
    if tensor is None:
        raise CallRefused(f"{field}: this loss needs it; give one value for each input token")
    values = read_tensor(field, tensor)
    if len(values) != length:
        raise CallRefused(
            f"{field}: expected {length} values, one for each token of model_input, got {len(values)}"
        )
    if dtype == "int64" and values.dtype != np.int64:
        raise CallRefused(f"{field}: expected int64 token ids, got {tensor.dtype}")
    return values.astype(dtype, copy=False)


def read_tensor(field: str, tensor: CallTensor) -> np.ndarray:
    """A tensor of one axis. Raises CallRefused for another shape, or bytes that do not fill it."""
    kind = np.dtype("<f4") if tensor.dtype == "float32" else np.dtype("<i8")
    if len(tensor.shape) != 1:
        raise CallRefused(
            f"{field}: expected one axis, a value for each input token, got shape {list(tensor.shape)}:"
            " several targets a position are not offered"
        )
    if len(tensor.data) != tensor.shape[0] * kind.itemsize:
        raise CallRefused(
            f"{field}: expected {tensor.shape[0] * kind.itemsize} bytes for shape {list(tensor.shape)},"
            f" got {len(tensor.data)}"
        )
    return np.frombuffer(tensor.data, dtype=kind)
