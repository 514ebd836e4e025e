"""How a trajectory becomes bytes: its canonical form, its name, and the bodies the ledger keeps.

Canonical bytes are a msgpack array of the fields in a fixed order with sorted maps, numbers coerced to
their declared type, ``timings``, ``costs`` and ``retokenised`` left out: equal content has equal bytes, and so an equal name, wherever
and however fast it was made. Bodies keep the timings and are compressed, one body per group, because
the samples of a group share their prompt.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import zstandard
from blake3 import blake3

from rollout.common.bounded import unpack_zstd
from rollout.errors import LedgerError
from rollout.types import Branch, ExpertRoutes, Prefix, Trajectory, VersionSpan

T = TypeVar("T")

DIGEST_SHOWN = len("blake3:") + 12
"""Characters of a digest that people are shown: enough to tell those of one run apart."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_local = threading.local()
_decoder = msgspec.msgpack.Decoder(tuple[Trajectory, ...])
_prefixes = msgspec.msgpack.Decoder(tuple[Prefix, ...])


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """What a person reads of a trajectory: a body is gone through without making its tokens."""

    sample: int
    """``Trajectory.sample``."""
    text: str = ""
    """The policy's last reply."""
    prompt_text: str = ""
    """The messages before the first reply."""
    answer: str = ""
    """The row's reference answer; empty where it has none."""


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory without what it has for each token; fields as in ``Trajectory``."""

    ordinal: int
    """The task's place in data order."""
    sample: int
    """Place in the group."""
    rewards: Mapping[str, float]
    """Value of each reward source before weighting."""
    reward: float
    """Weighted sum of ``rewards``."""
    ending: str
    """How the episode ended."""
    text: str = ""
    """The policy's last reply."""
    prompt_text: str = ""
    """The messages before the first reply."""
    answer: str = ""
    """The row's reference answer; empty where it has none."""
    plugins: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Digests of the plugins that played and scored it, by path; unset where they do not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What a trajectory of N tokens has for each of them, in 17 bytes a token instead of objects; of its first row."""

    prompt_ids: array[int]
    """int64, the prompt's own length."""
    token_ids: array[int]
    """int64 [N]."""
    actor_logprobs: array[float]
    """float64 [N], in nats."""
    loss_mask: bytes
    """A byte of 0 or 1 for each token [N]."""
    spans: tuple[VersionSpan, ...]
    """Which weight version sampled which tokens."""
    num_rows: int = 1
    """Rows of the whole trajectory."""


class _Numbered(msgspec.Struct, frozen=True, kw_only=True):
    sample: int


class _Lists(msgspec.Struct, frozen=True, kw_only=True):
    """The lists of a trajectory where they lie, to make one at a time."""

    prompt_ids: msgspec.Raw
    token_ids: msgspec.Raw
    actor_logprobs: msgspec.Raw
    loss_mask: msgspec.Raw
    spans: tuple[VersionSpan, ...]
    branches: tuple[msgspec.Raw, ...] = ()


_texts = msgspec.msgpack.Decoder(tuple[Texts, ...])
_parts = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])
_numbered = msgspec.msgpack.Decoder(_Numbered)
_one = msgspec.msgpack.Decoder(Trajectory)
_outline = msgspec.msgpack.Decoder(Outline)
_lists = msgspec.msgpack.Decoder(_Lists)
_ints = msgspec.msgpack.Decoder(tuple[int, ...])
_floats = msgspec.msgpack.Decoder(tuple[float, ...])

BODY_LEVEL = 1
"""zstd level: bodies are written on the critical path of a step."""

BODY_BYTES_MAX = 1 << 30
"""Largest decompressed body that is believed."""


FORM, ROUTED_FORM, BRANCHED_FORM, WRITING_FORM = 1, 2, 3, 4
"""First element of the canonical array: another order of fields gets another number. The second ends with routes, the
third with routes or nil, and behind them the further rows, the fourth with both or nil, and behind them the writes into
memory."""


def canonical_bytes(trajectory: Trajectory) -> bytes:
    """The bytes that name a trajectory; ``timings`` never enter."""
    t = trajectory
    is_plain = t.routes is msgspec.UNSET and t.branches is t.memory is msgspec.UNSET
    form, more = (FORM, ()) if is_plain else _form_of(t)
    fields: tuple[Any, ...] = (
        form,
        t.ordinal,
        t.sample,
        *_row_fields(t),
        {source: float(value) for source, value in t.rewards.items()},
        float(t.reward),
        t.ending,
        t.text,
        t.prompt_text,
        t.answer,
        *more,
    )
    return _encoder.encode(fields)


