"""The base documents by name: runs that between them hold every object of the API, and runtimes for them."""

from __future__ import annotations

from typing import Any

from documents import (
    CLASS,
    DEVICES,
    FAST,
    MATCH,
    PODS,
    ROWS_URI,
    SECRET,
    Document,
    grpo,
    offline,
    online,
    run,
)

TEACHER = {"uri": "rollout://tiny-qwen2"}
ACTOR_RATIO = {"oldLogprobs": "Actor"}
"""The actors' probabilities are far from the learner's in the synthetic samples: clips and bounds are met."""
SUITE = {
    "name": "held",
    "suite": {"builtin": {"name": "arithmetic", "parameters": [{"name": "digits", "value": "1"}]}},
    "samplesPerPrompt": 2,
    "temperature": "0.5",
    "maxPrompts": 3,
    "everySteps": 2,
    "gate": {"metric": "accuracy", "lowerBound": "0.45"},
}
PLUGIN = {
    "module": "my_code",
    "className": "Game",
    "parameters": [{"name": "word", "value": "hey"}],
}
JUDGE = {
    "module": "my_code",
    "function": "judge",
    "parameters": [{"name": "wanted", "value": "5"}],
}
CONTAINER = {
    "name": "polite",
    "image": f"registry.example/polite@sha256:{'a' * 64}",
    "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
}
SHELF = {
    **CONTAINER,
    "tools": [{"name": "count", "description": "Counts.", "parameters": '{"type": "object"}'}],
}
REFERENCE_KL = {"klCoefficient": "0.5", "epochs": 2}
VOLUME = {
    "name": "data",
    "mountPath": "/data",
    "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"},
}
ROLE = {
    **PODS,
    "serviceAccountName": "own",
    "securityContext": {
        "runAsUser": 5,
        "runAsGroup": 5,
        "fsGroup": 5,
        "supplementalGroups": [5],
        "seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"},
    },
    "volumes": [VOLUME],
}
RUNTIME: Document = {
    "images": {"worker": "w:1", "vllm": "v:1", "pullSecrets": [{"name": "pull"}]},
    "acceleratorClasses": [
        {
            "name": CLASS,
            "memory": "80Gi",
            "perNode": 8,
            "nodeSelector": {"gpu": "a"},
            "preemptibleNodeSelector": {"spot": "a"},
            "tolerations": [
                {
                    "key": "n",
                    "operator": "Equal",
                    "value": "v",
                    "effect": "NoExecute",
                    "tolerationSeconds": 5,
                }
            ],
            "topologyKey": "rack",
            "network": {
                "annotations": {"net": "a"},
                "env": [{"name": "NCCL", "value": "1"}, {"name": "KEY", "valueFrom": SECRET}],
                "resources": {"efa": "1"},
            },
        }
    ],
    "roles": {
        role: {**ROLE, "serviceAccountName": f"{role}-account"}
        for role in ("coordinator", "learner", "actors")
    },
    "storage": {
        "uri": "s3://platform/runs",
        "ledger": {"sqlite": {"storageClassName": "fast", "size": "5Gi"}},
    },
    "modelCache": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    "queueName": "queue",
    "ceilings": {"actorReplicas": 2, "learnerNodes": 2, "accelerators": 16, "activeSeconds": 1000},
}


def with_rows(algorithm: Document | None = None, **data: Any) -> Document:
    """GRPO over rows of a file."""
    document = grpo({"data": {"jsonl": {"uri": ROWS_URI}, **data}}, **(algorithm or {}))
    del document["spec"]["train"]["environment"]
    return document


def with_dataset(**options: Any) -> Document:
    """GRPO over a data set of the hub, or one that lies in a folder."""
    return with_rows(jsonl=None, huggingFace={"path": "dataset", **options})


def distill(**options: Any) -> Document:
    """Distillation; its rewards are part of the advantage."""
    wanted = {
        "teacher": TEACHER,
        "promptsPerStep": 2,
        "rewardCoefficient": "0.5",
        "klDiscount": "0.5",
    }
    return online({"distill": {**wanted, **options}}, ACTOR_RATIO)


