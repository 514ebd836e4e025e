"""Whether a run fits, the nearest settings that do, and the longest sequence that a device takes.

Pure sums over ``memory``. Changes are tried from those that cost speed alone to those that change what is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollout_api.checks.accelerators.devices import actor_devices, learner_devices
from rollout_api.checks.accelerators.memory import (
    GIB,
    HEADROOM,
    Memory,
    estimate_learner,
    estimates,
    keeps_states,
    longest_tokens,
    offloaded_bytes,
)
from rollout_api.checks.accelerators.sharing import (
    FIELD,
    largest_share,
    least_bytes,
    least_share,
    share_of,
    taken,
)
from rollout_api.checks.facts import Facts, ModelFacts
from rollout_api.problems import Problem
from rollout_api.v1alpha1.model import Lora
from rollout_api.v1alpha1.run import RolloutRunSpec

TOKENS_MIN = 64
"""Of a pass: fewer are not worth a start of kernels."""

SEQUENCE_MAX = 1 << 21
"""Tokens up to which a longest sequence is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one device of this machine is asked to hold: ``memory`` bytes are there."""

    device: int
    memory: int
    held: tuple[Memory, ...]

    @property
    def total(self) -> int:
        """Bytes of all that it is asked to hold."""
        return sum(item.total for item in self.held)

    @property
    def fits(self) -> bool:
        """Whether that is within what a run may plan with."""
        return self.total <= self.memory * HEADROOM


def loads(spec: RolloutRunSpec, facts: Facts) -> tuple[Load, ...]:
    """Every device of this machine with what lies on it; none where model or devices are not known."""
    count, needed = len(facts.device_bytes), {item.role: item for item in estimates(spec, facts)}
    if not count or not needed:
        return ()
    held: list[list[Memory]] = [[] for _ in range(count)]
    for rank in range(spec.learner.num_processes):
        held[learner_devices(spec, count)[rank % count]].append(needed["learner"])
    if "actor" in needed:
        for index in range(max(1, spec.actors.replicas)):
            for device in actor_devices(spec, count, index):
                held[device].append(taken(spec, needed["actor"], facts.device_bytes[device]))
    return tuple(
        Load(device=device, memory=size, held=tuple(held[device]))
        for device, size in enumerate(facts.device_bytes)
    )


def model_fits(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Refuse what cannot fit the accelerator class (or, locally, this machine's devices, or without any its memory)."""
    if facts.platform == "local":
        yield from _fits_here(spec, facts)
        return
    for item in estimates(spec, facts):
        settings = spec.learner if item.role == "learner" else spec.actors
        name = settings.accelerator.class_name if settings.accelerator else None
        size = facts.accelerator_bytes.get(name) if name else None
        if size and item.total > size * HEADROOM:
            field = f"spec.{'learner' if item.role == 'learner' else 'actors'}.accelerator"
            advice = advise(spec, facts, room_of(size)) if item.role == "learner" else None
            yield _too_large(field, size, f"a {name}", (item,), advice)


def advise(spec: RolloutRunSpec, facts: Facts, room: int) -> tuple[Change, ...] | None:
    """``nearest_changes`` for the sequences of this run; None where the model is not known, too."""
    if facts.model is None or spec.train is None:
        return None
    return nearest_changes(
        spec, facts.model, longest_tokens(spec, facts), room, host_room=_host_room(facts)
    )