def _form_of(t: Trajectory) -> tuple[int, tuple[Any, ...]]:
    """The form of a trajectory with routes, further rows or writes into memory, and what stands at its end."""
    routes = _route_fields(t.routes)
    branches = (
        None
        if isinstance(t.branches, msgspec.UnsetType)
        else [(*_row_fields(row), _route_fields(row.routes)) for row in t.branches]
    )
    if not isinstance(t.memory, msgspec.UnsetType):
        writes = [(write.key, write.value, write.vector) for write in t.memory]
        return WRITING_FORM, (routes, branches, writes)
    return (ROUTED_FORM, (routes,)) if branches is None else (BRANCHED_FORM, (routes, branches))


def _row_fields(row: Trajectory | Branch) -> tuple[Any, ...]:
    return (
        row.prompt_ids,
        row.token_ids,
        tuple(map(float, row.actor_logprobs)),
        row.loss_mask,
        [(span.start, span.end, span.lineage, span.step) for span in row.spans],
    )


def _route_fields(
    routes: ExpertRoutes | msgspec.UnsetType,
) -> tuple[int, int, bool, bytes] | None:
    if isinstance(routes, msgspec.UnsetType):
        return None
    return routes.num_layers, routes.top_k, routes.wide, routes.chosen


def name_trajectory(trajectory: Trajectory) -> str:
    """``blake3:<64 hex>`` of the canonical bytes."""
    return f"blake3:{blake3(canonical_bytes(trajectory)).hexdigest()}"


def encode_trajectories(trajectories: Sequence[Trajectory]) -> bytes:
    """What the body of one group holds, timings included, as it is sent and before it is compressed."""
    return _encoder.encode(tuple(trajectories))


def encode_body(trajectories: Sequence[Trajectory]) -> bytes:
    """Compressed body of one group."""
    return compress_body(encode_trajectories(trajectories))


def encode_prefixes(prefixes: Sequence[Prefix]) -> bytes:
    """Compressed beginnings of one group's samples; empty when there are none."""
    return compress_body(_encoder.encode(tuple(prefixes))) if prefixes else b""


def compress_body(content: bytes) -> bytes:
    """A body of what ``encode_trajectories`` gave."""
    # A compressor must not be shared between threads, and making one costs more than using it.
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(level=BODY_LEVEL)
    return compressor.compress(content)


def decode_body(body: bytes) -> tuple[Trajectory, ...]:
    """The group of one body. Raises LedgerError when the bytes are not one."""
    return _decompress(body, _decoder)


def decode_texts(body: bytes) -> tuple[Texts, ...]:
    """The texts of one body's group. Raises LedgerError when the bytes are not one."""
    return _decompress(body, _texts)


def decode_sample(body: bytes, sample: int) -> Trajectory | None:
    """One sample of a body's group, in the memory of that one; None where it has none. Raises LedgerError."""
    return _pick(body, sample, _one.decode)


def decode_outline(body: bytes, sample: int) -> Outline | None:
    """One sample of a body's group without its tokens; None where it has none. Raises LedgerError."""
    return _pick(body, sample, _outline.decode)


def decode_columns(body: bytes, sample: int) -> Columns | None:
    """The tokens of one sample of a body's group; None where it has none. Raises LedgerError."""
    return _pick(body, sample, _columns)


def _columns(part: msgspec.Raw) -> Columns:
    lists = _lists.decode(part)
    return Columns(
        prompt_ids=array("q", _ints.decode(lists.prompt_ids)),
        token_ids=array("q", _ints.decode(lists.token_ids)),
        actor_logprobs=array("d", _floats.decode(lists.actor_logprobs)),
        loss_mask=bytes(_ints.decode(lists.loss_mask)),
        spans=lists.spans,
        num_rows=1 + len(lists.branches),
    )


def _pick(body: bytes, sample: int, make: Callable[[msgspec.Raw], T]) -> T | None:
    """What ``make`` gives of one sample's part of a body."""
    with _damage_told(body):
        for part in _parts.decode(unpack_zstd(body, BODY_BYTES_MAX)):
            if _numbered.decode(part).sample == sample:
                return make(part)
    return None


def decode_prefixes(body: bytes) -> tuple[Prefix, ...]:
    """What ``encode_prefixes`` was given. Raises LedgerError when the bytes are something else."""
    return _decompress(body, _prefixes) if body else ()


def _decompress(body: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    with _damage_told(body):
        return decoder.decode(unpack_zstd(body, BODY_BYTES_MAX))


@contextmanager
def _damage_told(body: bytes) -> Iterator[None]:
    try:
        yield
    except (ValueError, OverflowError, RecursionError) as error:
        raise LedgerError(
            f"a stored trajectory body of {len(body)} bytes cannot be read: {error};"
            " restore the ledger from a copy"
        ) from error
