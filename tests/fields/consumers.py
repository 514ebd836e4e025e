"""The consumers by name: what kind of thing each is, what it says in one sentence, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import coordinating
import learning
import operating
import scheduling
import working
from configs import Place

from rollout.errors import RolloutError
from rollout_api.v1alpha1.runtime import ClusterRuntimeSpec
from rollout_operator.run.plan.preconditions.checks import resolve_spec

Run = Mapping[str, Any]
"""A RolloutRun as a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """``ask`` takes a run, the spec of its runtime and a place to work in."""

    kind: str
    what: str
    ask: Callable[[Run, Mapping[str, Any], Place], Any]


def _worker(
    function: Callable[[Run, Place], Any],
) -> Callable[[Run, Mapping[str, Any], Place], Any]:
    """A process of the run is told what the operator made of the run and its runtime."""

    def told(run: Run, runtime: Mapping[str, Any], place: Place) -> Any:
        if not runtime:
            return function(run, place)
        spec = resolve_spec(run["spec"], ClusterRuntimeSpec.model_validate(runtime))
        return function({**run, "spec": spec.model_dump(mode="json", exclude_none=True)}, place)

    return told


def _operator(function: Callable[[Run, Mapping[str, Any]], Any]) -> Callable[..., Any]:
    return lambda run, runtime, _: function(run, runtime)


def ask(consumer: Consumer, run: Run, runtime: Mapping[str, Any], place: Place) -> Any:
    """What it answers; a refusal by name is an answer too."""
    try:
        return consumer.ask(run, runtime, place)
    except RolloutError as error:
        return f"{type(error).__name__}: {error}"


CONSUMERS: dict[str, Consumer] = {
    "children": Consumer(
        kind="rendered children",
        what="the Kubernetes objects of a run attempt, and what their processes are told beside the spec",
        ask=_operator(operating.observe_children),
    ),
    "start": Consumer(
        kind="precondition",
        what="what the operator asks for before the first pod, and what holds a run back",
        ask=_operator(operating.observe_start),
    ),
    "course": Consumer(
        kind="decision of the operator",
        what="conditions, pods and children over time, under five kinds of trouble",
        ask=_operator(operating.observe_course),
    ),
    "schedules": Consumer(
        kind="decision of the operator",
        what="the snapshots that a run makes by itself and deletes, over days and steps, a suspension and its end",
        ask=_operator(scheduling.observe_schedules),
    ),
    "refusal": Consumer(
        kind="refusal",
        what="the errors by which a manifest is refused",
        ask=_operator(operating.observe_refusal),
    ),
    "learning": Consumer(
        kind="loss",
        what="two real steps of a tiny model: chain, loss, plan of the step, weights",
        ask=_worker(learning.observe_learning),
    ),
    "ranks": Consumer(
        kind="learner's ranks",
        what="whether the learner's ranks hold shards, and when those are gathered",
        ask=_worker(working.observe_ranks),
    ),
    "coordination": Consumer(
        kind="tasks and batches",
        what="a scripted run against a real coordinator: every task handed out, every batch, the end",
        ask=_worker(coordinating.observe_coordination),
    ),
    "rules": Consumer(
        kind="decision of the coordinator",
        what="its rules over plain data: what is due, kept, moved, warned of",
        ask=_worker(coordinating.observe_rules),
    ),
    "engine": Consumer(
        kind="engine flags",
        what="the command and variables of the engine's server, or the batches of the embedded engine",
        ask=_worker(working.observe_engine),
    ),
    "completions": Consumer(
        kind="sampling result",
        what="where a completion ends, what its text is, and what a vLLM server is asked for",
        ask=_worker(working.observe_completions),
    ),
    "prompts": Consumer(
        kind="rows and prompts",
        what="the first prompts as tokens, in the order in which they are asked",
        ask=_worker(working.observe_prompts),
    ),
    "export": Consumer(
        kind="export",
        what="the place where the model of a run that has ended is written",
        ask=_worker(working.observe_export),
    ),
    "batch": Consumer(
        kind="rows and results",
        what="of an inference run: each row's prompt, how it is sampled, its task, the lines and the place of its results",
        ask=_worker(working.observe_batch),
    ),
    "service": Consumer(
        kind="training service",
        what="its base models by name, its threads, and what it leaves out",
        ask=_worker(working.observe_service),
    ),
    "scores": Consumer(
        kind="rewards",
        what="the rewards of the same answers",
        ask=_worker(working.observe_scores),
    ),
    "sources": Consumer(
        kind="rewards",
        what="how each source is asked, and what its value comes to in the whole",
        ask=_worker(working.observe_sources),
    ),
    "patience": Consumer(
        kind="rewards",
        what="how long a batch of a reward that hangs is waited for",
        ask=_worker(working.observe_patience),
    ),
    "look": Consumer(
        kind="resolution",
        what="what is looked for on the hub and here, and found, before a run starts",
        ask=_worker(working.observe_look),
    ),
    "reach": Consumer(
        kind="tools",
        what="the programs of MCP servers and agents, and the files that each finds in its sandbox; the hosts of the tool http; the tools of plugins in containers",
        ask=_worker(working.observe_reach),
    ),
    "plugins": Consumer(
        kind="plugins",
        what="the folder of each plugin of a run, what it is configured with, and which rows are asked of it",
        ask=_worker(working.observe_plugins),
    ),
    "memory": Consumer(
        kind="refusal",
        what="whether a plan finds that the model fits on the devices of the class",
        ask=_operator(working.observe_memory),
    ),
    "hub": Consumer(
        kind="resolution",
        what="with what the `datasets` library is called",
        ask=_worker(working.observe_hub),
    ),
    "trackers": Consumer(
        kind="trackers",
        what="with what the trackers' own libraries are called",
        ask=_worker(working.observe_trackers),
    ),
    "store": Consumer(
        kind="object store",
        what="the place, the client and the cache that objects go through",
        ask=_worker(working.observe_store),
    ),
    "code": Consumer(
        kind="user code",
        what="which file a pod fetches, checks and unpacks",
        ask=_worker(working.observe_code),
    ),
    "processes": Consumer(
        kind="local processes",
        what="the processes of a run on one machine, how often each comes back, when its time is over",
        ask=_worker(working.observe_processes),
    ),
}
