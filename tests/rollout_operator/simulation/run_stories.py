"""What happens to a run in a simulation, drawn from a seed: acts of people and machines, each when its time has come.

An act waits for a state of rest that the status and the pods show, so that an undisturbed and a disturbed life go the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from model_cluster import ModelCluster, is_ready
from model_objects import Body, ModelObjects
from worlds import SPEC

from rollout_api import names

RUN = "run"
UID = "uid-0001"
PLACE = ("rolloutruns", "ns", RUN)
KEYS = ("configmaps", "ns", names.keys_name(RUN))
SECRET = ("secrets", "ns", names.certificate_name(RUN))
PERSON = "kubectl"


@dataclass(slots=True, kw_only=True)
class Stage:
    """What an act may touch, and what has been done so far."""

    model: ModelObjects
    cluster: ModelCluster
    restarts: int = 0
    resumed: int = 0
    uid: str = UID
    loose: bool = False

    @property
    def run(self) -> Body:
        return self.model.objects.get(PLACE, {})

    def holds(self, kind: str, status: str = "True", reason: str = "") -> bool:
        found = self.run.get("status", {}).get("conditions", ())
        return any(
            one["type"] == kind and one["status"] == status and reason in {"", one["reason"]}
            for one in found
        )

    def change(self, **spec: Any) -> None:
        self.model.merge(PERSON, PLACE, {"spec": spec})

    def pods(self) -> list[Body]:
        return [pod for _, pod in self.model.of_kind("pods", "ns") if "x-template" in pod]

    def at_work(self) -> bool:
        """Running, as the status says and as it is, with everything told that was done."""
        run, status = self.run, self.run.get("status", {})
        if not run or not self.holds("Ready", "True", "Running") or self.stops():
            return False
        generation = run["metadata"]["generation"]
        told = status.get("observedGeneration") == status.get("settingsGeneration") == generation
        learner = status.get("learner", {})
        attempt = status.get("attempt")
        same = learner.get("restarts", 0) == self.restarts
        same &= self.loose or attempt == self.resumed + 1
        return told and same and self._complete(learner.get("incarnation"))

    def stops(self) -> bool:
        """Whether a coordinator was told to: whatever becomes of its pods then is the end of a suspension."""
        return any(pod["metadata"]["uid"] in self.cluster.stopped for pod in self.pods())

    def may_end(self) -> bool:
        """At work, and the run's Secret is there, named by the token keys: who has no pods left needs it no more.

        All other children are put right after an end, too.
        """
        keys, secret = (
            self.model.objects.get(place, {}).get("metadata", {}) for place in (KEYS, SECRET)
        )
        owners = [one["uid"] for one in keys.get("ownerReferences") or ()]
        return self.at_work() and secret.get("uid") in owners

    def _complete(self, incarnation: int | None) -> bool:
        pods, spec = self.pods(), self.run["spec"]
        trains = "train" in spec
        wanted = 1 + (spec.get("learner", {}).get("nodes", 1) if trains else 0)
        wanted += spec.get("actors", {}).get("replicas", 1)
        still = all(is_ready(one) and "deletionTimestamp" not in one["metadata"] for one in pods)
        group = {
            one["metadata"]["labels"].get(names.LABEL_INCARNATION)
            for one in pods
            if one["metadata"]["labels"][names.LABEL_ROLE] == "learner"
        }
        return len(pods) == wanted and still and group == ({str(incarnation)} if trains else set())


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that happens once its time has come; ``at_once``: with the very write that brings it."""

    name: str
    at_once: bool = False
    due: Callable[[Stage], bool]
    do: Callable[[Stage], None]


def _suspend(stage: Stage) -> None:
    stage.change(suspend=True)


def _resume(stage: Stage) -> None:
    stage.change(suspend=False)
    stage.restarts, stage.resumed = 0, stage.resumed + 1


def _suspended(stage: Stage) -> bool:
    """As the status tells it: who resumes a run does not look for its pods."""
    return stage.holds("Suspended")


def _stops_or_has_stopped(stage: Stage) -> bool:
    """A coordinator whose certificate is gone is told nothing: then the suspension comes to its end."""
    return stage.stops() or _suspended(stage)


def _fail_a_rank(stage: Stage) -> None:
    stage.cluster.end_container(RUN, "learner", 0, 1, "boom")
    stage.restarts += 1


def _lose_an_actor(stage: Stage) -> None:
    place = ("pods", "ns", f"{names.workload_name(RUN, 'actor')}-0")
    stage.model.delete(PERSON, place, grace=0)


def _ready_for_long(stage: Stage) -> bool:
    """A rank that is replaced within the second of LearnerReady is missed: docs/critiques.md says so."""
    found = stage.run.get("status", {}).get("conditions", ())
    ready = [one["lastTransitionTime"] for one in found if one["type"] == "LearnerReady"]
    if not stage.at_work() or not ready:
        return False
    now = datetime.fromisoformat(stage.cluster.now())
    return now - datetime.fromisoformat(ready[0]) > timedelta(seconds=2)


