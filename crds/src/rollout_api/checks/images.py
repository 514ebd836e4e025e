"""Images of a run's learner in its snapshots: where they can be made, and what they are refused beside, each by name."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.environment.plugins import find_plugins, find_tracker_plugins
from rollout_api.checks.environment.tools import find_sandboxed
from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.problems import Problem
from rollout_api.v1alpha1.run import RolloutRunSpec

FIELD = "spec.snapshots.include"
FIX = "leave Process out: a run goes on bit for bit from its other layers, too"


def learners_are_imaged_alone(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """An image is of processes of this machine that compute on its CPUs, and of nobody's code but ours."""
    if "Process" in spec.snapshots.include:
        for what in (*_of_the_learner(spec, facts), *_beside(spec)):
            yield not_supported(FIELD, f"an image of {what}", FIX)


def _of_the_learner(spec: RolloutRunSpec, facts: Facts) -> Iterator[str]:
    learner = spec.learner
    if facts.platform == "cluster":
        yield "processes in a cluster"
    if spec.train is None or spec.serve is not None:
        yield "the processes of work that has no learner of its own"
    if learner.num_processes > 1 and learner.strategy.fsdp is not None:
        yield "a learner whose ranks share the weights out (spec.learner.strategy.fsdp)"
    if learner.standby:
        yield "a learner beside a standby"
    if learner.accelerator is not None or facts.device_bytes:
        yield "a learner with devices"
    if spec.numerics.mode != "Exact":
        yield "a learner in numerics.mode Fast, which compares with nothing,"
    if spec.storage is not None and spec.storage.uri is not None:
        yield "a learner that is connected to spec.storage.uri"


def _beside(spec: RolloutRunSpec) -> Iterator[str]:
    environment = spec.train.environment if spec.train else None
    if environment is not None and (environment.tools or environment.mcp_servers):
        yield "processes beside tools"
    if any(find_sandboxed(spec)):
        yield "processes beside sandboxes"
    if any(find_plugins(spec)) or any(find_tracker_plugins(spec.tracking)):
        yield "processes beside plugins"


RULES = (learners_are_imaged_alone,)
