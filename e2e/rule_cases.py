"""For each rule of the definitions what it takes and what it refuses, in which words.

Unions and ranges say so themselves: their cases are made from their messages. All others stand here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from runs import lay_over
from schemas import UNION, Rule, build_smallest

RANGE = re.compile(r"must be (at least|above) (\S+) and (at most|below) (\S+)")
STEP = Decimal("0.000001")
SETTLED = (
    "{} is settled unless the run is suspended: suspend the run, with the same edit or before it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A value for the place of a rule."""

    value: Any
    taken: bool


def build_trials(rule: Rule, schema: Any) -> Iterator[Trial]:
    """What the rule takes and what it refuses; `schema` is that of its place."""
    if union := UNION.fullmatch(rule.message):
        yield from _union_trials(union.group(1).split(", "), schema)
    elif found := RANGE.fullmatch(rule.message):
        yield from _range_trials(*found.groups())
    elif rule.message in PAIRS:
        for value, taken in zip(PAIRS[rule.message], (True, False), strict=True):
            whole = lay_over(build_smallest(schema), value) if rule.path else value
            yield Trial(value=whole, taken=taken)


def _union_trials(members: list[str], schema: Any) -> Iterator[Trial]:
    required = {
        name: build_smallest(schema["properties"][name]) for name in schema.get("required", ())
    }
    each = {name: build_smallest(schema["properties"][name]) for name in members}
    for name, value in each.items():
        yield Trial(value=required | {name: value}, taken=True)
    yield Trial(value=required, taken=False)
    others = dict.fromkeys((members[1], members[-1]))
    for second in others:  # the newest member is refused beside the oldest, too
        both = {name: each[name] for name in (members[0], second)}
        yield Trial(value=required | both, taken=False)


def _range_trials(lower: str, low: str, upper: str, high: str) -> Iterator[Trial]:
    inner, outer = (Decimal(low), Decimal(high))
    yield Trial(value=_text(inner), taken=lower == "at least")
    yield Trial(value=_text(outer), taken=upper == "at most")
    yield Trial(value=_text(inner + STEP), taken=True)
    yield Trial(value=_text(outer - STEP), taken=True)
    yield Trial(value=_text(inner - STEP), taken=False)
    yield Trial(value=_text(outer + STEP), taken=False)


def _text(number: Decimal) -> str:
    return f"{number:f}"


