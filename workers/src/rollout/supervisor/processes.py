"""From a resolved spec and the facts of this machine to the processes that run it. Pure.

The same entry points that pods run, on one machine: a coordinator, ``actors.replicas`` actors, and a
learner of all its ranks, which pods would share out over ``learner.nodes``, under torchrun (or one bare
process): the same manifest comes to the same chain in both places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollout.common.child_processes import ProcessSpec
from rollout.common.restarts import RestartRules
from rollout.errors import SpecError
from rollout.learner.config.ranks import CONFIG_OPTION, plan_ranks
from rollout.learner.standby.seat import SEAT_VARIABLE
from rollout.ledger.opening import DSN_VARIABLE
from rollout.runs.environment import RUN_DIR_VARIABLE, thread_env, user_env
from rollout.runs.plan.machine import DEVICES_VARIABLE, visible_devices
from rollout.runs.run_dir import RunDir
from rollout.supervisor.watch import Bounds
from rollout_api.checks.accelerators.devices import actor_devices
from rollout_api.v1alpha1.run import RolloutRunSpec

TINY_PARAMETERS_MAX = 3_000_000
"""Below this a second thread costs more in synchronisation than it computes."""
LEARNER, STANDBY = "learner", "learner-standby"
"""The two learners of a run with a standby: which is the one changes with every death."""
NO_CREDENTIALS = {DSN_VARIABLE: ""}
"""The ledger's connection string reaches the coordinator alone: user code runs in the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has. ``cpus``: cores this process may use (OMP_NUM_THREADS, if lower).

    ``devices``: the accelerators that it may use, as CUDA_VISIBLE_DEVICES names them.
    """

    cpus: int
    devices: tuple[str, ...] = ()

    @property
    def accelerators(self) -> int:
        """How many accelerators there are."""
        return len(self.devices)


def plan_machine(environment: Mapping[str, str], affinity: int, accelerators: int = 0) -> Machine:
    """The machine's facts, with the user's own bounds on threads and on accelerators respected."""
    wanted = environment.get("OMP_NUM_THREADS", "")
    bound = int(wanted) if wanted.isdigit() and int(wanted) > 0 else affinity
    devices = visible_devices(environment, accelerators)
    return Machine(cpus=max(1, min(affinity, bound)), devices=devices)


def plan_threads(spec: RolloutRunSpec, machine: Machine, num_parameters: int | None = None) -> int:
    """Compute threads of each process.

    Synchronous runs let learner and actor each use all cores: they take turns. Asynchronous ones
    split them. In Exact the number of actors never enters, because sums depend on threads.
    """
    if num_parameters is not None and num_parameters <= TINY_PARAMETERS_MAX:
        return 1
    staleness = spec.train.max_staleness if spec.train is not None else 0
    sharers = max(spec.learner.num_processes, 2 if staleness else 1)
    if spec.numerics.mode == "Fast":
        sharers = max(sharers, most_actors(spec) + (1 if staleness else 0))
    return max(1, machine.cpus // sharers)


def most_actors(spec: RolloutRunSpec) -> int:
    """As many actors as the run may come to have."""
    scale = spec.actors.autoscale
    return spec.actors.replicas if scale is None else scale.max


def plan_processes(spec: RolloutRunSpec, run: RunDir, machine: Machine) -> tuple[ProcessSpec, ...]:
    """Every process of the run, the ones that take longest to start first. Raises SpecError for a standby with devices."""
    actors = max(1, spec.actors.replicas) if spec.needs_actors else 0
    learners = (
        (_model(spec, run, machine),) if spec.train is None else _learners(spec, run, machine)
    )
    return (
        *learners,
        *(plan_actor(spec, run, machine, index) for index in range(actors)),
        _process(spec, run, "coordinator", "coordinator", env={"OMP_NUM_THREADS": "1"}),
    )


def plan_actor(spec: RolloutRunSpec, run: RunDir, machine: Machine, index: int) -> ProcessSpec:
    """One actor's process."""
    return _process(
        spec,
        run,
        f"actor-{index}",
        "actor",
        extra=("--index", str(index)),
        env={
            **_device_env(spec, machine, index),
            **user_env(spec, "Actor"),
            **thread_env(plan_threads(spec, machine)),
            **NO_CREDENTIALS,
        },
    )


def _device_env(spec: RolloutRunSpec, machine: Machine, index: int) -> dict[str, str]:
    """Which accelerators an actor sees, where there is a choice."""
    if machine.accelerators < 2:
        return {}
    found = actor_devices(spec, machine.accelerators, index)
    return {DEVICES_VARIABLE: ",".join(machine.devices[device] for device in found)}


def _learners(spec: RolloutRunSpec, run: RunDir, machine: Machine) -> tuple[ProcessSpec, ...]:
    """The learner; and where the run has a standby a second one, all of whose ranks wait for the first to end."""
    learner = _learner(spec, run, machine)
    if not spec.learner.standby:
        return (learner,)
    if machine.accelerators:
        raise SpecError(
            "spec.learner.standby: this machine's accelerators are the learner's, and none would be left for a second one;"
            " leave it out: a learner that is lost is started again from its last anchor"
        )
    return tuple(
        replace(
            learner,
            name=name,
            log=run.logs / f"{name}.log",
            env={**learner.env, SEAT_VARIABLE: name},
        )
        for name in (LEARNER, STANDBY)
    )


def _learner(spec: RolloutRunSpec, run: RunDir, machine: Machine) -> ProcessSpec:
    env = user_env(spec, "Learner") | thread_env(plan_threads(spec, machine)) | NO_CREDENTIALS
    module, arguments = plan_ranks(str(run.attempt_config), spec.learner.num_processes)
    return ProcessSpec(
        name=LEARNER,
        role="learner",
        module=module,
        arguments=arguments,
        log=run.logs / "learner.log",
        env={**env, RUN_DIR_VARIABLE: str(run.path)},
        restart=_restarts(spec),
    )


def _model(spec: RolloutRunSpec, run: RunDir, machine: Machine) -> ProcessSpec:
    """Who gives an inference run its version, in the learner's place."""
    return ProcessSpec(
        name="learner",
        role="learner",
        module="rollout.entrypoints.model",
        arguments=(CONFIG_OPTION, str(run.attempt_config)),
        log=run.logs / "model.log",
        env={
            **user_env(spec, "Learner"),
            **thread_env(plan_threads(spec, machine)),
            **NO_CREDENTIALS,
            RUN_DIR_VARIABLE: str(run.path),
        },
        restart=_restarts(spec),
    )


def _process(
    spec: RolloutRunSpec,
    run: RunDir,
    name: str,
    role: str,
    *,
    extra: tuple[str, ...] = (),
    env: Mapping[str, str],
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        role=role,
        module=f"rollout.entrypoints.{role}",
        arguments=(CONFIG_OPTION, str(run.attempt_config), *extra),
        log=run.logs / f"{name}.log",
        env={**env, RUN_DIR_VARIABLE: str(run.path)},
        restart=_restarts(spec),
    )


def _restarts(spec: RolloutRunSpec) -> RestartRules:
    return RestartRules(retries_max=spec.limits.retries)


def plan_bounds(spec: RolloutRunSpec) -> Bounds:
    """``spec.limits`` as the supervisor's bounds."""
    limits = spec.limits
    return Bounds(
        pre_running_seconds=limits.pre_running_seconds,
        active_seconds=limits.active_seconds,
        no_progress_seconds=limits.no_progress_seconds,
    )
