"""The hash chain of a run: one value that two runs share only if they are equal.

    h_0 = H(spec digest, initial version)
    h_k = H(h_{k-1}, spec digest, k, cursor, ordered tokens, version, state)

``version`` is the digest of the weights that actors will serve, ``state`` covers the rest on every rank:
optimizer, RNG, the fp32 masters where they are not what is served, a critic with its optimizer, and the
KL coefficient. Between the steps at which it is
computed (``numerics.hashEverySteps``) ``state`` is left out; weights and consumption are still chained.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

import torch
from blake3 import blake3
from msgspec import UnsetType

from rollout.learner.forward.packed_rows import SequenceTokens
from rollout.protocol.messages import Cursor
from rollout.types import Branch, Trajectory, TrajectoryGroup
from rollout.weights.device_hash.digest import device_digests
from rollout.weights.host import host_pieces

PARALLEL_BYTES_MIN = 1 << 26
"""Hash on several threads from this size on; below, starting them costs more."""


def first_link(spec_digest: str, version_digest: str) -> str:
    """``h_0``."""
    return _hash("rollout-chain-1", spec_digest, version_digest)


def next_link(
    previous: str,
    *,
    spec_digest: str,
    step: int,
    cursor: Cursor,
    tokens: str,
    version: str,
    state: str,
) -> str:
    """``h_k``; ``state`` is empty where the state was not hashed."""
    where = f"{step}|{cursor.next_ordinal}|{int(cursor.exhausted)}"
    return _hash(previous, spec_digest, where, tokens, version, state)


def digest_groups(groups: Sequence[TrajectoryGroup]) -> str:
    """Over what a step learns from, in order: tokens, masks, the actors' logprobs and the rewards; routes where there are any.

    Further rows of samples that have several come behind all that, each with its place.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    first = [((t.ordinal, t.sample), t, (t.reward,)) for t in trajectories]
    hasher = _hash_rows(blake3(), first)
    more = [
        ((t.ordinal, t.sample, place), row, ())
        for t in trajectories
        for place, row in enumerate(t.rows[1:], start=1)
    ]
    if more:
        hasher.update(b"branches" + len(more).to_bytes(8, "little"))
        _hash_rows(hasher, more)
    return hasher.hexdigest()


def _hash_rows(
    hasher: blake3, rows: Iterable[tuple[tuple[int, ...], Trajectory | Branch, tuple[float, ...]]]
) -> blake3:
    """Rows, each behind the numbers that say whose it is, and with its rewards."""
    integers, reals = array("q"), array("d")
    routes: list[bytes] = []
    for whose, row, rewards in rows:
        prompt, tokens = row.prompt_ids, row.token_ids
        integers.extend((*whose, len(prompt), len(tokens)))
        integers.extend(prompt)
        integers.extend(tokens)
        integers.extend(row.loss_mask)
        reals.extend(row.actor_logprobs)
        reals.extend(rewards)
        if not isinstance(row.routes, UnsetType):
            routes.append(row.routes.chosen)
    hasher.update(integers.tobytes()).update(reals.tobytes())
    for chosen in routes:
        hasher.update(len(chosen).to_bytes(8, "little")).update(chosen)
    return hasher


def digest_sequences(sequences: Iterable[SequenceTokens]) -> str:
    """Over token ids and targets, in order."""
    integers = array("q")
    for sequence in sequences:
        integers.append(len(sequence.token_ids))
        integers.extend(sequence.token_ids)
        integers.extend(sequence.scored)
    return blake3(integers.tobytes()).hexdigest()


def digest_state(tensors: Mapping[str, torch.Tensor], randomness: bytes) -> str:
    """Over one rank's tensors by name, and its RNG; hashed by the device that they lie on, where it can."""
    names = sorted(tensors)
    header = "".join(f"{n}|{tensors[n].dtype}|{tensors[n].shape}|" for n in names).encode()
    ordered = [tensors[name].detach() for name in names]
    found = device_digests([(randomness, header, *ordered)])
    if found is not None:
        return found[0].hex()
    size = sum(tensor.nbytes for tensor in ordered)
    hasher = blake3(max_threads=blake3.AUTO) if size >= PARALLEL_BYTES_MIN else blake3()
    hasher.update(randomness).update(header)
    for piece in host_pieces(ordered):
        hasher.update(piece)
    return hasher.hexdigest()


def join_ranks(digests: Sequence[str]) -> str:
    """One state digest from those of all ranks, by rank."""
    return _hash(*digests)


def _hash(*parts: str) -> str:
    hasher = blake3()
    for part in parts:
        hasher.update(f"{len(part)}|{part}".encode())
    return f"blake3:{hasher.hexdigest()}"