LONGEST, LONGEST_OF_SWEEPS = "a" * 40, "a" * 34
DIGEST = "blake3:" + "0" * 64
EXISTING = {"existing": {"uri": "s3://a", "digest": DIGEST}, "run": None}
TRAINS_WITHOUT_ACTORS = {"algorithm": {"sft": {}}, "maxSteps": 1}
SCALED = {"maxReplicas": 2, "hpa": {}}
ROUTE = {"gateways": [{"name": "public"}]}
KEYS = [{"name": "a", "secretKeyRef": {"name": "a", "key": "a"}}]
PAIRS: dict[str, tuple[Any, Any]] = {
    "names are for from: Names; leave them out, or write from: Names": (
        {"from": "Names", "names": ["team-a"]},
        {"from": "All", "names": ["team-a"]},
    ),
    "a selector and from: Selector belong together; write both, or neither": (
        {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}},
        {"from": "All", "selector": {"matchLabels": {"team": "a"}}},
    ),
    "labels of rollout.dev belong to the operator: choose another key": (
        {"labels": {"team": "x"}},
        {"labels": {"rollout.dev/role": "x"}},
    ),
    "metadata.name must have at most 40 characters: "
    "names of Services and StatefulSets are made from it": (
        {"metadata": {"name": LONGEST}},
        {"metadata": {"name": f"{LONGEST}a"}},
    ),
    "metadata.name must have at most 34 characters: names of runs are made from it": (
        {"metadata": {"name": LONGEST_OF_SWEEPS}},
        {"metadata": {"name": f"{LONGEST_OF_SWEEPS}a"}},
    ),
    "metadata.name must start with a lower-case letter and hold only lower-case letters, "
    "digits and dashes, the last not a dash": (
        {"metadata": {"name": "a-1"}},
        {"metadata": {"name": "1-a"}},
    ),
    "replicas lies outside autoscale: start inside the range": (
        {"autoscale": {"min": 2, "max": 4}, "replicas": 1},
        {"autoscale": {"min": 1, "max": 4}, "replicas": 5},
    ),
    "a variable has value or valueFrom: write one of them": (
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "A", "value": "", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ),
    "snapshotRef names a RolloutSnapshot: a digest goes with a uri, as object": (
        {"name": "best-5e0f"},
        {"name": "0" * 64},
    ),
    "a snapshot that exists has the layers that it has: leave include out": (
        {"source": {"run": {"name": "a"}}, "include": ["Buffer"]},
        {"source": EXISTING, "include": ["Buffer"]},
    ),
    "a snapshot that exists lies where its uri says: leave storageRef out": (
        {"source": {"run": {"name": "a"}}, "storageRef": {"name": "near"}},
        {"source": EXISTING, "storageRef": {"name": "near"}},
    ),
    "a snapshot of a run is reached by its run's runtime: leave runtimeRef out": (
        {"source": EXISTING, "runtimeRef": {"name": "gpu"}},
        {"source": {"run": {"name": "a"}}, "runtimeRef": {"name": "gpu"}},
    ),
    "the bytes of a snapshot that exists are whose it was made for: write Retain": (
        {"source": EXISTING, "deletionPolicy": "Retain"},
        {"source": EXISTING, "deletionPolicy": "Delete"},
    ),
    "a canary is watched for bakeSeconds: make it more than 0": (
        {"canaryPercent": 5, "bakeSeconds": 1},
        {"canaryPercent": 5, "bakeSeconds": 0},
    ),
    "minReplicas must not be above maxReplicas": (
        {"minReplicas": 2, "maxReplicas": 2, "keda": None, "hpa": {}},
        {"minReplicas": 3, "maxReplicas": 2, "keda": None, "hpa": {}},
    ),
    "an autoscaler rests while replicas is 0: leave replicas out, or scaling": (
        {"scaling": SCALED, "replicas": 1},
        {"scaling": SCALED, "replicas": 0},
    ),
    "a Gateway ends TLS and reaches servers by plain HTTP: leave tls out, or route": (
        {"apiKeys": KEYS, "route": ROUTE},
        {"apiKeys": KEYS, "route": ROUTE, "tls": {"secretRef": {"name": "a"}}},
    ),
    "whoever comes through a Gateway needs a key: name some in apiKeys": (
        {"apiKeys": KEYS, "route": ROUTE},
        {"apiKeys": [], "route": ROUTE},
    ),
    "timeZone and startingDeadlineSeconds go with cron": (
        {"cron": "0 2 * * *", "timeZone": "UTC"},
        {"cron": None, "everySteps": 25, "timeZone": "UTC"},
    ),
    "min must not be above max": ({"min": 1, "max": 1}, {"min": 2, "max": 1}),
    "tensorParallel needs more devices than accelerator.count: "
    "raise it, or lower tensorParallel": (
        {"accelerator": {"className": "x", "count": 2}, "engine": {"vllm": {"tensorParallel": 2}}},
        {"accelerator": {"className": "x", "count": 2}, "engine": {"vllm": {"tensorParallel": 4}}},
    ),
    "processesPerNode is more than accelerator.count: one rank per device": (
        {"accelerator": {"className": "x", "count": 4}, "processesPerNode": 4},
        {"accelerator": {"className": "x", "count": 4}, "processesPerNode": 8},
    ),
    "this run has no actors to scale: its algorithm samples nothing and there are no evaluations": (
        {"train": TRAINS_WITHOUT_ACTORS, "actors": {"replicas": 1}},
        {"train": TRAINS_WITHOUT_ACTORS, "actors": {"replicas": 3}},
    ),
    "at most one evaluation may select the Best snapshot": (
        {"evaluations": [{"suite": {"builtin": {"name": name}}, "selects": name == "a"} for name in "ab"]},
        {"evaluations": [{"suite": {"builtin": {"name": name}}, "selects": True} for name in "ab"]},
    ),
    "the run waits for itself: start from a model uri": (
        {"spec": {"model": {"uri": None, "fromRun": {"name": "another"}}}},
        {"spec": {"model": {"uri": None, "fromRun": {"name": "tried"}}}},
    ),
}  # fmt: skip

