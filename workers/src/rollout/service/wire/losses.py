"""A forward or backward call as it comes, and its answer as it goes: protocol buffers.

Raises CallRefused for what is no message, and names what a message carries that is not offered.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rollout.service.calls import (
    CallDatum,
    CallTensor,
    ForwardBackward,
    LossAnswer,
    SampleAnswer,
    TopTokens,
)
from rollout.service.refusals import CallRefused, not_offered
from rollout.service.wire.scanning import check_parts, place_of
from rollout.service.wire.schema import FLOAT32, INT64, STOPPED, TOO_LONG, WIRE

PROTOBUF_TYPE = "application/x-protobuf"
_DTYPES = {FLOAT32: "float32", INT64: "int64"}


def parse_forward_backward(body: bytes) -> tuple[str, int, ForwardBackward | CallRefused]:
    """Model, sequence id and call; a refusal where the call's content cannot be one.

    Raises CallRefused where not even model and sequence id can be read.
    """
    refusal = check_parts(body)
    message = WIRE["ForwardBackwardRequest"]()
    try:
        message.ParseFromString(body if refusal is None else place_of(body))
    except DecodeError as error:
        raise CallRefused(f"the body is no ForwardBackwardRequest: {error}") from error
    if refusal is not None:
        return message.model_id, message.seq_id, refusal
    try:
        call: ForwardBackward | CallRefused = _call(message)
    except CallRefused as error:
        call = error
    return message.model_id, message.seq_id, call


def render_loss(answer: LossAnswer, metrics: dict[str, float]) -> bytes:
    """A ForwardBackwardOutput."""
    output = WIRE["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord")
    record = output.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(answer.logprobs))
    for name, parts in (("logprobs", answer.logprobs), ("elementwise_loss", answer.losses)):
        sizes = np.array([0, *(len(part) for part in parts)], dtype="<i8")
        tensor = record.fields.add(key=name).value
        tensor.data, tensor.offsets = b"".join(parts), sizes.cumsum().astype("<i8").tobytes()
        tensor.dtype = FLOAT32
    for name, value in sorted(metrics.items()):
        output.metrics.add(key=name, value=value)
    return output.SerializeToString()


def render_samples(answer: SampleAnswer) -> bytes:
    """A SampleResponse."""
    response = WIRE["SampleResponse"]()
    for one in answer.sequences:
        sequence = response.sequences.add(
            stop_reason=STOPPED if one.stopped else TOO_LONG,
            tokens=one.tokens,
            logprobs=one.logprobs,
        )
        _add_top(sequence.topk_sampled_logprobs, one.top)
    _add_top(response.topk_prompt_logprobs, answer.top_prompt)
    if answer.targets is not None:
        tensor = response.target_prompt_logprobs
        tensor.dense, tensor.dtype = answer.targets.data, FLOAT32
        tensor.shape.extend(answer.targets.shape)
    if answer.prompt_logprobs:
        response.prompt_logprobs = answer.prompt_logprobs
    return response.SerializeToString()


def _add_top(field: Any, top: TopTokens | None) -> None:
    if top is not None:
        field.token_ids, field.logprobs, field.k = top.ids, top.logprobs, top.k
        field.length = len(top.ids) // (4 * top.k)


def _call(message: Any) -> ForwardBackward:
    config: dict[str, float | str] = {one.key: one.value for one in message.loss_fn_config}
    for one in message.loss_fn_config_v2:
        said = one.value
        config[one.key] = said.text if said.HasField("text") else said.number
    return ForwardBackward(
        loss=message.loss_fn,
        config=dict(sorted(config.items())),
        backward=not message.forward_only,
        data=tuple(_datum(f"data[{i}]", datum) for i, datum in enumerate(message.data)),
    )


def _datum(where: str, datum: Any) -> CallDatum:
    for chunk in datum.model_input:
        if not chunk.HasField("encoded_text"):
            raise not_offered(f"{where}.model_input: an image or sound", "send tokens")
    tokens = b"".join(chunk.encoded_text.tokens for chunk in datum.model_input)
    if len(tokens) % 4:
        raise CallRefused(f"{where}.model_input: expected int32 tokens, got {len(tokens)} bytes")
    inputs = {
        one.key: _tensor(f"{where}.loss_fn_inputs.{one.key}", one.value)
        for one in datum.loss_fn_inputs
    }
    return CallDatum(tokens=tokens, inputs=dict(sorted(inputs.items())))


def _tensor(where: str, tensor: Any) -> CallTensor:
    if tensor.HasField("sparse_csr"):
        raise not_offered(
            f"{where}: a sparse tensor, of several targets a position,", "send one axis"
        )
    if tensor.dtype not in _DTYPES:
        raise CallRefused(f"{where}: expected float32 or int64 numbers, got type {tensor.dtype}")
    size = 4 if tensor.dtype == FLOAT32 else 8
    shape = tuple(tensor.shape) or (len(tensor.dense) // size,)
    return CallTensor(dtype=_DTYPES[tensor.dtype], shape=shape, data=tensor.dense)  # pyrefly: ignore[bad-argument-type]
