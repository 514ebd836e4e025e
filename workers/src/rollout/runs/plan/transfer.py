"""How new versions come to the actors of a run, by the rule that an actor goes by, too."""

from __future__ import annotations

from rollout.weights.lora import is_served_as_adapter
from rollout.weights.mirrors.room import has_room
from rollout_api.checks.accelerators.memory import HEADROOM, estimates, mirror_bytes
from rollout_api.checks.facts import Facts, ModelFacts
from rollout_api.v1alpha1.run import RolloutRunSpec

MIB = 1 << 20
WHOLE = "whole versions are read where they are stored; what changed is patched"


def weights_transfer(spec: RolloutRunSpec, facts: Facts) -> str | None:
    """Where an actor patches what changed, in words; None for a run without actors that load versions.

    On one machine it is memory where all actors together find room for it, judged by the whole of the machine: an actor
    looks again at what is free when its first such version comes.
    """
    if spec.train is None or not spec.train.algorithm.is_online or facts.model is None:
        return None
    if is_served_as_adapter(spec):
        return "each version is an adapter, which is loaded beside those before it"
    if facts.host_bytes is None:
        return f"{WHOLE} in a folder of the actor's pod"
    return _on_one_machine(spec, facts.model, facts, facts.host_bytes)


def _on_one_machine(spec: RolloutRunSpec, model: ModelFacts, facts: Facts, host_bytes: int) -> str:
    size, actors = mirror_bytes(spec, model), _num_actors(spec)
    held = () if facts.device_bytes else estimates(spec, facts)
    left = int(host_bytes * HEADROOM) - sum(item.total for item in held)
    each = f"{size / MIB:,.1f} MiB"
    if has_room(size * actors, left):
        return f"{WHOLE} in memory, {each} an actor"
    return (
        f"{WHOLE} on disk: in memory, {each} each for {actors} actors are too much beside the rest"
    )


def _num_actors(spec: RolloutRunSpec) -> int:
    autoscale = spec.actors.autoscale
    return spec.actors.replicas if autoscale is None else autoscale.max