JSONL = {"jsonl": {"uri": "s3://data/train.jsonl", "digest": "blake3:" + "0" * 64}}
START = {
    "seed": 7,
    "storage": {"uri": "s3://bucket/runs"},
    "managedBy": "rollout.dev/operator",
    "train": {"data": JSONL, "oldLogprobs": "Learner"},
    "actors": {"replicas": 2},
    "env": [{"name": "A", "value": "1"}],
}
NEVER: dict[str, tuple[dict[str, Any], str]] = {
    "another seed": ({"seed": 8}, "seed is immutable: it names every sample's noise"),
    "no seed": ({"seed": None}, "seed is immutable: it names every sample's noise"),
    "other numerics": ({"numerics": {"mode": "Fast"}}, "numerics is immutable"),
    "another bucket": ({"storage": {"uri": "s3://other/runs"}}, "storage is immutable"),
    "another retention": (
        {
            "storage": {
                "uri": "s3://bucket/runs",
                "ledger": {"sqlite": {}, "retention": {"trajectories": {"steps": 9}}},
            }
        },
        "storage is immutable",
    ),
    "no bucket": ({"storage": None}, "storage is immutable"),
    "another controller": ({"managedBy": "kueue.x-k8s.io/multikueue"}, "managedBy is immutable"),
    "another kind of work": (
        {"train": None, "evaluate": {}},
        "the kind of work is immutable: make another run",
    ),
    "another algorithm": (
        {"train": {"algorithm": {"grpo": {"groupSize": 16}}}},
        "algorithm is immutable",
    ),
    "whose logprobs": ({"train": {"oldLogprobs": "Actor"}}, "oldLogprobs is immutable"),
    "fewer steps": ({"train": {"maxSteps": 300}}, "maxSteps may only grow"),
    "no data": ({"train": {"data": None}}, "data may change its location, not come or go"),
    "other rows": (
        {"train": {"data": {"jsonl": {"digest": "blake3:" + "1" * 64}}}},
        "a digest that is set stays: the rows may move, other rows are another run",
    ),
}
SEVERAL_PLACES: dict[str, tuple[Any, Any]] = {
    "horizonSteps is immutable: maxSteps may grow without bending the schedule": (
        {"horizonSteps": 400},
        {"horizonSteps": 500},
    ),
}
"""Rules about changes that stand more than once: what is there before, and what it may not become."""
TRAIN = SETTLED.format("all of train but algorithm, maxSteps, oldLogprobs")
ACTORS = SETTLED.format("all of actors but autoscale, replicas")
WHEN_SUSPENDED: dict[str, tuple[dict[str, Any], str]] = {
    "another place of the model": ({"model": {"uri": "hf://owner/name"}}, SETTLED.format("model")),
    "an adapter": ({"model": {"lora": {}}}, SETTLED.format("model")),
    "moved rows": ({"train": {"data": {"jsonl": {"uri": "s3://x/y"}}}}, TRAIN),
    "another optimizer": ({"train": {"optimizer": {"adamw": {"learningRate": "1e-5"}}}}, TRAIN),
    "a node selector": ({"actors": {"nodeSelector": {"a": "b"}}}, ACTORS),
    "an image": ({"actors": {"engine": {"vllm": {"image": "a/b:1"}}}}, ACTORS),
    "more learners": ({"learner": {"nodes": 2}}, SETTLED.format("learner")),
    "another runtime": ({"runtimeRef": {"name": "spot"}}, SETTLED.format("runtimeRef")),
    "another queue": ({"queueName": "gpus"}, SETTLED.format("queueName")),
    "other variables": ({"env": [{"name": "A", "value": "2"}]}, SETTLED.format("env")),
    "a secret": (
        {"env": [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "b"}}}]},
        SETTLED.format("env"),
    ),
    "code": ({"code": {"configMap": {"name": "rewards"}}}, SETTLED.format("code")),
    "a preset": ({"preset": "dapo@v1"}, SETTLED.format("preset")),
    "a snapshot to begin with": (
        {"restoreFrom": {"snapshotRef": {"name": "best"}}},
        SETTLED.format("restoreFrom"),
    ),
}
OTHER_WORK: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "infer": (
        {"data": JSONL},
        {"sampling": {"temperature": "0.5"}},
        SETTLED.format("infer"),
    ),
    "evaluate": ({}, {"baseline": {"uri": "hf://owner/name"}}, SETTLED.format("evaluate")),
    "serve": ({}, {"maxModels": 8}, SETTLED.format("serve")),
}
"""Kinds of work other than training: the work, a change of it, and what is said while there are pods."""
SNAPSHOTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another run": (
        {"source": {"run": {"name": "a"}}},
        {"source": {"run": {"name": "b"}}},
        "source is immutable: make another snapshot",
    ),
    "another object": (
        {"source": {"existing": {"uri": "s3://a", "digest": DIGEST}}},
        {"source": {"existing": {"uri": "s3://b", "digest": DIGEST}}},
        "source is immutable: make another snapshot",
    ),
    "more of it": (
        {"source": {"run": {"name": "a"}}},
        {"include": ["Buffer"]},
        "include is immutable: make another snapshot",
    ),
    "another place": (
        {"source": {"run": {"name": "a"}}, "storageRef": {"name": "near"}},
        {"storageRef": {"name": "far"}},
        "storageRef is immutable: make another snapshot",
    ),
    "another runtime": (
        {"source": {"existing": {"uri": "s3://a", "digest": DIGEST}}, "runtimeRef": {"name": "a"}},
        {"runtimeRef": {"name": "b"}},
        "runtimeRef is immutable: make another snapshot",
    ),
    "more time": (
        {"source": {"run": {"name": "a"}}},
        {"deadlineSeconds": 60},
        "deadlineSeconds is immutable: make another snapshot",
    ),
}
"""A snapshot's spec, a change, and what is said to it."""
SWEPT = {
    "parameters": [{"field": "seed", "values": ["1"]}],
    "template": {"spec": {"seed": 7, "train": {"maxSteps": 400}}},
    "objective": {"metric": "RewardMean"},
    "search": {"random": {"samples": 1}},
    "earlyStopping": {"halving": {"firstStep": 20}},
    "forks": {"max": 1},
}
SWEEPS: dict[str, tuple[dict[str, Any], str]] = {
    "another template": (
        {"template": {"spec": {"train": {"maxSteps": 500}}}},
        "template is immutable: make another sweep",
    ),
    "more of it": (
        {"template": {"spec": {"code": {}}}},
        "template is immutable: make another sweep",
    ),
    "another value": (
        {"parameters": [{"field": "seed", "values": ["2"]}]},
        "parameters is immutable: make another sweep",
    ),
    "more samples": (
        {"search": {"random": {"samples": 2}}},
        "search is immutable: make another sweep",
    ),
    "another metric": (
        {"objective": {"metric": "BestEvaluation"}},
        "objective is immutable: make another sweep",
    ),
    "more forks": ({"forks": {"max": 2}}, "forks is immutable: make another sweep"),
    "no early end": ({"earlyStopping": None}, "earlyStopping is immutable: make another sweep"),
}
"""A change of that sweep's spec, and what is said to it."""


def messages_of_changes() -> set[str]:
    """What is said to changes, in all tables."""
    once = {words for _, words in (NEVER | WHEN_SUSPENDED).values()}
    once |= {words for _, words in SWEEPS.values()}
    return once | {words for _, _, words in (OTHER_WORK | SNAPSHOTS).values()} | set(SEVERAL_PLACES)
