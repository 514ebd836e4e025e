"""How a trajectory becomes bytes: its canonical form, its name, and the bodies the ledger keeps.

Canonical bytes are msgpack of the dataclass in field order with sorted maps, numbers coerced to their
declared type and ``timings`` left out: equal content has equal bytes, and so an equal name, wherever
and however fast it was made. Bodies keep the timings and are compressed, one body per group, because
the samples of a group share their prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import zstandard
from blake3 import blake3

from rollout.errors import LedgerError
from rollout.types import Trajectory

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(tuple[Trajectory, ...])

BODY_LEVEL = 1
"""zstd level: bodies are written on the critical path of a step."""

BODY_BYTES_MAX = 1 << 30
"""Largest decompressed body that is believed."""


def canonical_bytes(trajectory: Trajectory) -> bytes:
    """The bytes that name a trajectory; ``timings`` never enter."""
    bare = replace(
        trajectory,
        timings={},
        reward=float(trajectory.reward),
        rewards={source: float(value) for source, value in trajectory.rewards.items()},
        actor_logprobs=tuple(map(float, trajectory.actor_logprobs)),
    )
    return _encoder.encode(bare)


def name_trajectory(trajectory: Trajectory) -> str:
    """``blake3:<64 hex>`` of the canonical bytes."""
    return f"blake3:{blake3(canonical_bytes(trajectory)).hexdigest()}"


def encode_body(trajectories: Sequence[Trajectory]) -> bytes:
    """Compressed body of one group, timings included."""
    # A compressor object is not safe to share between threads, and costs next to nothing to make.
    compressor = zstandard.ZstdCompressor(level=BODY_LEVEL)
    return compressor.compress(_encoder.encode(tuple(trajectories)))


def decode_body(body: bytes) -> tuple[Trajectory, ...]:
    """The group of one body. Raises LedgerError when the bytes are not one."""
    try:
        plain = zstandard.ZstdDecompressor().decompress(body, max_output_size=BODY_BYTES_MAX)
        return _decoder.decode(plain)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise LedgerError(
            f"a stored trajectory body of {len(body)} bytes cannot be read: {error};"
            " restore the ledger from a copy"
        ) from error
