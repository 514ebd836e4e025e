"""Rows of the rest of a run and of its runtime; ``rows.py`` says how they are read."""

from __future__ import annotations

from collections.abc import Iterator

from bases import PLUGIN, SUITE, TEACHER
from configs import WHEEL_DIGEST
from documents import ROWS_URI
from row import (
    FROM_RUN,
    LEDGER,
    OWN_CODE,
    RETAINED,
    SERVED_ROWS,
    SUITE_DATA,
    VLLM,
    Row,
    judges,
    row,
    unbuilt_parameters,
)

SNAPSHOT = "s3://b/ns/{uid}/snapshots/manifests/" + "0" * 64 + ".json"
STORED = {
    "spec.restoreFrom": {
        "object": {"uri": SNAPSHOT.format(uid="a"), "digest": "blake3:" + "0" * 64}
    }
}
RUNS: dict[str, Row] = {
    # -- not built
    "spec.evaluate": row(
        "evaluated", "refused", edits={"spec.train": None, "spec.evaluate": {"baseline": TEACHER}}
    ),
    "spec.evaluate.baseline.fromRun": row(
        "evaluated", "refused", edits={"spec.train": None, "spec.evaluate": {"baseline": FROM_RUN}}
    ),
    "spec.restoreFrom.snapshotRef": row(
        "grpo", "start", edits={"spec.restoreFrom": {"snapshotRef": {"name": "a"}}}
    ),
    "spec.restoreFrom.request": row(
        "grpo", "start", edits={"spec.restoreFrom": {"snapshotRef": {"name": "a"}, "request": "a"}}
    ),
    **{
        f"spec.restoreFrom.object.{name}": row("grpo", consumer, edits=STORED)
        for name, consumer in (("uri", "start"), ("digest", "refusal"))
    },
    # -- inference: refused first, as a value that is refused is also one that rows are read by
    "spec.serve": row("served", "service", "children"),
    "spec.infer": row("infer", "refused", "batch"),
    "spec.infer.data.jsonl.uri": row("infer", "batch"),
    "spec.infer.data.jsonl.digest": row("infer", "batch"),
    "spec.infer.data.huggingFace": row(
        "infer",
        "refused",
        "batch",
        edits={"spec.infer": {"data": {"huggingFace": {"path": "dataset"}}}},
    ),
    **{
        f"spec.infer.data.huggingFace.{name}": row(
            "infer", "hub", edits={"spec.infer": {"data": {"huggingFace": {"path": "o/d"}}}}
        )
        for name in ("path", "name", "split", "revision")
    },
    "spec.infer.data.plugin": row(
        "infer", "refused", edits={**OWN_CODE, "spec.infer": {"data": SERVED_ROWS}}
    ),
    # -- the run
    "spec.preset": row("grpo", "learning"),
    "spec.seed": row("grpo", "prompts"),
    "spec.numerics.mode": row("vllm", "engine"),
    "spec.numerics.hashEverySteps": row("grpo", "learning"),
    "spec.suspend": row("grpo", "course"),
    "spec.runtimeRef": row("grpo", "start", edits={"spec.runtimeRef": {"name": "big"}}),
    "spec.queueName": row("grpo", "start"),
    "spec.managedBy": row("grpo", "start"),
    "spec.code.configMap": row(
        "grpo", "children", edits={"spec.code": {"configMap": {"name": "c"}}}
    ),
    "spec.code.image": row(
        "grpo", "children", edits={"spec.code": {"image": {"reference": "i:1"}}}
    ),
    "spec.code.wheel": row(
        "grpo",
        "code",
        edits={"spec.code": {"wheel": {"uri": "file:///place/a.whl", "digest": WHEEL_DIGEST}}},
    ),
    "spec.code.path": row(
        "grpo",
        "prompts",
        edits={"spec.code": {"path": "code"}, "spec.train.environment": {"python": PLUGIN}},
    ),
    "spec.storage": row("bucket", "store"),
    LEDGER: row("grpo", "children", "start", edits={"spec.storage": {"ledger": {"sqlite": {}}}}),
    f"{LEDGER}.postgres": row(
        "grpo",
        "children",
        edits={"spec.storage": {"ledger": {"postgres": {"secretRef": {"name": "dsn"}}}}},
    ),
    f"{LEDGER}.retention": row("grpo", "rules", edits={"spec.storage": {"ledger": RETAINED}}),
    "spec.env": row("pods", "children"),
    "spec.actors": row("pods", "children", "engine", "start"),
    "spec.actors.replicas": row("pods", "children"),
    "spec.actors.engine.embedded": row("embedded", "engine"),
    VLLM: row("pods", "engine", "children", edits={f"{VLLM}.maxNumSeqs": 4}),
    f"{VLLM}.weightTransfer": row("pods", "refused"),
    f"{VLLM}.sleepLevel": row("pods", "refused"),
    f"{VLLM}.extraArguments": row("pods", "engine", "refused"),
    "spec.actors.nodesPerReplica": row("pods", "refused"),
    "spec.actors.accelerator": row("pods", "children", "start"),
    "spec.actors.accelerator.className": row("pods", "start"),
    "spec.learner.accelerator.className": row("pods", "start"),
    "spec.actors.autoscale": row(
        "fast", "rules", edits={"spec.actors": {"autoscale": {"min": 2, "max": 8}}}
    ),
    "spec.learner": row("pods", "children", "start"),
    "spec.learner.sequenceParallel": row("pods", "ranks"),
    "spec.learner.strategy.ddp": row("pods", "ranks"),
    "spec.learner.strategy.fsdp": row("pods", "ranks"),
    "spec.learner.optimizerOffload": row("grpo", "learning"),
    "spec.learner.standby": row("grpo", "processes", "refused"),
    # -- measured, kept, tracked, bounded
    "spec.evaluations": row("evaluated", "rules", "prompts", "scores"),
    "spec.evaluations[].suite.data": row("evaluated-rows", "prompts", "look"),
    **dict(judges("spec.evaluations[].suite.rewards", "evaluated-rows")),
    "spec.evaluations[].suite.data.huggingFace": row(
        "evaluated-rows", "prompts", edits={f"{SUITE_DATA}": {"huggingFace": {"path": "dataset"}}}
    ),
    **{
        f"spec.evaluations[].suite.data.huggingFace.{name}": row(
            "evaluated-rows", "hub", edits={f"{SUITE_DATA}": {"huggingFace": {"path": "o/d"}}}
        )
        for name in ("path", "name", "split", "revision", "streaming")
    },
    **{
        f"{SUITE_DATA}.{kind}.{name}": row(
            "evaluated-rows", "refused", edits={**OWN_CODE, SUITE_DATA: {kind: where}}
        )
        for kind, where in (
            ("jsonl", {"uri": ROWS_URI}),
            ("huggingFace", {"path": "dataset"}),
            *SERVED_ROWS.items(),
        )
        for name in ("chosenField", "rejectedField", "labelField", "marginField", "imageField")
    },
    f"{SUITE_DATA}.plugin": row(
        "evaluated-rows", "plugins", edits={**OWN_CODE, SUITE_DATA: SERVED_ROWS}
    ),
    f"{SUITE_DATA}.shuffle": row("evaluated-rows", "refused"),
    f"{SUITE_DATA}.tailBatch": row("evaluated-rows", "refused"),
    f"{SUITE_DATA}.onBadRecord": row(
        "evaluated-rows",
        "prompts",
        edits={SUITE_DATA: {"jsonl": {"uri": "broken.jsonl"}, "onBadRecord": "Skip"}},
    ),
    f"{SUITE_DATA}.evalFraction": row("evaluated-rows", "prompts"),
    **dict(
        unbuilt_parameters(
            "spec.evaluations[].suite.builtin",
            "evaluated",
            "spec.evaluations[].suite.builtin",
            {"name": "arithmetic"},
        )
    ),
    **dict(
        unbuilt_parameters(
            "spec.evaluations[].suite.python",
            "evaluated",
            "spec.evaluations[].suite.python",
            PLUGIN,
            **{"spec.evaluations[].suite": {"python": PLUGIN}},
        )
    ),
    "spec.evaluations[].suite.python": row(
        "evaluated",
        "prompts",
        edits={
            "spec.evaluations": [{**SUITE, "suite": {"python": {**PLUGIN, "className": "Quiz"}}}],
            **OWN_CODE,
        },
    ),
    "spec.evaluations[].suite.plugin": row(
        "evaluated",
        "plugins",
        edits={
            "spec.evaluations": [
                {
                    **SUITE,
                    "suite": {
                        "plugin": {
                            "path": "evaluation",
                            "parameters": [{"name": "word", "value": "hey"}],
                        }
                    },
                }
            ],
            **OWN_CODE,
        },
    ),
    "spec.snapshots": row("grpo", "rules"),
    "spec.snapshots.maxReplaySteps": row(
        "grpo", "refusal", edits={"spec.snapshots": {"everySteps": 40}}
    ),
    "spec.snapshots.include": row("grpo", "refused"),
    "spec.snapshots.keepLabeled": row("grpo", "refused"),
    **{
        f"spec.snapshots.{name}": row("scheduled", "schedules")
        for name in ("schedules", "onSuspend", "atEnd", "best")
    },
    "spec.snapshots.onPreemption": row("long", "coordination"),
    "spec.tracking[].wandb": row("wandb", "trackers"),
    "spec.tracking[].mlflow": row("mlflow", "trackers"),
    "spec.tracking[].tensorboard": row("wandb", "trackers"),
    "spec.tracking[].jsonl": row("wandb", "trackers"),
    "spec.tracking[].events": row(
        "grpo",
        "trackers",
        edits={"spec.tracking": [{"events": {"uri": "pubsub://a-project/runs"}}]},
    ),
    "spec.tracking[].plugin": row(
        "grpo",
        "trackers",
        edits={
            "spec.tracking": [
                {
                    "plugin": {
                        "path": "tracker",
                        "parameters": [{"name": "word", "value": "hey"}],
                    }
                }
            ],
            **OWN_CODE,
        },
    ),
    "spec.limits": row("limits", "course"),
    "spec.limits.noProgressSeconds": row("limits", "processes"),
    "spec.limits.sampleSeconds": row("fast", "coordination"),
    "spec.limits.sampleAttempts": row("long", "coordination"),
    **{
        f"spec.limits.{name}": row("limits", "rules")
        for name in (
            "mismatchKlWarn",
            "mismatchKlStop",
            "retokenisedWarn",
            "retokenisedStop",
            "rewardDivergence",
        )
    },
}


