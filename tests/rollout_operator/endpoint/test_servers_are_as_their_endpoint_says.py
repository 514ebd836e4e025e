"""What an endpoint's children look like: names, keys, drain, engines, who may reach them; and what is never sent."""

import json
from copy import deepcopy

import pytest
from endpoint_world import PLATFORM, SPEC

from rollout_api import names
from rollout_api.serving import VARIABLE, ServeOrder
from rollout_api.v1alpha1.inference.endpoint import EndpointSpec
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.endpoint.inputs import GRACE_SECONDS, LEAVE_SECONDS, ServerInputs
from rollout_operator.endpoint.model import ServedModel
from rollout_operator.endpoint.permitted import EndpointPermit
from rollout_operator.endpoint.render.children import (
    build_awake,
    build_deployment,
    build_revision,
    build_service,
    build_surroundings,
)
from rollout_operator.endpoint.render.holder import build_holder
from rollout_operator.errors import ChildRefused
from rollout_operator.run.permitted import build_allowances

KEYS = [
    {"name": "ann", "secretKeyRef": {"name": "keys", "key": "a"}},
    {"name": "bob", "secretKeyRef": {"name": "others", "key": "b"}},
]
VLLM = {"vllm": {"image": "mine/vllm:1", "tensorParallel": 2}}
GPUS = {"acceleratorClasses": [{"name": "h100", "memory": "80Gi"}]}
SHARED = {"modelCache": {"hostPath": {"path": "/models"}}}


def inputs(runtime=None, **spec):
    model = {**SPEC, **spec}["model"]
    return ServerInputs(
        model=ServedModel(**model),
        name="chat",
        namespace="ns",
        uid="uid-0001",
        spec=EndpointSpec.model_validate({**SPEC, **spec}),
        runtime=RuntimeSpec.model_validate(runtime or {}),
        platform=PLATFORM,
    )


def pod(runtime=None, **spec):
    return build_revision(inputs(runtime, **spec)).template["spec"]


def containers(found):
    return {one["name"]: one for one in (*found.get("initContainers", ()), *found["containers"])}


def order(found):
    env = {one["name"]: one.get("value") for one in containers(found)["server"]["env"]}
    return ServeOrder.model_validate_json(env[VARIABLE])


def test_a_revision_is_named_by_all_that_its_pods_are_made_of_and_by_nothing_else():
    name = build_revision(inputs()).name
    assert name.startswith("chat-")
    assert name == build_revision(inputs()).name
    for same in ({"replicas": 5}, {"suspend": True}, {"revisionHistoryLimit": 2}):
        assert build_revision(inputs(**same)).name == name
    for other in (
        {"model": {"uri": "rollout://tiny-llama"}},
        {"engine": {"embedded": {"maxNumSeqs": 4}}},
        {"env": [{"name": "A", "value": "b"}]},
        {"apiKeys": KEYS},
        {"drainSeconds": 5},
    ):
        assert build_revision(inputs(**other)).name != name
    assert build_revision(inputs({"images": {"worker": "worker:2"}})).name != name


def test_the_longest_name_of_an_endpoint_leaves_room_for_its_pods():
    longest = "e" * 40
    assert len(names.revision_name(longest, "0" * 20)) <= 63 - 11
    assert len(names.server_name(longest)) <= 63


def test_keys_are_files_of_their_secrets_and_the_order_names_them_only():
    found = pod(apiKeys=KEYS)
    [keys] = [one for one in found["volumes"] if one["name"] == "api-keys"]
    assert keys["projected"]["sources"] == [
        {"secret": {"name": "keys", "items": [{"key": "a", "path": "ann"}]}},
        {"secret": {"name": "others", "items": [{"key": "b", "path": "bob"}]}},
    ]
    assert order(found).keys == ("ann", "bob")
    for name, one in containers(found).items():
        assert ("api-keys" in json.dumps(one["volumeMounts"])) == (name == "server")
    assert all(one["name"] != "api-keys" for one in pod()["volumes"])


def test_a_pod_has_time_to_leave_and_to_drain_and_its_gateway_is_asked_whether_it_is_ready():
    found = pod(drainSeconds=77)
    assert found["terminationGracePeriodSeconds"] == LEAVE_SECONDS + 77 + GRACE_SECONDS
    told = order(found)
    assert (told.drain_seconds, told.leave_seconds) == (77, LEAVE_SECONDS)
    server = containers(found)["server"]
    assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert server["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_a_vllm_server_stands_beside_its_gateway_ends_after_it_and_has_the_devices():
    found = pod(
        GPUS, engine=VLLM, accelerator={"className": "h100"}, model={"uri": "file:///models/a"}
    )
    parts = containers(found)
    assert list(parts) == ["place-plugin", "engine", "server"]
    engine, server = parts["engine"], parts["server"]
    assert (engine["image"], engine["restartPolicy"]) == ("mine/vllm:1", "Always")
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in json.dumps(server["resources"])
    assert "ports" not in engine
    assert "startupProbe" not in engine, "the gateway, which starts after it, tells it what to run"
    assert order(found).on_accelerator
    assert order(found).engine.vllm.tensor_parallel == 2


def test_secrets_of_the_user_go_to_the_gateway_and_not_to_the_engine():
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}}
    parts = containers(pod(engine=VLLM, env=[token]))
    assert "hub" in json.dumps(parts["server"]["env"])
    assert "hub" not in json.dumps(parts["engine"]["env"])


def test_our_variables_hold_whatever_a_user_or_runtime_calls_theirs():
    runtime = {"roles": {"actors": {"env": [{"name": VARIABLE, "value": "{}"}]}}}
    env = containers(pod(runtime, env=[{"name": "HOME", "value": "/x"}]))["server"]["env"]
    last = {one["name"]: one.get("value") for one in env}
    assert last["HOME"] == "/home/rollout"
    assert json.loads(last[VARIABLE])["uri"] == "rollout://tiny-adder"


