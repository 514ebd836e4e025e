"""Runs with ``serve``: training as a service is one process on a CPU, and whatever it does not read is refused by name."""

import pytest

from rollout_api.checks import check_document
from rollout_api.checks.facts import Facts
from rollout_api.problems import Severity

KEYS = [{"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}]
CLUSTER = Facts(platform="cluster")


def refused(spec, facts=CLUSTER):
    base = {"model": {"uri": "rollout://tiny-adder"}, "serve": {"apiKeys": KEYS}}
    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "desk"},
        "spec": base | spec,
    }
    errors = [one for one in check_document(document, facts) if one.severity is Severity.error]
    assert all(one.fix for one in errors)
    return [(one.field, one.reason) for one in errors]


def test_a_service_with_keys_and_cores_is_taken():
    resources = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    serve = {"modelName": "tiny", "apiKeys": KEYS, "skipUnembed": True}
    storage = {"ledger": {"sqlite": {"size": "5Gi"}, "deletionPolicy": "Delete"}}
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert not refused(
        {
            "serve": serve,
            "learner": {"resources": resources},
            "storage": storage,
            "env": [token],
            "limits": {"activeSeconds": 100, "retries": 2},
        }
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"learner": {"nodes": 2}}, "learner.nodes"),
        ({"learner": {"processesPerNode": 2}}, "learner.processesPerNode"),
        ({"learner": {"accelerator": {"className": "h100"}}}, "learner.accelerator"),
        ({"learner": {"strategy": {"fsdp": {}}}}, "learner.strategy.fsdp"),
        ({"learner": {"env": [{"name": "A", "value": "1"}]}}, "learner.env"),
        ({"actors": {"replicas": 2}}, "actors.replicas"),
        ({"actors": {"accelerator": {"className": "h100"}}}, "actors.accelerator"),
        (
            {"actors": {"engine": {"embedded": {"batchGroups": 2}}}},
            "actors.engine.embedded.batchGroups",
        ),
        ({"actors": {"engine": {"vllm": {}}}}, "actors.engine.vllm"),
        ({"model": {"uri": "rollout://tiny-adder", "lora": {"rank": 8}}}, "model.lora"),
        ({"model": {"uri": "rollout://tiny-adder", "dtype": "BFloat16"}}, "model.dtype"),
        ({"model": {"uri": "rollout://tiny-adder", "chatTemplate": "plain"}}, "model.chatTemplate"),
        ({"model": {"fromRun": {"name": "a"}}}, "model.fromRun"),
        ({"model": {"uri": "hf://o/m", "revision": "main"}}, "model.revision"),
        ({"seed": 3}, "seed"),
        ({"numerics": {"mode": "Fast"}}, "numerics"),
        ({"snapshots": {"everySteps": 7}}, "snapshots"),
        ({"tracking": [{"wandb": {"project": "p"}}]}, "tracking"),
        ({"code": {"configMap": {"name": "c"}}}, "code"),
        ({"limits": {"sampleAttempts": 2}}, "limits.sampleAttempts"),
        ({"env": [{"name": "A", "value": "1"}]}, "env[0]"),
        ({"storage": {"uri": "s3://bucket/runs"}}, "storage.uri"),
        (
            {"storage": {"ledger": {"postgres": {"secretRef": {"name": "dsn"}}}}},
            "storage.ledger.postgres",
        ),
        (
            {"storage": {"ledger": {"retention": {"trajectories": {"steps": 1}}, "sqlite": {}}}},
            "storage.ledger.retention",
        ),
        ({"evaluations": [{"suite": {"builtin": {"name": "arithmetic"}}}]}, "evaluations"),
        ({"restoreFrom": {"snapshotRef": {"name": "a"}}}, "restoreFrom"),
    ],
)
def test_what_a_service_does_not_read_is_refused_by_name(spec, field):
    assert refused(spec) == [(f"spec.{field}", "NotSupported")]


def test_in_a_cluster_somebody_must_have_a_key():
    assert refused({"serve": {}}) == [("spec.serve.apiKeys", "MissingField")]
    assert not refused({"serve": {}}, Facts(platform="local"))


def test_a_name_that_no_client_could_write_is_refused():
    serve = {"apiKeys": KEYS, "modelName": "my=model"}
    assert refused({"serve": serve}) == [("spec.serve.modelName", "InvalidValue")]
