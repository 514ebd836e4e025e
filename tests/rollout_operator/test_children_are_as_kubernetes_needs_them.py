"""What is rendered for a run attempt: names, identity, security, devices, one immutable record."""

import json
from dataclasses import replace

import pytest
from worlds import PLATFORM, RING, SPEC, build_inputs

from rollout_api import names
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.worker import WorkerOrder
from rollout_operator.errors import RecordUnverified
from rollout_operator.kube.managed_fields import digest_of, seal
from rollout_operator.run.attempt import (
    ScaleState,
    read_record,
    render_record,
    sign_record,
    with_live,
)
from rollout_operator.run.render.inputs import RoleReference
from rollout_operator.run.render.pods import USER_ID

VLLM = {**SPEC, "actors": {"replicas": 2, "engine": {"vllm": {"tensorParallel": 2}}}}
RUNTIME = RuntimeSpec.model_validate(
    {
        "images": {"worker": "w:2", "vllm": "v:2", "pullSecrets": [{"name": "pull"}]},
        "acceleratorClasses": [
            {
                "name": "h100",
                "memory": "80Gi",
                "nodeSelector": {"gpu": "h100"},
                "preemptibleNodeSelector": {"spot": "true"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "topologyKey": "topology.example/rack",
                "network": {
                    "resources": {"vpc.amazonaws.com/efa": "4"},
                    "env": [{"name": "FI_PROVIDER", "value": "efa"}],
                    "annotations": {"net.example/interfaces": "8"},
                },
            }
        ],
        "roles": {
            "learner": {
                "sharedMemory": "16Gi",
                "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:x"},
                "volumes": [{"name": "data", "mountPath": "/data", "hostPath": {"path": "/mnt"}}],
            }
        },
    }
)
DEVICES = {
    **VLLM,
    "learner": {"nodes": 2, "processesPerNode": 8, "accelerator": {"className": "h100"}},
    "actors": {**VLLM["actors"], "accelerator": {"className": "h100"}, "preemptible": True},
}


def children(spec=SPEC, runtime=None, **options):
    record = render_record(build_inputs(spec, runtime, **options))
    return {(one["kind"], one["metadata"]["name"]): one for one in record.children}, record


def pod_of(found, role):
    return found["StatefulSet", names.workload_name("run", role)]["spec"]["template"]["spec"]


def container(pod, name):
    return next(one for one in pod["containers"] if one["name"] == name)


def test_rendering_is_a_function_of_its_inputs():
    first, second = children()[1], children()[1]
    assert first == second
    assert children(attempt=2)[1].name != first.name
    assert children(VLLM)[1].name != first.name


def test_a_record_gives_back_what_was_rendered():
    record = sign_record(children(DEVICES, RUNTIME)[1], RING)
    read = read_record(record.config_map, RING)
    assert (read.children, read.allowances) == (record.children, record.allowances)
    assert record.config_map["immutable"] is True
    assert len(record.name) <= 63


def test_a_config_map_of_somebody_else_is_no_record():
    with pytest.raises(RecordUnverified, match="ConfigMap x is no record of ours"):
        read_record({"metadata": {"name": "x", "labels": {}}, "data": {}}, RING)


def test_the_order_is_what_the_workers_read():
    record = children()[1]
    order = WorkerOrder.model_validate_json(record.config_map["data"]["order.json"])
    assert order.run.uid == "uid-0001"
    assert order.layout.objects_served
    assert order.authentication is not None
    assert set(order.authentication.accounts.values()) == {"learner", "actor", "operator"}


@pytest.mark.parametrize(
    ("cpu", "ranks", "threads"),
    [("8", 2, 4), ("7500m", 1, 7), ("2.5", 1, 2), ("500m", 1, 1), (None, 1, 1)],
)
def test_ranks_compute_with_the_whole_cores_that_they_are_given(cpu, ranks, threads):
    requests = {"resources": {"requests": {"cpu": cpu}}} if cpu else {}
    record = children({**SPEC, "learner": {"processesPerNode": ranks, **requests}})[1]
    order = WorkerOrder.model_validate_json(record.config_map["data"]["order.json"])
    assert order.threads == threads