def test_nothing_in_the_order_is_put_in_by_the_kubelet():
    env = containers(pod(modelName="a$(HF_TOKEN)"))["server"]["env"]
    text = {one["name"]: one.get("value") for one in env}[VARIABLE]
    assert "a$$(HF_TOKEN)" in text


def test_a_cache_of_several_pods_is_filled_by_one_container_and_read_by_the_others():
    parts = containers(pod(SHARED, engine=VLLM))
    assert list(parts) == ["place-plugin", "models", "engine", "server"]
    for name in ("engine", "server"):
        [mount] = [one for one in parts[name]["volumeMounts"] if one["name"] == "cache"]
        assert mount["readOnly"] is True
    [mount] = [one for one in parts["models"]["volumeMounts"] if one["name"] == "cache"]
    assert "readOnly" not in mount
    env = {one["name"]: one.get("value") for one in parts["server"]["env"]}
    assert env["ROLLOUT_CACHE"].endswith("/ns"), "in a node's folder each namespace has its own"


@pytest.mark.parametrize(("keys", "everybody"), [(KEYS, True), ([], False)])
def test_from_elsewhere_only_whoever_has_a_key_may_come(keys, everybody):
    found = build_surroundings(inputs(apiKeys=keys))
    [policy] = [one for one in found if one["kind"] == "NetworkPolicy"]
    [rule] = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]
    assert rule.get("from") == (None if everybody else [{"podSelector": {}}])
    assert policy["spec"]["podSelector"]["matchLabels"] == names.server_labels("chat", "uid-0001")


def children(runtime=None, **spec):
    given = inputs(runtime, **spec)
    revision = build_revision(given)
    made = [build_deployment(given, revision, 2), build_service(given, revision.name, tls=False)]
    return {one["kind"]: one for one in (*build_surroundings(given), *made)}


def permit(runtime=None):
    allowances = build_allowances(RuntimeSpec.model_validate(runtime or {}))
    return EndpointPermit(endpoint="chat", namespace="ns", uid="uid-0001", allowances=allowances)


def holders(runtime=None, **spec):
    found = inputs(runtime, **spec)
    return [build_holder(found), build_awake(found, build_revision(found).name)]


@pytest.mark.parametrize("runtime", [{}, SHARED])
@pytest.mark.parametrize("engine", [{"embedded": {}}, VLLM])
def test_who_holds_requests_may_be_sent_under_its_own_endpoints_name_alone(runtime, engine):
    for manifest in holders(runtime, engine=engine, apiKeys=KEYS):
        permit(runtime).check(manifest)
        for name in ("other-holder", "other-awake", "holder", "awake"):
            manifest["metadata"]["name"] = name
            with pytest.raises(ChildRefused, match="it is not sent"):
                permit(runtime).check(manifest)


def test_a_holder_is_told_no_key_and_is_reached_as_servers_are():
    holder, awake = holders(apiKeys=KEYS)
    template = holder["spec"]["template"]
    assert "secretKeyRef" not in str(template)
    mine = inputs(apiKeys=KEYS).selector.items()
    assert mine <= template["metadata"]["labels"].items(), "the policy of servers is its, too"
    assert template["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/healthz"
    selector = awake["spec"]["selector"]
    assert mine <= selector.items()
    assert not selector.items() <= template["metadata"]["labels"].items(), "never itself"


@pytest.mark.parametrize("runtime", [{}, SHARED])
@pytest.mark.parametrize("engine", [{"embedded": {}}, VLLM])
def test_everything_that_an_endpoint_is_made_of_may_be_sent(runtime, engine):
    for manifest in children(runtime, engine=engine, apiKeys=KEYS).values():
        permit(runtime).check(manifest)


def spec_of(manifest):
    return manifest["spec"]["template"]["spec"]


WISHES = {
    "another namespace": ("Deployment", lambda one: one["metadata"].update(namespace="victim")),
    "another name": ("Service", lambda one: one["metadata"].update(name="kubernetes")),
    "another endpoint's servers": (
        "Deployment",
        lambda one: one["metadata"].update(name="other-0123456789"),
    ),
    "an object of nobody": ("Service", lambda one: one["metadata"].pop("ownerReferences")),
    "a kind of runs": ("Deployment", lambda one: one.update(kind="StatefulSet")),
    "an address outside": ("Service", lambda one: one["spec"].update(externalIPs=["10.0.0.1"])),
    "a load balancer": ("Service", lambda one: one["spec"].update(type="LoadBalancer")),
    "others' pods": ("Service", lambda one: one["spec"].update(selector={"app": "bank"})),
    "a mounted token": (
        "ServiceAccount",
        lambda one: one.update(automountServiceAccountToken=True),
    ),
    "another account": ("Deployment", lambda one: spec_of(one).update(serviceAccountName="admin")),
    "a folder of the node": (
        "Deployment",
        lambda one: spec_of(one)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    "network of the node": ("Deployment", lambda one: spec_of(one).update(hostNetwork=True)),
    "processes of the node": ("Deployment", lambda one: spec_of(one).update(hostPID=True)),
    "privilege": (
        "Deployment",
        lambda one: spec_of(one)["containers"][0].update(securityContext={"privileged": True}),
    ),
}


@pytest.mark.parametrize(("kind", "wish"), WISHES.values(), ids=WISHES.keys())
def test_it_is_never_sent_with(kind, wish):
    manifest = deepcopy(children(apiKeys=KEYS)[kind])
    wish(manifest)
    with pytest.raises(ChildRefused, match="it is not sent"):
        permit().check(manifest)