def _lose_a_rank(stage: Stage) -> None:
    place = ("pods", "ns", f"{names.workload_name(RUN, 'learner')}-0")
    stage.model.delete(PERSON, place, grace=0)
    stage.restarts += 1


def _delete_a_child(plural: str, name: str) -> Act:
    place = (plural, "ns", name)
    return Act(
        name=f"delete {plural}",
        due=lambda stage: stage.at_work() and place in stage.model.objects,
        do=lambda stage: stage.model.delete(PERSON, place),
    )


def _delete_the_record(stage: Stage) -> None:
    for place, live in stage.model.of_kind("configmaps", "ns"):
        if names.ANNOTATION_CHILDREN in live["metadata"].get("annotations", {}):
            stage.model.delete(PERSON, place)


def _may_be_edited(stage: Stage) -> bool:
    """While the API server lets an edit through and pods are to come, or when it is too late."""
    made = ("statefulsets", "ns", names.workload_name(RUN, "coordinator")) in stage.model.objects
    return made or stage.run.get("status", {}).get("attempt", 0) > 0


def _edit(stage: Stage) -> None:
    if stage.run.get("status", {}).get("attempt", 0) == 0:
        stage.change(train={"maxSteps": 500})


def _edit_what_pods_are_made_from(stage: Stage) -> None:
    """Suspended, edited and resumed before anybody looks."""
    stage.change(suspend=True, env=[{"name": "EDITED", "value": str(stage.resumed)}])
    _resume(stage)


def _make_anew(stage: Stage) -> None:
    """Deleted, and another one of its name made at once."""
    spec = {**stage.run["spec"]}
    stage.model.delete(PERSON, PLACE)
    stage.restarts, stage.resumed, stage.uid = 0, 0, stage.uid + "-again"
    make_run(stage.model, spec, stage.uid)


def make_run(model: ModelObjects, spec: Body, uid: str = UID) -> None:
    meta = {"name": RUN, "namespace": "ns", "uid": uid}
    kind = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    model.create(PERSON, PLACE, {**kind, "metadata": meta, "spec": spec})


RANKS_SERVICE = ("services", "ns", names.workload_name(RUN, "learner"))


def _change_a_child(stage: Stage) -> None:
    stage.model.merge(PERSON, RANKS_SERVICE, {"spec": {"publishNotReadyAddresses": False}})


def _scale(stage: Stage) -> None:
    stage.change(actors={"replicas": 2})


def _fail_for_good(stage: Stage) -> None:
    stage.cluster.end_container(RUN, "coordinator", 0, 2, "SpecError: no such thing")


def _delete_the_run(stage: Stage) -> None:
    stage.model.delete(PERSON, PLACE)