def test_learner_pods_are_replaced_by_the_operator_alone():
    found = children()[0]
    learner = found["StatefulSet", "run-learner"]["spec"]
    assert learner["updateStrategy"] == {"type": "OnDelete"}
    assert learner["podManagementPolicy"] == "Parallel"
    assert learner["template"]["metadata"]["labels"][names.LABEL_INCARNATION] == "1"


def test_a_group_start_changes_the_incarnation_label_and_nothing_else():
    manifest = children()[0]["StatefulSet", "run-learner"]
    one = with_live(manifest, ScaleState(replicas=2, incarnation=1))
    two = with_live(manifest, ScaleState(replicas=2, incarnation=2))
    two["spec"]["template"]["metadata"]["labels"][names.LABEL_INCARNATION] = "1"
    two["metadata"]["annotations"] = one["metadata"]["annotations"]
    assert one == two


def test_the_engine_listens_on_no_port_and_has_the_devices():
    pod = pod_of(children(DEVICES, RUNTIME)[0], "actor")
    engine, actor = container(pod, "engine"), container(pod, "actor")
    assert "ports" not in engine and "ports" not in actor
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in json.dumps(actor["resources"])
    assert engine["image"] == "v:2" and actor["image"] == "w:2"
    shared = [
        {mount["mountPath"] for mount in one["volumeMounts"] if mount["name"] == "engine"}
        for one in (engine, actor)
    ]
    assert shared[0] == shared[1] == {"/rollout-engine"}
    assert pod["initContainers"][0]["command"][1] == "place-plugin"


def test_what_the_platform_mounts_is_seen_by_every_container():
    """The environment of workers, or a site's certificates, may lie there."""
    volume = {"name": "env", "mountPath": "/opt/rollout", "hostPath": {"path": "/env"}}
    runtime = RuntimeSpec.model_validate(
        {"roles": {"actors": {"volumes": [{**volume, "readOnly": True}]}}}
    )
    pod = pod_of(children(VLLM, runtime)[0], "actor")
    mount = {"name": "x-env", "mountPath": "/opt/rollout", "readOnly": True}
    for one in [*pod["containers"], *pod["initContainers"]]:
        assert mount in one["volumeMounts"], one["name"]
    placed = {one["mountPath"] for one in pod["initContainers"][0]["volumeMounts"]}
    assert placed == {"/rollout-engine", "/tmp", "/opt/rollout"}


def test_the_user_has_a_name_though_no_image_knows_its_number():
    pods = [pod_of(children(VLLM)[0], role) for role in ("coordinator", "learner", "actor")]
    for one in [container for pod in pods for container in pod["containers"]]:
        named = {entry["name"]: entry.get("value") for entry in one["env"]}
        assert named["USER"], one["name"]
        assert named["HOME"] in {"/home/rollout", "/tmp"}


def test_an_embedded_engine_needs_no_second_container():
    embedded = {**SPEC, "actors": {"engine": {"embedded": {}}}}
    pod = pod_of(children(embedded)[0], "actor")
    assert [one["name"] for one in pod["containers"]] == ["actor"]
    assert "initContainers" not in pod


