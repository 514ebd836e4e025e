"""The hash chain of a model: equal after call n only where calls 1 to n were the same and came to the same.

    h_0 = H(base, adapter, state that it begins from)
    h_n = H(h_{n-1}, n, call, answer, state)

``state`` covers the trained weights, the optimizer's moments, the gradient that is gathered and not applied yet, and names that are taken.
"""

from __future__ import annotations

from blake3 import blake3

HEAD_BITS = 48
"""So many bits of a hash are a whole number that a float64 holds exactly: metrics of clients are floats."""


def first_chain(base_digest: str, adapter: bytes, start: bytes) -> str:
    """``h_0``; ``adapter`` is how it was asked for, with its seed, empty where all weights are trained; ``start`` is empty for a model as new."""
    return _hash(b"rollout-service-1", base_digest.encode(), adapter, start)


def next_chain(previous: str, seq: int, *, call: str, answer: str, state: str) -> str:
    """``h_n`` from digests."""
    return _hash(*(part.encode() for part in (previous, str(seq), call, answer, state)))


def chain_head(chain: str) -> float:
    """The first 48 bits of a chain value as a number."""
    return float(int(chain.partition(":")[2][: HEAD_BITS // 4], 16))


def _hash(*parts: bytes) -> str:
    hasher = blake3()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return f"blake3:{hasher.hexdigest()}"
