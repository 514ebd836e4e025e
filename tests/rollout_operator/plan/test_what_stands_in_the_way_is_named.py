"""Gates before a start: field, reason and remedy, from the same rules as the command line."""

from pathlib import Path

import pytest
import yaml
from worlds import SPEC

from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.checks import (
    check_form,
    check_platform,
    check_queue,
    count_devices,
    parse_runtime,
    queue_of,
    referenced,
    resolve_spec,
)
from rollout_operator.run.plan.preconditions.storage import Class, access_mode, check_storage
from rollout_operator.run.plan.preconditions.upstreams import Upstream, check_upstreams

CLASSES = [{"name": "h100", "memory": "80Gi", "perNode": 8}]


def run(**changes):
    spec = {**SPEC, **changes}
    meta = {"name": "r"}
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun", "metadata": meta}
    return {**head, "spec": spec}


def platform(spec, **runtime):
    used = RuntimeSpec.model_validate(runtime)
    return check_platform(resolve_spec(spec, used), used)


def test_the_smallest_run_has_fifteen_lines_at_most_and_may_start():
    text = (Path(__file__).parents[3] / "manifests/samples/arithmetic.yaml").read_text()
    assert len(text.splitlines()) <= 15
    assert check_form(yaml.safe_load(text)) is None


def test_a_good_run_has_nothing_in_its_way():
    assert check_form(run()) is None
    assert platform(SPEC) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actors": {"nodesPerReplica": 2}}, "spec.actors.nodesPerReplica"),
        ({"preset": "none@v1"}, "none@v1"),
        ({"trian": {}}, "train"),
    ],
)
def test_a_bad_form_names_its_field(changes, words):
    gate = check_form(run(**changes))
    assert gate is not None and gate.stalled
    assert gate.reason == "InvalidSpec"
    assert words in gate.message


def test_many_problems_make_one_short_message():
    spec = {"env": [{"name": f"ROLLOUT_{index}", "value": ""} for index in range(20)]}
    gate = check_form(run(**spec))
    assert gate is not None and "and 15 more" in gate.message


@pytest.mark.parametrize(
    ("spec", "runtime", "reason", "words"),
    [
        ({"learner": {"accelerator": {"className": "b200"}}}, {}, "InvalidSpec", "no class 'b200'"),
        (
            {"learner": {"accelerator": {"className": "h100", "count": 9}}},
            {"acceleratorClasses": CLASSES},
            "InvalidSpec",
            "has 8",
        ),
        ({"code": {"wheel": {"uri": "http://b/x.whl"}}}, {}, "InvalidSpec", "spec.code.wheel.uri"),
        ({"code": {"path": "/home/me"}}, {}, "InvalidSpec", "spec.code.path"),
        (
            {"actors": {"replicas": 9}},
            {"ceilings": {"actorReplicas": 8}},
            "CeilingExceeded",
            "allows 8",
        ),
        (
            {"learner": {"nodes": 3}},
            {"ceilings": {"learnerNodes": 2}},
            "CeilingExceeded",
            "spec.learner.nodes",
        ),
        (
            {"limits": {"activeSeconds": 5000}},
            {"ceilings": {"activeSeconds": 1000}},
            "CeilingExceeded",
            "activeSeconds",
        ),
        (
            {},
            {
                "roles": {
                    "learner": {"serviceAccountName": "same"},
                    "actors": {"serviceAccountName": "same"},
                }
            },
            "InvalidSpec",
            "one account per role",
        ),
    ],
)
def test_what_the_platform_lacks_or_forbids_is_named(spec, runtime, reason, words):
    gate = platform({**SPEC, **spec}, **runtime)
    assert gate is not None
    assert gate.reason == reason
    assert words in gate.message


def test_devices_are_counted_over_all_roles():
    spec = {
        **SPEC,
        "learner": {"nodes": 2, "processesPerNode": 8, "accelerator": {"className": "h100"}},
        "actors": {
            "replicas": 3,
            "accelerator": {"className": "h100"},
            "engine": {"vllm": {"tensorParallel": 2}},
        },
    }
    assert count_devices(resolve_spec(spec, RuntimeSpec())) == 2 * 8 + 3 * 2


def test_a_queue_is_found_wherever_it_is_named():
    spec = resolve_spec(SPEC, RuntimeSpec())
    named = resolve_spec({**SPEC, "queueName": "spec"}, RuntimeSpec())
    label = {"kueue.x-k8s.io/queue-name": "label"}
    runtime = RuntimeSpec(queue_name="runtime")
    assert queue_of(spec, RuntimeSpec(), {}) == ""
    assert queue_of(spec, runtime, {}) == "runtime"
    assert queue_of(spec, runtime, label) == "label"
    assert queue_of(named, runtime, label) == "spec"


def test_a_queue_without_kueue_names_the_fix():
    assert check_queue("", served=False) is None
    assert check_queue("gpus", served=True) is None
    gate = check_queue("gpus", served=False)
    assert gate is not None and gate.stalled
    assert gate.reason == "KueueNotInstalled"
    assert "install Kueue" in gate.message
    assert "spec.queueName" in gate.message


@pytest.mark.parametrize(
    ("state", "reason", "stalled"),
    [
        ("Waiting", "WaitingForRun", False),
        ("Failed", "WaitingForRun", True),
        ("Missing", "ReferenceNotFound", True),
        ("Cycle", "InvalidSpec", True),
        ("Succeeded", "ReferenceNotFound", True),
    ],
)
def test_other_runs_come_first(state, reason, stalled):
    gate = check_upstreams([Upstream(name="a", state=state)])
    assert gate is not None
    assert (gate.reason, gate.stalled) == (reason, stalled)