def ppo(**options: Any) -> Document:
    """PPO, two passes over a step."""
    wanted = {"promptsPerStep": 2, "samplesPerPrompt": 4, "epochs": 2, "klCoefficient": "0.5"}
    return online({"ppo": {**wanted, **options}}, ACTOR_RATIO)


def embedded(document: Document) -> Document:
    """With the engine of a laptop, named."""
    document["spec"]["actors"] = {"engine": {"embedded": {}}}
    return document


BARE = {
    role: {key: value for key, value in DEVICES[role].items() if key not in PODS}
    for role in ("actors", "learner")
}
"""The same devices, and nothing of the user's on the pods: what the runtime sets is seen."""
LORA = grpo()
LORA["spec"]["model"]["lora"] = {"targets": ["Attention"]}

BASES: dict[str, Document] = {
    "grpo": grpo(),
    "long": grpo({"maxSteps": 100}),
    "actor-ratio": grpo(ACTOR_RATIO, klCoefficient="0.1"),
    "reference": grpo(**REFERENCE_KL),
    "fast": grpo({"maxSteps": 6}, FAST),
    "stragglers": grpo({"maxSteps": 6, "stragglers": {}}, FAST),
    "lora": LORA,
    "embedded": embedded(grpo(None, FAST)),
    "ppo": ppo(),
    "ppo-loss": ppo(klPlacement="Loss"),
    "distill": distill(),
    "sft": offline("sft"),
    "held-out": offline(
        "sft",
        {"data": {"jsonl": {"uri": ROWS_URI}, "evalFraction": "0.5"}, "heldOut": {"everySteps": 2}},
    ),
    **{name: offline(name) for name in ("rm", "dpo", "ipo", "orpo", "simpo")},
    "smoothed": offline("dpo", loss="Conservative", labelSmoothing="0.1"),
    "sums": offline("ipo", aggregation="SequenceSum"),
    "kto": offline("kto", {"microBatchTokens": 26}, maxLength=12),
    "margins": offline("rm", {"data": {"jsonl": {"uri": ROWS_URI, "marginField": "margin"}}}),
    "rows": with_rows(),
    "tail": with_rows({"promptsPerStep": 4}),
    "broken-rows": with_rows(jsonl={"uri": "broken.jsonl"}, onBadRecord="Skip"),
    "dataset": with_dataset(),
    "infer": run(
        {
            "model": TEACHER,
            "infer": {"data": {"jsonl": {"uri": ROWS_URI}}, "output": {"uri": "out"}},
        }
    ),
    "served": run(
        {
            "model": TEACHER,
            "serve": {"modelName": "tiny", "apiKeys": [{"name": "ann", **SECRET}]},
        }
    ),
    "evaluated": grpo(spec={"evaluations": [SUITE]}),
    "evaluated-rows": grpo(
        spec={
            "evaluations": [
                {"name": "own", "suite": {"data": {"jsonl": {"uri": ROWS_URI}}, "rewards": [MATCH]}}
            ]
        }
    ),
    "vllm": grpo(spec={"actors": {"engine": {"vllm": {}}}, **FAST}),
    "pods": grpo(spec={**DEVICES, **FAST}),
    "devices": grpo(spec={**BARE, **FAST}),
    "local": grpo(spec={"env": [{"name": "A", "value": "1"}]}),
    "bucket": grpo(spec={"storage": {"uri": "s3://bucket/runs"}}),
    "scheduled": grpo(
        {"maxSteps": 1000},
        {
            "storage": {"uri": "s3://bucket/runs"},
            "evaluations": [{**SUITE, "everySteps": 40, "selects": True}],
            "snapshots": {
                "everySteps": 20,
                "schedules": [
                    {
                        "name": "nightly",
                        "cron": "0 2 * * *",
                        "timeZone": "Europe/Berlin",
                        "startingDeadlineSeconds": 36000,
                        "keepLast": 2,
                        "deadlineSeconds": 600,
                    },
                    {"name": "hundreds", "everySteps": 100},
                ],
            },
        },
    ),
    "limits": grpo(spec={"limits": {"ttlSecondsAfterFinished": 500}}),
    "wandb": grpo(spec={"tracking": [{"wandb": {"project": "p"}}]}),
    "mlflow": grpo(spec={"tracking": [{"mlflow": {"uri": "http://m:1"}}]}),
}
