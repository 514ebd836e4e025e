"""The protocol-buffer messages that clients send and read, built from a table of their fields.

Names and numbers are the wire's, as the client's own descriptors say them; fields that the service neither reads nor
writes are left out, and travel as unknown ones. No generated code, and no file of somebody else's.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "rollout.service.wire"

SCALARS = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
}

FLOAT32, INT64 = 1, 2
"""Types of numbers in a tensor."""
STOPPED, TOO_LONG = 0, 1
"""How a completion ended."""

MESSAGES: dict[str, str] = {
    "SparseCsr": "1 values bytes",
    "Tensor": "1 dense bytes optional; 2 sparse_csr SparseCsr; 3 dtype int32; 4 shape int64 repeated",
    "EncodedText": "1 tokens bytes",
    "Other": "1 data bytes",
    "Chunk": "1 encoded_text EncodedText; 2 image Other; 3 dmel Other",
    "LossInput": "1 key string; 2 value Tensor",
    "Datum": "1 model_input Chunk repeated; 2 loss_fn_inputs LossInput repeated",
    "LossSetting": "1 number double optional; 2 text string optional",
    "LossNumber": "1 key string; 2 value double",
    "NamedSetting": "1 key string; 2 value LossSetting",
    "ForwardBackwardRequest": (
        "1 model_id string; 2 seq_id int32; 3 data Datum repeated; 4 loss_fn string;"
        " 5 loss_fn_config LossNumber repeated; 6 forward_only bool; 7 loss_fn_config_v2 NamedSetting repeated"
    ),
    "BatchedTensor": "1 data bytes; 2 offsets bytes; 3 dtype int32; 4 trailing_shape int64 repeated",
    "NamedTensor": "1 key string; 2 value BatchedTensor",
    "ArrayRecord": "1 type_tag string; 2 fields NamedTensor repeated; 3 num_datums int64",
    "ForwardBackwardOutput": (
        "1 loss_fn_output_type string; 2 loss_fn_outputs ArrayRecord repeated; 3 metrics LossNumber repeated"
    ),
    "TopkLogprobs": "1 token_ids bytes; 2 logprobs bytes; 3 k uint32; 4 length uint32",
    "SampledSequence": (
        "1 stop_reason int32; 2 tokens bytes; 3 logprobs bytes optional; 4 topk_sampled_logprobs TopkLogprobs"
    ),
    "SampleResponse": (
        "1 sequences SampledSequence repeated; 2 prompt_logprobs bytes optional;"
        " 3 topk_prompt_logprobs TopkLogprobs; 5 target_prompt_logprobs Tensor"
    ),
}
"""By message: ``number name type [repeated | optional]``; a map is its entries, which is how maps travel."""


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="rollout_service.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split(";"):
            _add(message, *field.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


def _add(
    message: descriptor_pb2.DescriptorProto, number: str, name: str, kind: str, label: str = ""
) -> None:
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if label == "repeated" else field.LABEL_OPTIONAL
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    if label == "optional":
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


WIRE = _build()
"""Message classes by name."""
