"""Schedules, snapshots, roles, limits: settings that contradict each other or the run's length."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.checks.pods.pod_fields import (
    find_bad_flags,
    find_plain_secrets,
    find_taken_variables,
)
from rollout_api.fields.event_targets import FORMS, parse_event_target
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.common import EnvVar
from rollout_api.v1alpha1.run import RolloutRunSpec


def warmup_fits(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A warm-up that ends after the decay, or after the run."""
    if spec.train is None:
        return
    name, schedule = spec.train.schedule.chosen, spec.train.schedule.value
    horizon = getattr(schedule, "horizon_steps", None) or spec.train.max_steps
    if horizon and schedule.warmup_steps >= horizon:
        yield Problem(
            field=f"spec.train.schedule.{name}.warmupSteps",
            reason="WarmupTooLong",
            message=f"the warm-up of {schedule.warmup_steps} steps does not end before step {horizon}",
            fix="use a tenth of the run or less",
        )


def horizon_is_known(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A decay needs an end."""
    if spec.train is None or spec.train.max_steps:
        return
    name, schedule = spec.train.schedule.chosen, spec.train.schedule.value
    if name != "constant" and schedule.horizon_steps is None:
        yield Problem(
            field=f"spec.train.schedule.{name}.horizonSteps",
            reason="MissingHorizon",
            message="neither horizonSteps nor train.maxSteps says where the decay ends",
            fix="set horizonSteps",
        )


def learning_rate_moves_something(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Learning rate 0 is a control experiment, seldom more."""
    if spec.train is None:
        return
    name, settings = spec.train.optimizer.chosen, spec.train.optimizer.value
    if settings.learning_rate == 0:
        yield Problem(
            field=f"spec.train.optimizer.{name}.learningRate",
            reason="NothingToTrain",
            message="a learning rate of 0 changes no weight",
            fix="keep it only for a control run",
            severity=Severity.warning,
        )


def anchors_bound_the_replay(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Anchors further apart than the replay may reach."""
    if spec.snapshots.every_steps > spec.snapshots.max_replay_steps:
        yield Problem(
            field="spec.snapshots.everySteps",
            reason="ReplayTooLong",
            message=f"anchors every {spec.snapshots.every_steps} steps, but at most "
            f"{spec.snapshots.max_replay_steps} steps may be replayed",
            fix="lower everySteps, or raise maxReplaySteps",
        )


def replicas_and_autoscale_agree(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The number of actors has one owner."""
    scale = spec.actors.autoscale
    if scale and spec.actors.replicas != 1 and not scale.min <= spec.actors.replicas <= scale.max:
        yield Problem(
            field="spec.actors.replicas",
            reason="OutOfRange",
            message=f"{spec.actors.replicas} replicas lie outside autoscale {scale.min} to {scale.max}",
            fix="start inside the range, or leave replicas away to start at autoscale.min",
        )


def online_runs_have_actors(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Without actors nothing is ever sampled."""
    if spec.train and spec.train.algorithm.is_online and not spec.actors.replicas:
        yield Problem(
            field="spec.actors.replicas",
            reason="NoActors",
            message=f"{spec.train.algorithm.chosen} samples from the policy, and there are no actors",
            fix="use 1 or more; spec.suspend stops a run",
        )


def engines_on_several_nodes(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """One copy of the model over several pods is not built."""
    if spec.actors.nodes_per_replica > 1:
        yield Problem(
            field="spec.actors.nodesPerReplica",
            reason="NotSupported",
            message="an engine over several nodes is not supported",
            fix="use 1, with tensorParallel over the devices of one node",
        )


def devices_match_the_engine(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Tensor parallelism over more devices than the pod has."""
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    count = spec.actors.accelerator.count if spec.actors.accelerator else None
    if vllm and count and vllm.tensor_parallel > count:
        yield Problem(
            field="spec.actors.engine.vllm.tensorParallel",
            reason="TooFewDevices",
            message=f"{vllm.tensor_parallel} devices are needed, the pod has {count}",
            fix="raise accelerator.count, or lower tensorParallel",
        )


def weights_can_be_transferred(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Transports between GPUs are asked for by name, and refused while nobody has seen them work."""
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    if vllm is None or vllm.weight_transfer == "File":
        return
    chosen = vllm.weight_transfer
    on_cpu = spec.actors.accelerator is None or spec.learner.accelerator is None
    yield Problem(
        field="spec.actors.engine.vllm.weightTransfer",
        reason="NotSupported",
        message=f"{chosen} moves weights between GPUs, and actors or learner have no accelerator"
        if on_cpu
        else f"{chosen} is unproven until a device has run it, and no run is wired to it yet",
        fix="use File, which loads what changed on any device",
    )


def engines_sleep_where_it_is_proven(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """VLLM's sleep levels, refused while no device has shown them."""
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    if vllm is None or not vllm.sleep_level:
        return
    if facts.platform == "cluster":
        why = "in a cluster actors and learner have no device in common"
    elif spec.actors.accelerator is None:
        why = "vLLM has no sleep mode on a CPU"
    elif spec.model.lora is not None and vllm.sleep_level == 2:
        why = "level 2 forgets the base, and an adapter's versions do not bring it back"
    else:
        why = "what hands the memory over has run on no device yet"
    yield Problem(
        field="spec.actors.engine.vllm.sleepLevel",
        reason="NotSupported",
        message=f"an engine that sleeps is not supported by this version: {why}",
        fix="leave it out, and give vLLM the share of the device that leaves the learner its room (gpuMemoryUtilization)",
    )


def devices_match_the_ranks(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Each rank has a device of its own."""
    accelerator = spec.learner.accelerator
    if accelerator and accelerator.count and accelerator.count < spec.learner.processes_per_node:
        yield Problem(
            field="spec.learner.processesPerNode",
            reason="TooFewDevices",
            message=f"{spec.learner.processes_per_node} ranks, but {accelerator.count} devices per node",
            fix="one rank per device",
        )


def server_flags_are_free(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Flags that tune the server and do nothing else."""
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    if vllm is not None:
        yield from find_bad_flags(vllm.extra_arguments, "spec.actors.engine.vllm.extraArguments")


def environment_names_are_free(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Variables that the processes rely on."""
    for place, env in _environments(spec):
        yield from find_taken_variables(env, place)


def secrets_are_not_plain(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A token in a manifest is a token in Git."""
    for place, env in _environments(spec):
        yield from find_plain_secrets(env, place)


def _environments(spec: RolloutRunSpec) -> tuple[tuple[str, tuple[EnvVar, ...]], ...]:
    """All variables that an author sets, with their places."""
    learner, actors = spec.learner.env, spec.actors.env
    return ("spec", spec.env), ("spec.learner", learner), ("spec.actors", actors)


def deadlines_are_ordered(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A run that may not live as long as it may wait to start."""
    limits = spec.limits
    if spec.serve is not None:
        return  # a service waits for its clients as long as it lives
    if limits.active_seconds and limits.no_progress_seconds > limits.active_seconds:
        yield Problem(
            field="spec.limits.noProgressSeconds",
            reason="DeadlineUnreachable",
            message=f"{limits.no_progress_seconds} s without progress can never pass before the run's "
            f"end after {limits.active_seconds} s",
            fix="make it smaller than activeSeconds",
        )


def events_have_a_target(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A queue or topic that is none, and one that is named twice."""
    seen: set[str] = set()
    for index, item in enumerate(spec.tracking):
        if item.events is None:
            continue
        field, uri = f"spec.tracking[{index}].events.uri", item.events.uri
        if parse_event_target(uri) is None:
            yield Problem(
                field=field,
                reason="InvalidValue",
                message=f"{uri!r:.200} names no queue or topic",
                fix=f"write {FORMS}, with the account's 12 digits",
            )
        elif uri in seen:
            yield Problem(
                field=field,
                reason="DuplicateName",
                message=f"{uri} is named twice, and would get each event twice",
                fix="leave one of them out",
            )
        seen.add(uri)


RULES = (
    warmup_fits,
    horizon_is_known,
    learning_rate_moves_something,
    anchors_bound_the_replay,
    replicas_and_autoscale_agree,
    online_runs_have_actors,
    engines_on_several_nodes,
    devices_match_the_engine,
    weights_can_be_transferred,
    engines_sleep_where_it_is_proven,
    devices_match_the_ranks,
    server_flags_are_free,
    environment_names_are_free,
    secrets_are_not_plain,
    deadlines_are_ordered,
    events_have_a_target,
)