@pytest.mark.parametrize("role", ["coordinator", "learner", "actor"])
def test_pods_pass_the_restricted_standard(role):
    pod = pod_of(children(DEVICES, RUNTIME)[0], role)
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for one in [*pod["containers"], *pod.get("initContainers", [])]:
        own = one["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("role", ["coordinator", "learner", "actor"])
def test_tokens_are_for_this_run_alone(role):
    pod = pod_of(children()[0], role)
    token = next(one for one in pod["volumes"] if one["name"] == "token")
    source = token["projected"]["sources"][0]["serviceAccountToken"]
    assert source["audience"] == "rollout/uid-0001"
    api = [one for one in pod["volumes"] if one["name"] == "api"]
    assert bool(api) == (role == "coordinator")


def test_only_the_coordinator_has_the_private_key_and_nobody_the_authoritys():
    found = children()[0]
    assert "ca.key" not in json.dumps(list(found.values()))
    for role in ("learner", "actor"):
        assert "tls.key" not in json.dumps(pod_of(found, role))


def test_learners_are_kept_from_consolidation_and_actors_are_not():
    found = children(DEVICES, RUNTIME)[0]

    def annotations(role):
        meta = found["StatefulSet", names.workload_name("run", role)]["spec"]["template"]
        return meta["metadata"].get("annotations", {})

    assert annotations("learner")["karpenter.sh/do-not-disrupt"] == "true"
    assert annotations("learner")["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert "karpenter.sh/do-not-disrupt" not in annotations("actor")
    assert annotations("learner")["net.example/interfaces"] == "8"


def test_devices_bring_their_nodes_their_taints_and_their_network():
    found = children(DEVICES, RUNTIME)[0]
    learner, actor = pod_of(found, "learner"), pod_of(found, "actor")
    assert learner["nodeSelector"] == {"gpu": "h100"}
    assert actor["nodeSelector"] == {"gpu": "h100", "spot": "true"}
    limits = container(learner, "learner")["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4"}
    assert {"name": "FI_PROVIDER", "value": "efa"} in container(learner, "learner")["env"]
    keys = {one["key"]: one.get("tolerationSeconds") for one in learner["tolerations"]}
    assert keys["nvidia.com/gpu"] is None
    assert keys["node.kubernetes.io/unreachable"] == 30
    assert "topology.example/rack" in json.dumps(learner["affinity"])
    assert actor["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"


def test_on_the_nodes_network_pods_still_find_the_coordinator_by_its_name():
    network = {"name": "h100", "memory": "80Gi", "network": {"hostNetwork": True}}
    runtime = RuntimeSpec.model_validate({"acceleratorClasses": [network]})
    found = children(DEVICES, runtime)[0]
    for role in ("learner", "actor"):
        pod = pod_of(found, role)
        assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert not {"hostNetwork", "dnsPolicy"} & pod_of(found, "coordinator").keys()


def test_what_the_platform_sets_comes_from_the_runtime_alone():
    found = children(DEVICES, RUNTIME)[0]
    learner = pod_of(found, "learner")
    assert {"name": "x-data", "hostPath": {"path": "/mnt"}} in learner["volumes"]
    account = found["ServiceAccount", "run-learner"]
    assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"] == "arn:x"
    shm = next(one for one in learner["volumes"] if one["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert learner["imagePullSecrets"] == [{"name": "pull"}]


def test_the_ledgers_volume_is_this_runs_own():
    template = children()[0]["StatefulSet", "run-coordinator"]["spec"]["volumeClaimTemplates"][0]
    assert template["metadata"]["name"] == "ledger-uid-0001"
    assert template["metadata"]["labels"][names.LABEL_RUN_UID] == "uid-0001"


def test_names_of_pods_resolve_before_the_pods_are_ready():
    found = children()[0]
    for role in ("coordinator", "learner", "actor"):
        name = names.workload_name("run", role)
        service = found["Service", name]["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"]
        assert found["StatefulSet", name]["spec"]["serviceName"] == name


def test_only_the_coordinator_sees_the_volumes_of_runs_it_starts_from_and_reads_them():
    inputs = replace(build_inputs(), sources=("ledger-1-sft-coordinator-0",))
    found = {(one["kind"], one["metadata"]["name"]): one for one in render_record(inputs).children}
    claimed = {
        role: [one for one in pod_of(found, role)["volumes"] if "persistentVolumeClaim" in one]
        for role in ("coordinator", "learner", "actor")
    }
    claim = {"claimName": "ledger-1-sft-coordinator-0", "readOnly": True}
    assert claimed == {
        "coordinator": [{"name": "source-0", "persistentVolumeClaim": claim}],
        "learner": [],
        "actor": [],
    }
    mounts = container(pod_of(found, "coordinator"), "coordinator")["volumeMounts"]
    mount = next(one for one in mounts if one["name"] == "source-0")
    assert mount["readOnly"]
    assert mount["mountPath"] == "/var/run/rollout/sources/ledger-1-sft-coordinator-0"


def test_with_a_database_the_coordinator_has_no_volume_and_alone_its_secret():
    ledger = {"ledger": {"postgres": {"secretRef": {"name": "dsn"}}}}
    found = children({**SPEC, "storage": ledger})[0]
    assert "volumeClaimTemplates" not in found["StatefulSet", "run-coordinator"]["spec"]
    env = container(pod_of(found, "coordinator"), "coordinator")["env"]
    assert any(one["name"] == "ROLLOUT_LEDGER_DSN" for one in env)
    assert "ROLLOUT_LEDGER_DSN" not in json.dumps(pod_of(found, "learner"))


def test_budgets_leave_the_coordinator_out_and_share_no_pod():
    found = children()[0]
    budgets = [one for (kind, _), one in found.items() if kind == "PodDisruptionBudget"]
    roles = [one["spec"]["selector"]["matchLabels"][names.LABEL_ROLE] for one in budgets]
    assert sorted(roles) == ["actor", "learner"]
    assert {one["spec"]["unhealthyPodEvictionPolicy"] for one in budgets} == {"AlwaysAllow"}


def test_nobody_may_call_an_actor_and_ranks_hear_only_ranks():
    found = children()[0]
    assert "ingress" not in found["NetworkPolicy", "run-actors"]["spec"]
    learner = found["NetworkPolicy", "run-learner"]["spec"]["ingress"]
    assert learner[0]["from"][0]["podSelector"]["matchLabels"][names.LABEL_ROLE] == "learner"


def test_the_coordinator_is_bound_to_the_role_that_the_installation_made():
    found = children()[0]
    assert not any(kind == "Role" for kind, _ in found)
    binding = found["RoleBinding", "run-progress"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (
        "ClusterRole",
        "rollout-coordinator",
    )
    assert [one["name"] for one in binding["subjects"]] == ["run-coordinator"]


def test_a_namespaced_operator_binds_the_namespaces_own_role():
    own = RoleReference(kind="Role", name="mine-coordinator")
    found = children(platform=replace(PLATFORM, coordinator_role=own))[0]
    assert found["RoleBinding", "run-progress"]["roleRef"] == own.document()


@pytest.mark.parametrize("kind", ["secret", "configMap", "projected"])
def test_keys_and_tokens_are_read_by_the_pods_own_user_and_group_only(kind):
    volumes = [{"name": "s", "mountPath": "/s", "secret": {"secretName": "s"}}]
    volumes += [{"name": "c", "mountPath": "/c", "configMap": {"name": "c"}}]
    runtime = RuntimeSpec.model_validate({"roles": {"coordinator": {"volumes": volumes}}})
    found = children({**SPEC, "code": {"configMap": {"name": "mine"}}}, runtime)[0]
    for role in ("coordinator", "learner", "actors"):
        pod = found["StatefulSet", f"run-{role}"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["fsGroup"] == USER_ID
        modes = {one[kind]["defaultMode"] for one in pod["volumes"] if kind in one}
        assert modes == {0o440}, role


def test_a_pod_monitor_is_made_where_the_kind_exists():
    from dataclasses import replace

    assert ("PodMonitor", "run") not in children()[0]
    with_kind = children(platform=replace(PLATFORM, pod_monitors=True))[0]
    assert ("PodMonitor", "run") in with_kind


def test_children_name_their_run_as_controller_and_carry_the_recommended_labels():
    for one in children(DEVICES, RUNTIME)[0].values():
        owner = one["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == ("uid-0001", True)
        assert one["metadata"]["labels"][names.LABEL_MANAGED_BY] == "rollout-operator"
        assert len(one["metadata"]["name"]) <= 63


def test_names_of_the_longest_run_fit():
    longest = "r" * 40
    assert len(names.workload_name(longest, "coordinator")) + 11 <= 63


def test_a_run_that_trains_nothing_has_no_learner():
    suite = {"suite": {"builtin": {"name": "gsm8k"}}}
    spec = {"model": SPEC["model"], "evaluate": {}, "evaluations": [suite]}
    found = children(spec)[0]
    assert ("StatefulSet", "run-learner") not in found
    assert ("StatefulSet", "run-actors") in found


def test_a_seal_covers_everything_but_itself():
    manifest = {"kind": "X", "metadata": {"name": "a", "labels": {"b": "c"}}, "spec": {"d": 1}}
    sealed = seal(manifest)
    assert seal(sealed)["metadata"]["annotations"] == sealed["metadata"]["annotations"]
    assert digest_of({"a": 1}) != digest_of({"a": 2})
