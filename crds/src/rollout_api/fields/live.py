"""What of a spec may change while a run goes on: sent by the operator, taken by the coordinator."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rollout_api.base import ApiModel, many
from rollout_api.checks.environment.evaluations import evaluation_name, split_of
from rollout_api.v1alpha1.evaluation import Evaluation
from rollout_api.v1alpha1.operations import Limits, Snapshots, Tracking
from rollout_api.v1alpha1.pods.roles import Actors
from rollout_api.v1alpha1.run import LIVE_ACTORS, LIVE_SPEC, LIVE_TRAIN, RolloutRunSpec
from rollout_api.v1alpha1.training.train import Train


def _names(model: type[ApiModel], aliases: frozenset[str]) -> set[str]:
    """Python's names of fields that are given as the API has them."""
    return {name for name, field in model.model_fields.items() if field.alias in aliases}


LIVE_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(_names(RolloutRunSpec, LIVE_SPEC), True),
    "train": _names(Train, LIVE_TRAIN),
    "actors": _names(Actors, LIVE_ACTORS),
}
"""What of a spec no pod is made from, as pydantic's ``exclude`` has it."""


class LiveSettings(ApiModel):
    """The live part of a spec, with presets resolved. What is left out stays as the run began with it."""

    max_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Steps after which the run has succeeded; may only grow."""
    limits: Limits | None = None
    """Bounds."""
    snapshots: Snapshots | None = None
    """When the run is saved, and what is kept."""
    evaluations: tuple[Evaluation, ...] | None = many(32, default=None)
    """What is measured; of one that the run knows, when and against which gate."""
    tracking: tuple[Tracking, ...] | None = many(8, default=None)
    """Where metrics go."""
    progress_seconds: float | None = Field(default=None, ge=1.0, le=86_400.0)
    """Time between two writes of `status.progress`; grows with the number of runs."""


def live_part(spec: RolloutRunSpec) -> LiveSettings:
    """The live settings that a whole spec asks for, without what the operator alone acts on."""
    return LiveSettings(
        max_steps=None if spec.train is None else spec.train.max_steps,
        limits=spec.limits.model_copy(update={"ttl_action": None}),
        snapshots=spec.snapshots.model_copy(
            update={"schedules": (), "on_suspend": False, "at_end": False, "best": False}
        ),
        evaluations=spec.evaluations,
        tracking=spec.tracking,
    )


def with_live(spec: RolloutRunSpec, live: LiveSettings) -> tuple[RolloutRunSpec, tuple[str, ...]]:
    """``spec`` with what ``live`` says, and what of that has to wait for the next run attempt.

    `maxSteps` never falls below what it was. Workers know the evaluations that they began with: only when
    those are due, and against which gate, may change under them.
    """
    given: dict[str, object] = {
        name: getattr(live, name)
        for name in ("limits", "snapshots", "tracking")
        if getattr(live, name) is not None
    }
    deferred: tuple[str, ...] = ()
    if live.evaluations is not None:
        given["evaluations"], deferred = _merge(spec.evaluations, live.evaluations)
    if spec.train is not None and live.max_steps is not None:
        steps = max(live.max_steps, spec.train.max_steps or 0)
        given["train"] = spec.train.model_copy(update={"max_steps": steps})
    return spec.model_copy(update=given), deferred


_WHEN = ("at_start", "every_steps", "at_end", "selects", "gate")
_NEVER = {"at_start": False, "every_steps": None, "at_end": False, "selects": False, "gate": None}


def _merge(
    begun: tuple[Evaluation, ...], wanted: tuple[Evaluation, ...]
) -> tuple[tuple[Evaluation, ...], tuple[str, ...]]:
    known = {(evaluation_name(item, n), split_of(item)): item for n, item in enumerate(begun)}
    merged = {key: item.model_copy(update=_NEVER) for key, item in known.items()}
    deferred: list[str] = []
    for index, item in enumerate(wanted):
        key = (evaluation_name(item, index), split_of(item))
        when = {name: getattr(item, name) for name in _WHEN}
        if key in known:
            merged[key] = known[key].model_copy(update=when)
        if key not in known or merged[key].model_copy(update={"name": item.name}) != item:
            deferred.append(
                f"evaluations[{index}]: {key[0]} ({key[1]}) asks for what this run attempt does not"
                " know; it takes effect with the next one"
            )
    return tuple(merged.values()), tuple(deferred)