AT_WORK = Stage.at_work
ACTS: dict[str, tuple[Act, ...]] = {
    "suspend": (
        Act(name="suspend", due=AT_WORK, do=_suspend),
        Act(name="resume", due=_suspended, do=_resume),
    ),
    "fail a rank": (Act(name="fail a rank", due=AT_WORK, do=_fail_a_rank),),
    "lose a rank": (Act(name="lose a rank", due=_ready_for_long, do=_lose_a_rank),),
    "lose an actor": (Act(name="lose an actor", due=AT_WORK, do=_lose_an_actor),),
    "scale": (Act(name="scale", due=AT_WORK, do=_scale),),
    "change a child": (
        Act(
            name="change a child",
            due=lambda stage: stage.at_work() and RANKS_SERVICE in stage.model.objects,
            do=_change_a_child,
        ),
    ),
    "delete a service": (_delete_a_child("services", names.workload_name(RUN, "learner")),),
    "delete the secret": (_delete_a_child("secrets", names.certificate_name(RUN)),),
    "delete the actors": (_delete_a_child("statefulsets", names.workload_name(RUN, "actor")),),
    "delete the record": (Act(name="delete the record", due=AT_WORK, do=_delete_the_record),),
    "edit": (Act(name="edit", at_once=True, due=_may_be_edited, do=_edit),),
    "take a suspension back": (
        Act(name="suspend", due=AT_WORK, do=_suspend),
        Act(name="take it back", due=_stops_or_has_stopped, do=_resume),
    ),
    "edit at work": (Act(name="edit at work", due=AT_WORK, do=_edit_what_pods_are_made_from),),
    "make anew": (Act(name="make anew", due=AT_WORK, do=_make_anew),),
}
DRAWN_APART = ("take a suspension back", "edit at work")
"""They came later: what a seed told before, it still tells."""
ANSWERS_FROM = 1 << 32
"""Seeds from here on tell of runs that answer rows: coordinator and actors, no learner."""
SAVES_FROM = 1 << 33
"""Seeds from here on tell of runs that make a snapshot when they are suspended, and when they end well."""
WITHOUT_A_LEARNER = (
    "suspend",
    "lose an actor",
    "scale",
    "delete the secret",
    "delete the actors",
    "delete the record",
    "edit at work",
    "make anew",
)
ROWS: Body = {"model": SPEC["model"], "infer": {"data": {"jsonl": {"uri": "/data/rows.jsonl"}}}}
ENDS: dict[str, tuple[Act, ...]] = {
    "succeed": (),
    "fail": (),
    "fail for good": (Act(name="fail for good", due=Stage.may_end, do=_fail_for_good),),
    "delete": (Act(name="delete the run", due=AT_WORK, do=_delete_the_run),),
}
OUTCOMES = {
    "succeed": {"kind": "Succeeded", "reason": "Completed"},
    "fail": {"kind": "Failed", "reason": "RewardError", "message": "division by zero"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A run, what happens to it, and how it ends."""

    seed: int
    spec: Body
    acts: tuple[str, ...]
    end: str
    num_replicas: int = 1
    mixed: bool = False
    """Whether requests take as long as chance says, and overtake each other."""
    shifted: bool = False
    """Whether there is a request more at the beginning, after which all others meet other faults."""
    bucket: str = ""
    """Where the platform keeps objects; empty for volumes."""

    @property
    def loose(self) -> bool:
        """Whether chance decides how many attempts there are."""
        return "edit" in self.acts

    def plan(self) -> list[Act]:
        return [act for name in self.acts for act in ACTS[name]] + list(ENDS[self.end])

    def describe(self) -> str:
        return f"seed {self.seed}: {', '.join((*self.acts, self.end))}; {self.spec.keys() - SPEC.keys()}"


PAIRS_FROM = 1 << 34
"""Seeds from here on tell the same stories under two replicas of the operator."""
BOTH_WRITE = (9, 232, 20, 56)
"""Of these, in which both write for a while; in the first and the last only where a clock is believed more than the Lease,
and in the first a stale leader meets a finished run."""
MIXED_FROM = 1 << 35
"""Seeds from here on tell the same stories with requests that overtake each other, those of pairs included."""
SHIFTED_FROM = 1 << 36
"""Seeds from here on tell the same stories, with the same draws and one request more at the beginning, those of pairs included."""
MADE_AGAIN = (9,)
"""Of those of pairs: a stale leader finds no Secret, of a run whose children another one has removed."""
THAWED = 163
"""Of those of pairs: a replica whose clock is slow thaws, reads that another one leads, and sees pods late."""
RECORD_LOST = 149
"""Of those of pairs: a record is deleted, whoever remembers it dies, and a suspension is taken back meanwhile."""


def build_story(seed: int) -> Story:
    families: tuple[tuple[int, Callable[[int], Story]], ...] = (
        (SHIFTED_FROM, lambda rest: replace(build_story(rest), seed=seed, shifted=True)),
        (MIXED_FROM, lambda rest: replace(build_story(rest), seed=seed, mixed=True)),
        (PAIRS_FROM, lambda rest: replace(build_story(rest), seed=seed, num_replicas=2)),
        (SAVES_FROM, lambda _: _build_saves(seed)),
        (ANSWERS_FROM, lambda _: _build_answers(seed)),
        (0, lambda _: _build_training(seed)),
    )
    return next(build(seed - first) for first, build in families if seed >= first)


def _build_training(seed: int) -> Story:
    draw = random.Random(f"story {seed}")
    spec: Body = {**SPEC, "actors": {"replicas": draw.choice([1, 1, 2])}}
    if draw.random() < 0.5:
        spec["learner"] = {"nodes": 2}
    if draw.random() < 0.4:
        spec["limits"] = {"ttlSecondsAfterFinished": 0}
        if draw.random() < 0.5:
            spec["limits"]["ttlAction"] = "DeleteRun"
    acts = draw.choices(
        [one for one in ACTS if one not in DRAWN_APART], k=draw.choice([0, 1, 1, 2, 3])
    )
    apart = random.Random(f"taken back {seed}")
    acts += apart.choices(DRAWN_APART, k=apart.choice([0, 0, 1]))
    acts = ["edit"] * ("edit" in acts) + [one for one in acts if one != "edit"]
    return Story(seed=seed, spec=spec, acts=tuple(acts), end=draw.choice(list(ENDS)))


def _build_saves(seed: int) -> Story:
    """Those of runs that train; a suspension that is taken back may have been saved, or not."""
    story = build_story(seed - SAVES_FROM)
    acts = tuple(one for one in story.acts if one not in (*DRAWN_APART, "edit"))
    spec = {**story.spec, "snapshots": {"onSuspend": True, "atEnd": True}}
    return replace(story, seed=seed, acts=acts, spec=spec, bucket="s3://runs/team")


def _build_answers(seed: int) -> Story:
    draw = random.Random(f"answers {seed}")
    spec: Body = {**ROWS, "actors": {"replicas": draw.choice([1, 1, 2])}}
    if draw.random() < 0.4:
        spec["limits"] = {"ttlSecondsAfterFinished": 0}
    acts = draw.choices(WITHOUT_A_LEARNER, k=draw.choice([0, 1, 1, 2, 3]))
    return Story(seed=seed, spec=spec, acts=tuple(acts), end=draw.choice(list(ENDS)))