def learner_room(spec: RolloutRunSpec, facts: Facts) -> int:
    """Bytes that the fullest device of this machine leaves to its learner's rank; 0 without devices."""
    rooms = []
    for load in loads(spec, facts):
        others = [item for item in load.held if item.role != "learner"]
        ranks = len(load.held) - len(others)
        if ranks:
            rooms.append(room_of(load.memory, others) // ranks)
    return min(rooms, default=0)


def _fits_here(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    over = [load for load in loads(spec, facts) if not load.fits]
    if over:
        worst = max(over, key=lambda load: load.total - load.memory)
        where = f"device {worst.device} of this machine"
        advice = _share_out(spec, facts) or advise(spec, facts, learner_room(spec, facts))
        yield _too_large("spec.model", worst.memory, where, worst.held, advice)
    else:
        yield from _starts(spec, facts)
    yield from _host_takes(spec, facts)
    needed = () if facts.device_bytes else estimates(_offloading(spec, asked=False), facts)
    total = sum(item.total for item in needed)
    if facts.host_bytes and total > facts.host_bytes * HEADROOM:
        yield _too_large("spec.model", facts.host_bytes, "this machine", needed, None)


def _host_takes(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Refuse what is offloaded from devices where this machine has no memory for it."""
    room = _host_room(facts)
    if facts.model is None or room is None or not facts.device_bytes:
        return
    needed = offloaded_here(spec, facts.model)
    if needed > room:
        yield Problem(
            field="spec.learner.optimizerOffload",
            reason="ModelDoesNotFit",
            message=f"about {needed / GIB:.1f} GiB of optimizer states would lie in host memory, and this machine has "
            f"{(facts.host_bytes or 0) / GIB:.1f} GiB",
            fix="leave it out and train an adapter (model.lora), or use a machine with more memory",
        )


def _starts(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Refuse a share of a device in which vLLM has no room for its weights and one sequence."""
    needed = {item.role: item for item in estimates(spec, facts)}.get("actor")
    share, size = share_of(spec), min(facts.device_bytes, default=0)
    if needed is not None and share and size and share * size < least_bytes(needed):
        yield Problem(
            field=f"spec.{FIELD}",
            reason="ModelDoesNotFit",
            message=f"{share:g} of a device's {size / GIB:.1f} GiB is less than the weights and the cache of one"
            f" sequence, {least_bytes(needed) / GIB:.1f} GiB",
            fix=f"use {least_share(size, needed):.2f} or more, or a smaller model",
        )


def _share_out(spec: RolloutRunSpec, facts: Facts) -> tuple[Change, ...] | None:
    """Where vLLM stands beside others: the largest share that leaves them their room, or the least one with a smaller learner."""
    needed = {item.role: item for item in estimates(spec, facts)}.get("actor")
    shared = [one for one in loads(spec, facts) if _engines(one) and len(one.held) > 1]
    if needed is None or not share_of(spec) or not shared or facts.model is None:
        return None
    least = max(least_share(one.memory, needed) for one in shared)
    share = min(largest_share(one.memory, _others(one), _engines(one)) for one in shared)
    if share >= least:
        return (Change(field=FIELD, value=f"{share:.2f}"),)
    return _smaller_beside(spec, facts, shared, least)


def _smaller_beside(
    spec: RolloutRunSpec, facts: Facts, shared: Sequence[Load], least: float
) -> tuple[Change, ...] | None:
    """The first changes of the learner that leave vLLM its least share, and then the share that they leave."""
    rooms = [
        (room_of(one.memory) - int(least * one.memory) * _engines(one)) // ranks
        for one in shared
        if (ranks := len(one.held) - _engines(one))
    ]
    found = advise(spec, facts, min(rooms, default=0))
    if found is None or facts.model is None:
        return None
    tokens = longest_tokens(spec, facts)
    changed = next(one for one, changes in _candidates(spec, tokens) if changes == found)
    learner = estimate_learner(changed, facts.model, tokens).total
    share = min(
        largest_share(one.memory, learner * (len(one.held) - _engines(one)), _engines(one))
        for one in shared
    )
    return (*found, Change(field=FIELD, value=f"{max(share, least):.2f}"))


def _engines(load: Load) -> int:
    return sum(item.role == "actor" for item in load.held)


def _others(load: Load) -> int:
    return sum(item.total for item in load.held if item.role != "actor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """``field`` (without ``spec.``) set to ``value``, both as ``--set`` takes them."""

    field: str
    value: str

    def __str__(self) -> str:
        return f"{self.field}={self.value}"


def nearest_changes(
    spec: RolloutRunSpec,
    model: ModelFacts,
    sequence_tokens: int,
    room: int,
    host_room: int | None = None,
) -> tuple[Change, ...] | None:
    """The first of the known changes with which a learner fits into ``room`` bytes; () as it is, None: none does.

    ``host_room``: bytes of host memory for what is offloaded by all ranks; None: not known, and taken to be enough.
    """
    for changed, changes in _candidates(spec, sequence_tokens):
        if host_room is not None and offloaded_here(changed, model) > host_room:
            continue
        if estimate_learner(changed, model, sequence_tokens).total <= room:
            return changes
    return None


def offloaded_here(spec: RolloutRunSpec, model: ModelFacts) -> int:
    """Bytes of host memory for what the ranks of one node offload."""
    return offloaded_bytes(spec, model) * spec.learner.processes_per_node


def _host_room(facts: Facts) -> int | None:
    """Bytes of this machine's memory that may be planned with for what is offloaded; None where they are not known."""
    here = facts.platform == "local" and facts.host_bytes is not None
    return int(facts.host_bytes * HEADROOM) if here and facts.host_bytes else None


def longest_sequence(spec: RolloutRunSpec, model: ModelFacts, room: int) -> int:
    """Most tokens of one sequence, a pass of its own, with which a learner fits into ``room`` bytes; 0: not one."""
    low, high = 0, min(SEQUENCE_MAX, model.context_length) + 1
    while high - low > 1:
        middle = (low + high) // 2
        alone = _train(spec, micro_batch_tokens=middle)
        fits = estimate_learner(alone, model).total <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def recomputing(spec: RolloutRunSpec) -> RolloutRunSpec:
    """The same with activations computed again in the backward."""
    return _train(spec, activation_checkpointing=True)


def room_of(memory: int, others: Sequence[Memory] = ()) -> int:
    """Bytes of a device of ``memory`` that a learner may plan with, beside ``others`` on it."""
    return int(memory * HEADROOM) - sum(other.total for other in others)


def _candidates(
    spec: RolloutRunSpec, sequence_tokens: int
) -> Iterator[tuple[RolloutRunSpec, tuple[Change, ...]]]:
    yield spec, ()
    for weights, changes in _weights(spec):
        yield from _passes(weights, changes, sequence_tokens)
        if not _recomputes(spec):
            further = (*changes, Change(field="train.activationCheckpointing", value="true"))
            yield recomputing(weights), further
            yield from _passes(recomputing(weights), further, sequence_tokens)


def _passes(
    spec: RolloutRunSpec, changes: tuple[Change, ...], sequence_tokens: int
) -> Iterator[tuple[RolloutRunSpec, tuple[Change, ...]]]:
    """Ever smaller passes, down to one sequence."""
    assert spec.train is not None
    tokens = spec.train.micro_batch_tokens
    least = max(TOKENS_MIN, sequence_tokens)
    while tokens > least:
        tokens = max(least, tokens // 2)
        change = Change(field="train.microBatchTokens", value=str(tokens))
        yield _train(spec, micro_batch_tokens=tokens), (*changes, change)


def _weights(spec: RolloutRunSpec) -> Iterator[tuple[RolloutRunSpec, tuple[Change, ...]]]:
    """As they are; then their optimizer's states on the host; then an adapter; then one over a base in 4 bits."""
    yield spec, ()
    if spec.train is not None and keeps_states(spec.train) and not spec.learner.optimizer_offload:
        yield _offloading(spec), (Change(field="learner.optimizerOffload", value="true"),)
    lora = spec.model.lora
    rank = Change(field="model.lora.rank", value=str((lora or Lora()).rank))
    asked = () if lora else (rank,)
    if lora is None:
        yield _lora(spec, Lora()), asked
    if (lora is None or lora.quantization is None) and not spec.learner.strategy.fsdp:
        packed = Change(field="model.lora.quantization", value="NF4")
        changed = (lora or Lora()).model_copy(update={"quantization": "NF4"})
        yield _lora(spec, changed), (*asked, packed)


def _recomputes(spec: RolloutRunSpec) -> bool:
    return spec.train is not None and spec.train.activation_checkpointing


def _train(spec: RolloutRunSpec, **changes: object) -> RolloutRunSpec:
    assert spec.train is not None
    return spec.model_copy(update={"train": spec.train.model_copy(update=changes)})


def _offloading(spec: RolloutRunSpec, *, asked: bool = True) -> RolloutRunSpec:
    learner = spec.learner.model_copy(update={"optimizer_offload": asked})
    return spec.model_copy(update={"learner": learner})


def _lora(spec: RolloutRunSpec, lora: Lora) -> RolloutRunSpec:
    return spec.model_copy(update={"model": spec.model.model_copy(update={"lora": lora})})


def _too_large(
    field: str,
    there: int,
    where: str,
    held: tuple[Memory, ...],
    advice: tuple[Change, ...] | None,
) -> Problem:
    needed = sum(item.total for item in held)
    largest = sorted((p for item in held for p in item.parts), key=lambda p: -p[1])[:3]
    listing = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest)
    return Problem(
        field=field,
        reason="ModelDoesNotFit",
        message=f"about {needed / GIB:.1f} GiB are needed, {where} has {there / GIB:.1f} GiB "
        f"(largest, in GiB: {listing})",
        fix=f"the nearest that fits: {' '.join(f'--set {change}' for change in advice)}"
        if advice
        else "lower microBatchTokens, set activationCheckpointing, use lora or learner.strategy.fsdp over "
        "more ranks, or a larger accelerator",
    )


RULES = (model_fits,)
