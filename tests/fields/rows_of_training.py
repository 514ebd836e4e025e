"""Rows of ``spec.model`` and ``spec.train``; ``rows.py`` says how they are read."""

from __future__ import annotations

from bases import CONTAINER, PLUGIN, SHELF
from row import (
    FROM_RUN,
    GRPO,
    HUB,
    OWN_CODE,
    PPO,
    SERVED_ROWS,
    Row,
    judges,
    row,
    sources,
    unbuilt_parameters,
)

AN_AGENT = {
    **OWN_CODE,
    "spec.train.environment": {
        "agent": {
            "command": ["python", "my_code.py"],
            "files": ["my_code.py"],
            "verifier": {"command": ["python", "/tests/my_code.py"], "files": ["my_code.py"]},
        }
    },
}
TRAINING: dict[str, Row] = {
    # -- the model
    **dict(sources("spec.model", "grpo")),
    "spec.model.dtype": row("grpo", "learning", "engine"),
    "spec.model.chatTemplate": row("sft", "prompts"),
    "spec.model.lora": row("lora", "learning"),
    "spec.model.lora.dropout": row("lora", "refused", "learning"),
    # -- algorithms
    "spec.train.algorithm.sft": row("sft", "learning", "coordination"),
    "spec.train.algorithm.rm": row("rm", "learning", "coordination"),
    "spec.train.algorithm.dpo": row("dpo", "learning", "coordination"),
    "spec.train.algorithm.dpo.labelSmoothing": row("smoothed", "learning"),
    "spec.train.algorithm.ipo": row("ipo", "learning", "coordination"),
    "spec.train.algorithm.ipo.aggregation": row(
        "ipo", "learning", edits={"spec.train.algorithm.ipo.answerLengths": "Mixed"}
    ),
    "spec.train.algorithm.ipo.answerLengths": row("sums", "refusal"),
    "spec.train.algorithm.kto": row("kto", "learning", "coordination"),
    "spec.train.algorithm.orpo": row("orpo", "learning", "coordination"),
    "spec.train.algorithm.simpo": row("simpo", "learning", "coordination"),
    "spec.train.algorithm.distill": row("distill", "learning", "coordination"),
    **dict(sources("spec.train.algorithm.distill.teacher", "distill")),
    PPO: row("ppo", "learning", "coordination"),
    f"{PPO}.klController": row(
        "ppo",
        "learning",
        edits={
            f"{PPO}.klController": {"adaptive": {"target": "0.1", "horizon": 10}},
            f"{PPO}.klEstimator": "K3",
        },
    ),
    f"{PPO}.critic.optimizer.sgd": row(
        "ppo", "learning", edits={f"{PPO}.critic": {"optimizer": {"sgd": {"learningRate": "1e-2"}}}}
    ),
    f"{PPO}.critic": row(
        "ppo",
        "learning",
        edits={f"{PPO}.critic": {"optimizer": {"adamw": {"learningRate": "1e-2"}}}},
    ),
    f"{PPO}.critic.model": row("ppo", "look", edits={f"{PPO}.critic": {"model": HUB}}),
    f"{PPO}.critic.model.fromRun": row(
        "ppo", "start", edits={f"{PPO}.critic": {"model": FROM_RUN}}
    ),
    GRPO: row("actor-ratio", "learning", "coordination"),
    f"{GRPO}.surrogate.clipped": row(
        "actor-ratio", "learning", edits={f"{GRPO}.surrogate": {"sapo": {}}}
    ),
    f"{GRPO}.surrogate.cispo.relative": row(
        "actor-ratio",
        "learning",
        edits={f"{GRPO}.surrogate": {"cispo": {"relative": {"clipLow": "0.5"}}}},
    ),
    f"{GRPO}.surrogate.cispo.absolute": row(
        "actor-ratio", "learning", edits={f"{GRPO}.surrogate": {"cispo": {"absolute": {}}}}
    ),
    **{
        f"{GRPO}.surrogate.{name}": row(
            "actor-ratio", "learning", edits={f"{GRPO}.surrogate": {name: {}}}
        )
        for name in ("sapo", "vespo", "dppo")
    },
    f"{GRPO}.surrogate.custom": row(
        "actor-ratio",
        "learning",
        edits={
            f"{GRPO}.surrogate": {
                "custom": {"name": "gentle", "parameters": [{"name": "slope", "value": "2"}]}
            }
        },
    ),
    f"{GRPO}.surrogate.gmpo": row(
        "actor-ratio",
        "learning",
        edits={f"{GRPO}.surrogate": {"gmpo": {}}, f"{GRPO}.aggregation": "SequenceMean"},
    ),
    f"{GRPO}.ratio": row("actor-ratio", "learning", edits={f"{GRPO}.aggregation": "SequenceMean"}),
    f"{GRPO}.quorum": row("long", "coordination"),
    f"{GRPO}.advantageEpsilon": row("actor-ratio", "learning"),
    # -- data
    "spec.train.data": row("rows", "prompts", "look"),
    "spec.train.environment.agent": row("grpo", "reach", edits=AN_AGENT),
    "spec.train.environment.agent.image": row(
        "pods",
        "children",
        "start",
        edits={
            "spec.train.environment": {"agent": {"command": ["python", "clerk.py"]}},
            "runtime.sandbox": {"userNamespaces": True},
        },
    ),
    "spec.train.environment.tools": row(
        "grpo",
        "look",
        edits={
            "spec.model": {"uri": "rollout://tiny-adder?steps=0"},
            "spec.train.environment.tools": ["shell"],
        },
    ),
    "spec.train.environment.http": row(
        "grpo", "reach", edits={"spec.train.environment.http": {"hosts": ["docs.example.org"]}}
    ),
    "spec.train.environment.mcpServers": row(
        "grpo",
        "reach",
        edits={
            **OWN_CODE,
            "spec.train.environment.mcpServers": [
                {"name": "shelf", "command": ["python", "my_code.py"], "files": ["my_code.py"]}
            ],
        },
    ),
    "spec.train.environment.toolPlugins[].container": row(
        "grpo", "children", edits={"spec.train.environment.toolPlugins": [{"container": SHELF}]}
    ),
    "spec.train.environment.toolPlugins[].container.tools": row(
        "grpo", "reach", edits={"spec.train.environment.toolPlugins": [{"container": SHELF}]}
    ),
    "spec.train.environment.toolPlugins": row(
        "grpo",
        "plugins",
        edits={
            **OWN_CODE,
            "spec.train.environment.toolPlugins": [
                {"path": "tool", "parameters": [{"name": "word", "value": "hey"}]}
            ],
        },
    ),
    "spec.train.data.plugin": row(
        "rows", "plugins", edits={**OWN_CODE, "spec.train.data": SERVED_ROWS}
    ),
    "spec.train.data.plugin.imageField": row(
        "rows", "refused", edits={**OWN_CODE, "spec.train.data": SERVED_ROWS}
    ),
    **{
        f"spec.train.data.plugin.{name}": row(
            base, "plugins", edits={**OWN_CODE, "spec.train.data": SERVED_ROWS}
        )
        for name, base in (
            ("chosenField", "dpo"),
            ("rejectedField", "dpo"),
            ("labelField", "kto"),
            ("marginField", "margins"),
        )
    },
    "spec.train.data.jsonl.imageField": row("rows", "refused"),
    "spec.train.data.huggingFace.imageField": row("dataset", "refused"),
    "spec.train.data.jsonl.chosenField": row("dpo", "learning"),
    "spec.train.data.jsonl.rejectedField": row("dpo", "learning"),
    "spec.train.data.jsonl.labelField": row("kto", "learning"),
    "spec.train.data.jsonl.marginField": row("margins", "learning"),
    "spec.train.data.huggingFace": row("dataset", "prompts"),
    "spec.train.data.huggingFace.chosenField": row(
        "dpo", "learning", edits={"spec.train.data": {"huggingFace": {"path": "dataset"}}}
    ),
    "spec.train.data.huggingFace.rejectedField": row(
        "dpo", "learning", edits={"spec.train.data": {"huggingFace": {"path": "dataset"}}}
    ),
    "spec.train.data.huggingFace.labelField": row(
        "kto", "learning", edits={"spec.train.data": {"huggingFace": {"path": "dataset"}}}
    ),
    "spec.train.data.huggingFace.marginField": row(
        "margins", "learning", edits={"spec.train.data": {"huggingFace": {"path": "dataset"}}}
    ),
    **{
        f"spec.train.data.huggingFace.{name}": row(
            "dataset", "hub", edits={"spec.train.data.huggingFace": {"path": "o/d"}}
        )
        for name in ("path", "name", "split", "revision", "streaming")
    },
    "spec.train.data.tailBatch": row(
        "tail", "prompts", edits={"spec.train.maxSteps": None, "spec.train.epochs": 1}
    ),
    "spec.train.data.onBadRecord": row("broken-rows", "prompts"),
    "spec.train.heldOut": row("held-out", "rules", "prompts"),
    # -- what is acted in, and rewarded
    "spec.train.environment.builtin": row(
        "grpo",
        "prompts",
        edits={
            "spec.train.environment": {
                "builtin": {"name": "arithmetic", "parameters": [{"name": "digits", "value": "1"}]}
            }
        },
    ),
    **dict(
        unbuilt_parameters(
            "spec.train.environment.builtin",
            "grpo",
            "spec.train.environment.builtin",
            {"name": "arithmetic"},
        )
    ),
    "spec.train.environment.python": row(
        "grpo", "prompts", edits={"spec.train.environment": {"python": PLUGIN}, **OWN_CODE}
    ),
    "spec.train.environment.plugin.container": row(
        "rows",
        "children",
        edits={"spec.train.environment": {"plugin": {"container": CONTAINER}}},
    ),
    "spec.train.environment.plugin": row(
        "rows",
        "plugins",
        edits={
            "spec.train.environment": {
                "plugin": {
                    "path": "environment",
                    "parameters": [{"name": "word", "value": "hey"}],
                }
            },
            **OWN_CODE,
        },
    ),
    **dict(
        unbuilt_parameters(
            "spec.train.environment.python",
            "grpo",
            "spec.train.environment.python",
            PLUGIN,
            **{"spec.train.environment": {"python": PLUGIN}, **OWN_CODE},
        )
    ),
    "spec.train.environment.builtin.name": row(
        "grpo", "refusal", edits={"spec.train.environment": {"builtin": {"name": "arithmetic"}}}
    ),
    **dict(judges("spec.train.rewards", "grpo")),
    # -- sampling and the step
    "spec.train.sampling": row("grpo", "refused"),
    "spec.train.sampling.temperature": row("grpo", "learning"),
    "spec.train.sampling.maxNewTokens": row("vllm", "engine"),
    "spec.train.sampling.minNewTokens": row("grpo", "learning"),
    **{
        f"spec.train.sampling.{name}": row(
            "grpo", "completions", edits={"spec.train.sampling.stop": ["#"]}
        )
        for name in ("stop", "stopTokenIds", "includeStopText")
    },
    **dict(sources("spec.train.reference", "reference")),
    "spec.train.cacheReference": row("dpo", "learning"),
    "spec.train.maxPromptTokens": row("grpo", "look"),
    "spec.train.oldLogprobs": row("grpo", "learning"),
    "spec.train.importanceSampling.none": row(
        "grpo", "learning", edits={"spec.train.importanceSampling": {"tokenTruncated": {}}}
    ),
    **{
        f"spec.train.importanceSampling.{name}": row(
            "grpo", "learning", edits={"spec.train.importanceSampling": {name: {}}}
        )
        for name in ("tokenTruncated", "sequenceTruncated", "tokenMasked", "sequenceMasked")
    },
    "spec.train.dynamicSampling": row(
        "long", "coordination", edits={"spec.train.dynamicSampling": {}}
    ),
    "spec.train.overlongPenalty": row("grpo", "learning", edits={"spec.train.overlongPenalty": {}}),
    "spec.train.stragglers": row("stragglers", "rules", "coordination"),
    "spec.train.maxStaleness": row("fast", "coordination"),
    "spec.train.optimizer.adamw": row("grpo", "learning"),
    "spec.train.optimizer.sgd": row(
        "grpo", "learning", edits={"spec.train.optimizer": {"sgd": {"learningRate": "1e-2"}}}
    ),
    "spec.train.schedule.constant": row(
        "grpo", "learning", edits={"spec.train.schedule": {"constant": {}}}
    ),
    "spec.train.schedule.cosine": row(
        "grpo", "learning", edits={"spec.train.schedule": {"cosine": {"horizonSteps": 4}}}
    ),
    "spec.train.schedule.linear": row(
        "grpo", "learning", edits={"spec.train.schedule": {"linear": {"horizonSteps": 4}}}
    ),
    "spec.train.maxGradNorm": row("grpo", "learning"),
    "spec.train.microBatchTokens": row("grpo", "learning"),
    "spec.train.activationCheckpointing": row("grpo", "learning"),
    "spec.train.output.uri": row(
        "grpo", "export", edits={"spec.train.output": {"uri": "/models/a"}}
    ),
    "spec.train.maxSteps": row("grpo", "coordination"),
    "spec.train.epochs": row("rows", "prompts", edits={"spec.train.maxSteps": None}),
}
