"""Who reads which field: the base document in which it is changed, and where the difference must show.

A field is covered when a row names its path or one above it (the longest wins), the object it belongs to stands in
the row's base, and one of the row's consumers answers otherwise once the field alone is changed.

A new field: usually nothing is to do, or an object is to be added to a base in ``bases.py``. Else add a row here, a
value to ``VALUES`` where the one that is made up is not valid or changes nothing, or a consumer to ``consumers.py``.
A field that nothing reads yet is refused in ``rollout_api/checks/unbuilt.py``, and its row says ``refused``.
"""

from __future__ import annotations

from typing import Any

from bases import CONTAINER
from configs import DIGEST
from row import GRPO, PPO, SUITE_DATA, Row
from rows_of_runs import RT, RUNS, RUNTIME_ROWS, SNAPSHOT
from rows_of_training import TRAINING

CONTAINERS = [
    f"{one}.plugin.container"
    for one in (
        "spec.train.environment",
        "spec.train.rewards[]",
        "spec.evaluations[].suite.rewards[]",
    )
]
CONTAINERS.append("spec.train.environment.toolPlugins[].container")
ROWS: dict[str, Row] = {**TRAINING, **RUNS, **RUNTIME_ROWS}
"""By path."""
VALUES: dict[str, Any] = {
    "spec.train.environment.tools[]": "calculator",
    "spec.train.environment.http.hosts[]": "example.org:8443",
    f"{RT}.allowed.hosts[]": "example.org:8443",
    "spec.train.environment.mcpServers[].name": "desk",
    "spec.train.environment.toolPlugins[].container.tools[].parameters": '{"type": "object", "title": "x"}',
    "spec.train.environment.mcpServers[].files[]": "books.txt",
    "spec.restoreFrom.object.uri": SNAPSHOT.format(uid="b"),
    f"{RT}.ceilings.actorReplicas": 1,
    f"{RT}.ceilings.learnerNodes": 1,
    f"{RT}.ceilings.accelerators": 4,
    f"{RT}.ceilings.activeSeconds": 900,
    f"{RT}.allowed.tolerations[].tolerationSeconds": 4,
    f"{RT}.trustedSigners[]": "ed25519:" + "1" * 64,
    f"{RT}.acceleratorClasses[].name": "other",
    f"{RT}.acceleratorClasses[].perNode": 2,
    f"{RT}.storage.uri": "s3://platform/other",
    f"{RT}.storage.endpoint": "http://s3:1",
    f"{RT}.storage.kmsKey": "arn:aws:kms:eu-central-1:111122223333:key/" + "0" * 36,
    f"{RT}.engine.vllm.extraArguments[].name": "swap-space",
    "spec.model.dtype": "BFloat16",
    "spec.train.algorithm.sft.maxLength": 4,
    "spec.infer.data.jsonl.digest": DIGEST,
    "spec.train.data.jsonl.digest": DIGEST,
    "spec.train.environment.builtin.name": "single-turn",
    "spec.train.rewards[].builtin.name": "length",
    "spec.train.rewards[].python.path": "other.py",
    "spec.train.heldOut.maxRows": 1,
    "spec.train.importanceSampling.sequenceMasked.high": "900",
    "spec.train.dynamicSampling.generationWavesMax": 1,
    "spec.train.stragglers.stealMarginSeconds": 60,
    **{f"spec.train.schedule.{name}.warmupSteps": 2 for name in ("constant", "cosine", "linear")},
    "spec.train.microBatchTokens": 16,
    "spec.preset": "dr-grpo@v1",
    "spec.managedBy": "kueue.x-k8s.io/multikueue",
    "spec.code.wheel.digest": DIGEST,
    "spec.storage.uri": "s3://bucket/other",
    "spec.tracking[].events.uri": "pubsub://a-project/other",
    "spec.storage.endpoint": "http://s3:1",
    "spec.storage.kmsKey": "arn:aws:kms:eu-central-1:111122223333:key/" + "0" * 36,
    **{f"{one}.image": CONTAINER["image"].replace("polite", "other") for one in CONTAINERS},
    **{
        f"spec.{role}.resources.{kind}": {"cpu": "3"}
        for role in ("actors", "learner")
        for kind in ("requests", "limits")
    },
    "spec.actors.engine.embedded.batchGroups": 3,
    f"{RT}.engine.embedded.batchGroups": 3,
    "spec.actors.engine.vllm.extraArguments[].name": "swap-space",
    "spec.actors.accelerator.className": "other",
    "spec.learner.accelerator.className": "other",
    "spec.learner.nodes": 1,
    "spec.learner.processesPerNode": 1,
    "spec.snapshots.include[]": "Buffer",
    "spec.snapshots.maxReplaySteps": 30,
    "spec.snapshots.schedules[].cron": "30 1 * * *",
    "spec.snapshots.schedules[].timeZone": "America/New_York",
    "spec.snapshots.schedules[].everySteps": 200,
    "spec.snapshots.schedules[].startingDeadlineSeconds": 60,
    "spec.snapshots.schedules[].keepLast": 1,
    "spec.limits.preRunningSeconds": 950,
    "spec.limits.activeSeconds": 2000,
    "spec.limits.noProgressSeconds": 400,
    "spec.limits.nodeLostSeconds": 40,
    "spec.limits.sampleSeconds": 150,
    "spec.limits.retries": 2,
    "spec.limits.mismatchKlWarn": "0.1",
    "spec.limits.retokenisedWarn": "0.7",
    "spec.limits.rewardDivergence": "StopRun",
    "spec.limits.ttlSecondsAfterFinished": 50,
    "spec.limits.ttlAction": "DeleteRun",
    "spec.evaluations[].gate.metric": "pass@2",
    "spec.limits.gangSeconds": 200,
    "spec.train.algorithm.dpo.loss": "Hinge",
    f"{SUITE_DATA}.jsonl.digest": DIGEST,
    "spec.evaluations[].suite.builtin.name": "gsm8k",
    "spec.evaluations[].suite.rewards[].builtin.name": "length",
    "spec.evaluations[].suite.rewards[].python.path": "other.py",
    "spec.train.algorithm.kto.maxLength": 6,
    **{
        f"spec.train.algorithm.{name}.maxLength": 6
        for name in ("rm", "dpo", "ipo", "orpo", "simpo")
    },
    f"{GRPO}.surrogate.dppo.maskLow": "0.001",
    f"{GRPO}.surrogate.dppo.maskHigh": "0.001",
    f"{GRPO}.quorum": "1",
    f"{PPO}.klController.adaptive.target": "100",
}
"""Where the value that is made up from the field's type is not valid, or changes nothing."""
