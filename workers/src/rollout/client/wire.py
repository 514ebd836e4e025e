"""Losses and completions in the protocol buffers that the service reads and writes; everything else is JSON.

Raises UnansweredError for an answer that is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rollout.client.answers import (
    DrawnSequence,
    ForwardBackwardOutput,
    SampleResponse,
    TopkLogprobs,
)
from rollout.client.data import Datum, TensorData
from rollout.client.errors import UnansweredError
from rollout.service.wire.schema import FLOAT32, INT64, STOPPED, WIRE

CALL_DATA_MAX = 1024
CALL_BYTES_MAX = 5_000_000
"""Bounds of one call; more data are several calls, whose gradients add up. The `tinker` client divides in the same places."""


def plan_calls(data: Sequence[Datum]) -> Iterator[Sequence[Datum]]:
    """The data of each call, in order. Raises ValueError for no data."""
    if not data:
        raise ValueError("data: expected one sequence or more, got none")
    part: list[Datum] = []
    held = 0
    for datum in data:
        size = _num_bytes(datum)
        if part and (held + size > CALL_BYTES_MAX or len(part) == CALL_DATA_MAX):
            yield part
            part, held = [], 0
        part.append(datum)
        held += size
    yield part


def build_loss_call(
    data: Sequence[Datum], loss: str, config: Mapping[str, float | str] | None, *, backward: bool
) -> Any:
    """A call without its place, as a message."""
    message = WIRE["ForwardBackwardRequest"](loss_fn=loss, forward_only=not backward)
    for name, value in (config or {}).items():
        said = message.loss_fn_config_v2.add(key=name).value
        if isinstance(value, str):
            said.text = value
        else:
            said.number = value
    for datum in data:
        _add_datum(message.data.add(), datum)
    return message


def parse_loss(body: bytes, chain: str) -> ForwardBackwardOutput:
    """The answer to a loss."""
    message = _parse("ForwardBackwardOutput", body)
    return ForwardBackwardOutput(
        loss_fn_outputs=[one for record in message.loss_fn_outputs for one in _outputs(record)],
        metrics={one.key: one.value for one in message.metrics},
        loss_fn_output_type=message.loss_fn_output_type,
        chain=chain,
    )


def parse_samples(body: bytes, ids: Sequence[str]) -> SampleResponse:
    """The answer to a sampling call, whose completions have these ids."""
    message = _parse("SampleResponse", body)
    prompt = message.prompt_logprobs if message.HasField("prompt_logprobs") else None
    return SampleResponse(
        sequences=[
            DrawnSequence(
                stop_reason="stop" if one.stop_reason == STOPPED else "length",
                sequence_id=name,
                tokens_np=np.frombuffer(one.tokens, dtype="<i4"),
                logprobs_np=np.frombuffer(one.logprobs, dtype="<f4"),
                topk_logprobs_np=_top(one, "topk_sampled_logprobs"),
            )
            for name, one in zip(ids, message.sequences, strict=True)
        ],
        prompt_logprobs_np=None if prompt is None else np.frombuffer(prompt, dtype="<f4"),
        topk_prompt_logprobs_np=_top(message, "topk_prompt_logprobs"),
        target_prompt_logprobs=_targets(message),
    )


def _top(message: Any, name: str) -> TopkLogprobs | None:
    if not message.HasField(name):
        return None
    found = getattr(message, name)
    shape = (found.length, found.k)
    return TopkLogprobs(
        token_ids=np.frombuffer(found.token_ids, dtype="<i4").reshape(shape),
        logprobs=np.frombuffer(found.logprobs, dtype="<f4").reshape(shape),
    )


def _targets(message: Any) -> TensorData | None:
    if not message.HasField("target_prompt_logprobs"):
        return None
    found = message.target_prompt_logprobs
    return TensorData(np.frombuffer(found.dense, dtype="<f4"), "float32", tuple(found.shape))


def join_losses(parts: Sequence[ForwardBackwardOutput]) -> ForwardBackwardOutput:
    """One answer for the calls of one batch; the chain is the last's."""
    if len(parts) == 1:
        return parts[0]
    return ForwardBackwardOutput(
        loss_fn_outputs=[one for part in parts for one in part.loss_fn_outputs],
        metrics=_join_metrics([part.metrics for part in parts]),
        loss_fn_output_type=parts[-1].loss_fn_output_type,
        chain=parts[-1].chain,
    )


def _join_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums of ``:sum``, the largest of ``:max``, every ``:unique`` with its number behind it; of all else the last."""
    joined = dict(parts[-1])
    for name in parts[-1]:
        values = [part[name] for part in parts if name in part]
        if name.endswith(":sum"):
            joined[name] = sum(values)
        elif name.endswith(":max"):
            joined[name] = max(values)
        elif name.endswith(":unique"):
            numbered = {f"{name}_{i}": value for i, value in enumerate(values) if i}
            joined |= {name: values[0], **numbered}
    return joined


def _num_bytes(datum: Datum) -> int:
    inputs = sum(one.to_numpy().nbytes for one in datum.loss_fn_inputs.values())
    return 4 * datum.model_input.length + inputs


def _add_datum(message: Any, datum: Datum) -> None:
    for chunk in datum.model_input.chunks:
        tokens = np.asarray(chunk.tokens, dtype="<i4")
        message.model_input.add().encoded_text.tokens = tokens.tobytes()
    for name, values in datum.loss_fn_inputs.items():
        tensor = message.loss_fn_inputs.add(key=name).value
        tensor.dense = values.to_numpy().tobytes()
        tensor.dtype = INT64 if values.dtype == "int64" else FLOAT32
        tensor.shape.extend(values.shape)


def _outputs(record: Any) -> Iterator[Mapping[str, TensorData]]:
    fields = {
        one.key: (
            np.frombuffer(one.value.data, dtype="<f4" if one.value.dtype == FLOAT32 else "<i8"),
            np.frombuffer(one.value.offsets, dtype="<i8"),
        )
        for one in record.fields
    }
    for i in range(record.num_datums):
        yield {
            name: TensorData.from_numpy(
                values[offsets[i] // values.itemsize : offsets[i + 1] // values.itemsize]
            )
            for name, (values, offsets) in fields.items()
        }


def _parse(kind: str, body: bytes) -> Any:
    message = WIRE[kind]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise UnansweredError(f"the answer is no {kind}: {error}; is this the service?") from error
    return message