RT = "runtime"
"""Fields of a runtime are changed below this name: ``runtime.images.worker``."""


def _volumes(path: str) -> Iterator[tuple[str, Row]]:
    """Each kind of volume in place of the one in the base."""
    kinds = {
        "persistentVolumeClaim": {"claimName": "c"},
        "hostPath": {"path": "/mnt"},
        "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"},
        "configMap": {"name": "c"},
        "secret": {"secretName": "s"},
        "nfs": {"server": "n", "path": "/x"},
        "csi": {"driver": "d", "volumeAttributes": {"a": "b"}},
    }
    for kind, source in kinds.items():
        volume = {"name": "data", "mountPath": "/data", kind: source}
        yield f"{path}[].{kind}", row("devices", "children", edits={path: [volume]})


ADDED = {
    "spec.actors.engine": {"vllm": {"image": "registry.example/team/vllm:1"}},
    "spec.actors.priorityClassName": "high",
    "spec.storage": {"uri": "s3://bucket/ns/runs"},
}
"""What a run adds beside `PODS`, so that each list of its runtime has something to hold."""
BORNE = {
    "key": "t",
    "operator": "Equal",
    "value": "v",
    "effect": "NoExecute",
    "tolerationSeconds": 5,
}
ALLOWED = {
    "annotations": ["note"],
    "labels": ["team"],
    "images": ["registry.example/team/"],
    "storage": ["s3://bucket/$(namespace)/"],
    "wheels": ["https://files.example/"],
    "tolerations": [BORNE],
    "priorityClasses": ["high"],
}
BOXED = {
    "spec.train.environment": {"builtin": {"name": "arithmetic"}, "tools": ["python_exec"]},
    "runtime.sandbox": {
        "runtimeClassName": "gvisor",
        "userNamespaces": True,
        "image": "python:3.12",
        "nodeSelector": {"pool": "boxes"},
        "tolerations": [BORNE],
    },
}
"""A run whose policy writes programs, on a runtime with pods for them."""
RUNTIME_ROWS: dict[str, Row] = {
    RT: row("devices", "children", "start"),
    f"{RT}.engine": row(
        "pods",
        "engine",
        "children",
        edits={
            "spec.actors.engine": None,
            f"{RT}.engine": {
                "vllm": {"maxNumSeqs": 4, "extraArguments": [{"name": "block-size", "value": "16"}]}
            },
        },
    ),
    f"{RT}.engine.vllm.weightTransfer": row("pods", "refused", edits={"spec.actors.engine": None}),
    f"{RT}.engine.embedded": row("fast", "engine", edits={f"{RT}.engine": {"embedded": {}}}),
    f"{RT}.acceleratorClasses[].name": row("devices", "start"),
    f"{RT}.acceleratorClasses[].preemptibleNodeSelector": row(
        "devices", "children", edits={"spec.actors.preemptible": True}
    ),
    f"{RT}.acceleratorClasses[].topologyKey": row(
        "devices", "children", edits={f"{RT}.roles.learner.affinity": None}
    ),
    f"{RT}.acceleratorClasses[].memory": row("pods", "memory"),
    **{
        f"{RT}.storage.{name}": row("devices", "store")
        for name in ("uri", "endpoint", "region", "kmsKey", "cacheSize")
    },
    **{
        f"{RT}.roles.{role}.serviceAccountAnnotations": row(
            "devices", "children", edits={f"{RT}.roles.{role}.serviceAccountName": None}
        )
        for role in ("coordinator", "learner", "actors")
    },
    f"{RT}.ceilings.activeSeconds": row(
        "devices", "start", edits={"spec.limits": {"activeSeconds": 950, "noProgressSeconds": 100}}
    ),
    f"{RT}.storage.ledger.retention": row(
        "devices", "rules", edits={f"{RT}.storage": {"ledger": RETAINED}}
    ),
    f"{RT}.storage.ledger.postgres": row(
        "pods",
        "children",
        edits={f"{RT}.storage": {"ledger": {"postgres": {"secretRef": {"name": "dsn"}}}}},
    ),
    **{
        name: one
        for role in ("coordinator", "learner", "actors")
        for name, one in _volumes(f"{RT}.roles.{role}.volumes")
    },
    f"{RT}.modelCache.persistentVolumeClaim": row(
        "pods",
        "children",
        edits={f"{RT}.modelCache": {"persistentVolumeClaim": {"claimName": "c"}}},
    ),
    f"{RT}.modelCache.hostPath": row(
        "pods", "children", edits={f"{RT}.modelCache": {"hostPath": {"path": "/mnt"}}}
    ),
    f"{RT}.sandbox": row("pods", "children", edits=BOXED),
    f"{RT}.allowed": row("pods", "start", edits={**ADDED, f"{RT}.allowed": ALLOWED}),
    f"{RT}.allowed.tolerations[].operator": row(
        "pods",
        "start",
        edits={
            **ADDED,
            f"{RT}.allowed": {**ALLOWED, "tolerations": [{"key": "t", "operator": "Exists"}]},
        },
    ),
    f"{RT}.allowed.hosts": row(
        "pods",
        "start",
        edits={
            "spec.train.environment": {
                "builtin": {"name": "arithmetic"},
                "http": {"hosts": ["docs.example.org"]},
            },
            f"{RT}.allowed": {**ALLOWED, "hosts": ["docs.example.org"]},
        },
    ),
    f"{RT}.allowed.dataCodeNetwork": row(
        "pods",
        "start",
        "children",
        edits={
            "spec.train.environment": {"python": {"module": "mine", "className": "Mine"}},
            "spec.train.data": {"huggingFace": {"path": "owner/name"}},
        },
    ),
    f"{RT}.allowedNamespaces.from": row(
        "pods", "start", edits={f"{RT}.allowedNamespaces": {"from": "All"}}
    ),
    f"{RT}.allowedNamespaces.names": row(
        "pods", "start", edits={f"{RT}.allowedNamespaces": {"from": "Names", "names": ["ns"]}}
    ),
    f"{RT}.allowed.wheels": row(
        "pods",
        "start",
        edits={
            "spec.code": {"wheel": {"uri": "https://files.example/a.whl", "digest": WHEEL_DIGEST}},
            f"{RT}.allowed": ALLOWED,
        },
    ),
    f"{RT}.allowedNamespaces.selector": row(
        "pods",
        "start",
        edits={
            f"{RT}.allowedNamespaces": {
                "from": "Selector",
                "selector": {"matchLabels": {"team": "a"}},
            }
        },
    ),
}
