"""Which accelerators of one machine the processes of a run compute on.

A learner's ranks take the first, one each. Actors share out the rest, each as many as its engine is wide; where too few
are left, they take the last ones, beside the learner.
"""

from __future__ import annotations

from rollout_api.v1alpha1.run import RolloutRunSpec


def learner_devices(spec: RolloutRunSpec, count: int) -> tuple[int, ...]:
    """Of ``count`` devices those of the learner's ranks, in their order; ranks beyond them begin again."""
    ranks = spec.learner.num_processes if spec.train is not None else 0
    return tuple(range(min(ranks, count)))


def actor_devices(spec: RolloutRunSpec, count: int, index: int) -> tuple[int, ...]:
    """Of ``count`` devices those of actor ``index``."""
    width = min(_engine_width(spec), count)
    if width == 0:
        return ()
    free = range(len(learner_devices(spec, count)), count)
    shares = len(free) // width
    if shares == 0:
        return tuple(range(count - width, count))
    start = free[index % shares * width]
    return tuple(range(start, start + width))


def _engine_width(spec: RolloutRunSpec) -> int:
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    return vllm.tensor_parallel if vllm else 1
