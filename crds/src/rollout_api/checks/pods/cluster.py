"""What only pods can get wrong: labels that are taken, and settings that are legal and risky there.

The warnings speak where the platform is known to be a cluster: the admission webhook returns them to
``kubectl``, and the run is made all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollout_api import names
from rollout_api.checks.facts import Facts
from rollout_api.checks.pods.pod_fields import find_devices, find_taken_labels
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.operations import Tracking
from rollout_api.v1alpha1.pods.pods import PodSettings
from rollout_api.v1alpha1.run import RolloutRun, RolloutRunSpec

_SERVERS = ("http://", "https://")
_STEPS_WORTH_REPEATING = 200


def labels_are_free(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Labels by which the operator finds its pods."""
    for role, settings in _roles(spec):
        yield from find_taken_labels(settings, f"spec.{role}")


def queues_agree(run: RolloutRun) -> Iterator[Problem]:
    """A queue that the spec names and another that the label names: one of them would be passed over."""
    named, label = run.spec.queue_name, run.metadata.labels.get(names.LABEL_QUEUE)
    if named is not None and label is not None and label != named:
        yield Problem(
            field="spec.queueName",
            reason="TwoQueues",
            message=f"queueName is {named!r}, and the label {names.LABEL_QUEUE} is {label!r}",
            fix="leave one of them out, or name the same queue in both",
        )


def actors_have_something_to_sample(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A number of actors for a run that has none: the API server refuses it at the scale subresource, too."""
    wanted = "autoscale" if spec.actors.autoscale is not None else "replicas"
    if (
        spec.serve is None
        and not spec.needs_actors
        and (spec.actors.replicas > 1 or wanted == "autoscale")
    ):
        yield Problem(
            field=f"spec.actors.{wanted}",
            reason="NoActors",
            message="this run has no actors to scale: its algorithm samples nothing and there are no evaluations",
            fix="leave it out, or add evaluations",
        )


def devices_come_from_accelerator(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """What no ceiling and no quota of devices would count."""
    for role, settings in _roles(spec):
        yield from find_devices(settings, f"spec.{role}")


def find_local_trackers(tracking: Sequence[Tracking]) -> Iterator[Problem]:
    """Addresses of trackers that are no server's: in a pod, files and databases of the coordinator's."""
    for index, item in enumerate(tracking):
        uri = None if item.mlflow is None else item.mlflow.uri
        if uri is not None and not uri.startswith(_SERVERS):
            yield Problem(
                field=f"spec.tracking[{index}].mlflow.uri",
                reason="NotSupported",
                message=f"{uri!r:.200} is no server, and the files of a pod are not the run's to name",
                fix="write http://host:port or https://host:port, or leave it out: a file in the run's folder",
            )


def trackers_are_servers(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """The coordinator of a cluster opens what is named here, beside its ledger."""
    if facts.platform == "cluster":
        yield from find_local_trackers(spec.tracking)


def something_ends_the_run(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Devices are held until the last step, however slow the steps become."""
    if facts.platform == "cluster" and spec.limits.active_seconds is None:
        yield Problem(
            field="spec.limits.activeSeconds",
            reason="NoDeadline",
            message="nothing bounds how long this run holds its devices",
            fix="set activeSeconds, such as 172800 for two days",
            severity=Severity.warning,
        )


def pods_ask_for_something(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Pods without requests are placed blindly and evicted first."""
    for role, settings in _roles(spec) if facts.platform == "cluster" else ():
        if settings.resources is None and getattr(settings, "accelerator", None) is None:
            yield Problem(
                field=f"spec.{role}.resources",
                reason="NoResources",
                message="these pods ask for no resources, unless the runtime does it for them",
                fix="set resources.requests, or an accelerator",
                severity=Severity.warning,
            )


def little_is_lost(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Capacity that may be taken away, and anchors far apart."""
    every = spec.snapshots.every_steps
    if facts.platform == "cluster" and spec.actors.preemptible and every > _STEPS_WORTH_REPEATING:
        yield Problem(
            field="spec.snapshots.everySteps",
            reason="SnapshotsFarApart",
            message=f"on capacity that may be taken away up to {every} steps are repeated",
            fix=f"save every {_STEPS_WORTH_REPEATING} steps or more often",
            severity=Severity.warning,
        )


def images_stay_the_same(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A tag that moves makes two pods of one run differ."""
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    image = vllm.image if vllm else None
    if facts.platform != "cluster" or image is None or "@sha256:" in image:
        return
    _, _, tag = image.rpartition("/")[2].partition(":")
    if tag in ("", "latest", "nightly"):
        yield Problem(
            field="spec.actors.engine.vllm.image",
            reason="ImageMoves",
            message=f"what {image!r} names may change between two pods of this run",
            fix="name a version, best by digest",
            severity=Severity.warning,
        )


def _roles(spec: RolloutRunSpec) -> Iterator[tuple[str, PodSettings]]:
    if spec.needs_actors:
        yield "actors", spec.actors
    if spec.train is not None:
        yield "learner", spec.learner


RULES = (
    actors_have_something_to_sample,
    labels_are_free,
    devices_come_from_accelerator,
    trackers_are_servers,
    something_ends_the_run,
    pods_ask_for_something,
    little_is_lost,
    images_stay_the_same,
)
