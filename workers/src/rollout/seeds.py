"""Where every random number of a run comes from.

Noise for a sample = H(spec seed, domain, task ordinal, sample index, turn, segment). The run's name,
its UID and the actor that happens to generate never enter, and a retry keeps its noise.
"""

from __future__ import annotations

import hashlib
import struct


def derive_seed(
    seed: int, domain: str, ordinal: int, sample: int = 0, turn: int = 0, segment: int = 0
) -> int:
    """A 63-bit seed for one stream of noise.

    ``domain`` keeps uses apart: ``"train"``, ``"eval/<name>/<step>"``, ``"shuffle"``, ``"init"``.
    """
    key = struct.pack("<5q", seed, ordinal, sample, turn, segment)
    digest = hashlib.blake2b(key, digest_size=8, person=b"rollout-noise", salt=_salt(domain))
    return int.from_bytes(digest.digest(), "little") >> 1


def _salt(domain: str) -> bytes:
    return hashlib.blake2b(domain.encode(), digest_size=16).digest()