def test_a_volume_needs_a_class_and_a_database_does_not():
    sqlite = resolve_spec(SPEC, RuntimeSpec())
    postgres = {"ledger": {"postgres": {"secretRef": {"name": "x"}}}}
    database = resolve_spec({**SPEC, "storage": postgres}, RuntimeSpec())
    some = (Class(name="fast", provisioner="p", default=False),)
    assert check_storage(sqlite, None) is None
    assert check_storage(database, ()) is None
    for classes in ((), some):
        gate = check_storage(sqlite, classes)
        assert gate is not None and gate.reason == "NoStorageClass" and gate.retry_seconds <= 10


@pytest.mark.parametrize(
    ("driver", "mode"), [("p", "ReadWriteOncePod"), ("other", "ReadWriteOnce")]
)
def test_one_pod_alone_only_where_the_driver_is_csi(driver, mode):
    classes = (Class(name="fast", provisioner="p", default=True),)
    spec = resolve_spec(SPEC, RuntimeSpec())
    assert access_mode(spec, classes, frozenset({driver})) == mode


def test_storage_and_engine_of_the_platform_hold_where_the_run_names_none():
    ledger = {"postgres": {"secretRef": {"name": "x"}}}
    runtime = RuntimeSpec.model_validate(
        {"engine": {"embedded": {}}, "storage": {"uri": "s3://bucket/x", "ledger": ledger}}
    )
    spec = resolve_spec(SPEC, runtime)
    assert spec.storage is not None and spec.storage.uri == "s3://bucket/x"
    assert spec.actors.engine is not None and spec.actors.engine.chosen == "embedded"
    own = resolve_spec({**SPEC, "storage": {"uri": "s3://other/y"}}, runtime)
    assert own.storage is not None and own.storage.uri == "s3://other/y"
    assert own.storage.ledger is not None and own.storage.ledger.postgres is not None
    assert resolve_spec(SPEC, RuntimeSpec()).actors.engine.chosen == "vllm"  # pyrefly: ignore - there, or the test fails


def test_every_named_secret_and_config_map_is_looked_for():
    spec = {
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}}],
        "code": {"configMap": {"name": "c1"}},
        "train": {"rewards": [{"builtin": {"parametersFrom": [{"secretRef": {"name": "s2"}}]}}]},
    }
    assert sorted(referenced(spec)) == [("ConfigMap", "c1"), ("Secret", "s1"), ("Secret", "s2")]


def test_a_broken_runtime_is_a_gate_that_says_where():
    gate = parse_runtime({"images": {"wrker": "x"}}, "RolloutRuntime")
    assert isinstance(gate, Blocked) and "images.wrker" in gate.message


def test_a_runtime_that_asks_for_what_nobody_does_is_a_gate_without_the_webhook_too():
    engine = {"vllm": {"weightTransfer": "Nccl"}}
    gate = parse_runtime({"engine": engine}, "RolloutRuntime")
    assert isinstance(gate, Blocked)
    assert gate.message.startswith(
        "the runtime's spec.engine.vllm.weightTransfer: weights moved by"
    )


def test_a_runtime_whose_sandbox_pods_would_be_plain_containers_is_a_gate():
    gate = parse_runtime({"sandbox": {"image": "python:3.12"}}, "RolloutRuntime")
    assert isinstance(gate, Blocked)
    assert "spec.sandbox: neither runtimeClassName nor userNamespaces" in gate.message


@pytest.mark.parametrize(
    "environment",
    [
        {"builtin": {"name": "arithmetic"}, "tools": ["calculator", "python_exec"]},
        {"builtin": {"name": "code"}},
        {"agent": {"command": ["python", "clerk.py"]}},
        {
            "builtin": {"name": "arithmetic"},
            "mcpServers": [{"name": "shelf", "command": ["python", "shelf.py"]}],
        },
    ],
)
def test_what_the_policy_writes_needs_sandbox_pods_and_an_installation_that_makes_them(environment):
    spec = {**SPEC, "train": {**SPEC["train"], "environment": environment}}
    bare, boxed = RuntimeSpec(), RuntimeSpec.model_validate({"sandbox": {"userNamespaces": True}})
    resolved = resolve_spec(spec, boxed)
    gate = check_platform(resolved, bare, sandboxes=True)
    assert gate is not None and gate.reason == "NoSandbox"
    assert gate.message.startswith("spec.train.environment.") and "spec.sandbox" in gate.message
    gate = check_platform(resolved, boxed)
    assert gate is not None and gate.reason == "NoSandbox"
    assert "admissionPolicy.enabled" in gate.message
    assert check_platform(resolved, boxed, sandboxes=True) is None
    assert check_platform(resolve_spec(SPEC, bare), bare) is None


def test_groups_that_need_more_sandbox_pods_than_there_may_be_are_refused_where_they_wait():
    environment = {"builtin": {"name": "arithmetic"}, "tools": ["python_exec"]}
    few = RuntimeSpec.model_validate({"sandbox": {"userNamespaces": True, "maxPods": 15}})
    spec = {
        **SPEC,
        "train": {**SPEC["train"], "environment": environment},
        "actors": {"replicas": 2},
    }
    gate = check_platform(resolve_spec(spec, few), few, sandboxes=True)
    assert gate is not None and gate.reason == "NoSandbox"
    assert "up to 2 actors 16, and the runtime's spec.sandbox.maxPods is 15" in gate.message
    enough = RuntimeSpec.model_validate({"sandbox": {"userNamespaces": True, "maxPods": 16}})
    assert check_platform(resolve_spec(spec, enough), enough, sandboxes=True) is None
    fast = {**spec, "numerics": {"mode": "Fast"}}
    assert check_platform(resolve_spec(fast, few), few, sandboxes=True) is None
