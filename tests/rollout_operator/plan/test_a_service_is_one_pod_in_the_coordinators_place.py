"""Runs with ``serve``: one pod with the run's volume, an address for clients, their keys, and no worker beside it."""

import json
from datetime import timedelta

import pytest
from worlds import World, build_inputs

from rollout_api import names
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.worker import WorkerOrder
from rollout_operator.run.attempt import build_children, render_record
from rollout_operator.run.permitted import Permit, build_allowances, check_permitted
from rollout_operator.run.plan.preconditions.checks import check_platform, referenced, resolve_spec
from rollout_operator.run.render.order import build_order
from rollout_operator.run.render.workloads import build_roles

SERVE = {
    "model": {"uri": "rollout://tiny-qwen2"},
    "serve": {
        "modelName": "tiny",
        "apiKeys": [
            {"name": "ann", "secretKeyRef": {"name": "loop-keys", "key": "a"}},
            {"name": "bob", "secretKeyRef": {"name": "loop-keys", "key": "b"}},
        ],
    },
    "learner": {"resources": {"requests": {"cpu": "3", "memory": "2Gi"}}},
    "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}}],
}
ANSWERS = {"url": "http://run-coordinator.ns.svc:8000", "models": 1, "calls": 4}


def rendered():
    made = build_children(build_inputs(SERVE), "record")
    return {(one["kind"], one["metadata"]["name"]): one for one in made}


def test_there_is_a_coordinator_and_nobody_else():
    found = rendered()
    assert build_roles(build_inputs(SERVE)) == ("coordinator",)
    assert {kind for kind, _ in found} == {
        *("ServiceAccount", "RoleBinding", "Service", "NetworkPolicy", "StatefulSet")
    }
    for name in {name for _, name in found} - {names.progress_name("run")}:
        assert name.startswith("run-coordinator"), name


def test_every_object_of_it_may_leave_for_the_api_server():
    inputs = build_inputs(SERVE)
    allowances = build_allowances(inputs.runtime)
    permit = Permit(run="run", namespace="ns", uid=inputs.uid, allowances=allowances)
    for manifest in rendered().values():
        check_permitted(manifest, permit)


def test_clients_come_to_one_port_and_the_operator_to_the_other():
    found = rendered()
    ports = found["Service", "run-coordinator"]["spec"]["ports"]
    assert [(one["name"], one["port"]) for one in ports] == [("api", 8443), ("train", 8000)]
    ours, clients = found["NetworkPolicy", "run-coordinator"]["spec"]["ingress"]
    assert len(ours["from"]) == 3
    assert clients == {"ports": [{"port": 8000, "protocol": "TCP"}]}


def test_the_pod_has_the_keys_as_files_the_cores_and_the_few_variables_that_it_needs():
    pod = rendered()["StatefulSet", "run-coordinator"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    keys = next(one for one in pod["volumes"] if one["name"] == "api-keys")
    items = [one["secret"]["items"][0] for one in keys["projected"]["sources"]]
    assert items == [{"key": "a", "path": "ann"}, {"key": "b", "path": "bob"}]
    assert keys["projected"]["defaultMode"] == 0o440
    assert container["resources"]["requests"] == {"cpu": "3", "memory": "2Gi"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsNonRoot"]
    secret = {one["name"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})}
    assert secret == {"HF_TOKEN"}
    assert sorted(referenced(SERVE)) == [("Secret", "hub"), *[("Secret", "loop-keys")] * 2]


def test_the_order_names_its_ports_its_threads_and_no_caller_but_the_operator():
    record = render_record(build_inputs(SERVE))
    order = WorkerOrder.model_validate_json(record.config_map["data"]["order.json"])
    assert order.threads == 3
    assert (order.layout.service_port, order.layout.api_keys_dir) == (
        *(8000, "/var/run/rollout/api-keys"),
    )
    assert order.authentication is not None
    assert set(order.authentication.accounts.values()) == {"operator"}
    assert order.spec.serve is not None
    assert "loop-keys" in json.dumps(order.model_dump(mode="json"))  # a Secret's name, no key


def test_an_order_of_other_work_has_neither():
    layout = build_order(build_inputs()).layout
    assert (layout.service_port, layout.api_keys_dir) == (None, None)


def test_it_is_ready_when_its_pod_is_and_goes_on_for_ever():
    world = World(spec=SERVE)
    world.settle()
    world.report(attempt=1, serve=ANSWERS)
    world.settle()
    assert world.replicas() == {"coordinator": 1}
    assert world.condition("Ready") == ("True", "Running")
    assert world.condition("ActorsReady") == ("True", "NoActorsNeeded")
    assert world.condition("LearnerReady") == ("True", "NoLearnerNeeded")
    assert world.status["progress"]["serve"] == ANSWERS
    world.now += timedelta(days=30)
    world.settle()
    assert world.condition("Ready") == ("True", "Running")


def test_one_that_never_answers_has_failed_by_name():
    world = World(spec={**SERVE, "limits": {"preRunningSeconds": 100}})
    world.pending = frozenset({"coordinator"})
    world.settle()
    world.now += timedelta(seconds=200)
    world.settle()
    assert world.condition("Failed") == ("True", "PreRunningSecondsExceeded")
    assert "no answer of the service within" in world.message("Finished")


def claims(world):
    """Names of the claims that the newest attempt's pods mount."""
    record = max(world.records.values(), key=lambda one: one.attempt)
    made = [one for one in record.children if one["kind"] == "StatefulSet"]
    return [one["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] for one in made]


def test_suspension_needs_no_cut_and_another_attempt_has_the_same_volume():
    world = World(spec=SERVE)
    world.settle()
    world.report(attempt=1, serve=ANSWERS)
    before = claims(world)
    world.change(suspend=True)
    world.settle()
    assert (world.stops, world.pods) == (0, {})
    assert world.condition("Suspended") == ("True", "Suspended")
    world.change(suspend=False)
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    assert claims(world) == before


@pytest.mark.parametrize("ledger", ["sqlite", "postgres"])
def test_a_runtime_that_keeps_ledgers_in_postgres_is_said_to_keep_no_book(ledger):
    kinds = {"sqlite": {"sqlite": {}}, "postgres": {"postgres": {"secretRef": {"name": "dsn"}}}}
    runtime = RuntimeSpec.model_validate({"storage": {"ledger": kinds[ledger]}})
    blocked = check_platform(resolve_spec(SERVE, runtime), runtime)
    assert (blocked is None) == (ledger == "sqlite")
    assert blocked is None or "a service's book is a file" in blocked.message
