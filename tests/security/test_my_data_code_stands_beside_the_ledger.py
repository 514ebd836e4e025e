"""The attacker's wish: in a cluster, data code and variables of mine in the container that holds the ledger and its keys."""

from copy import deepcopy

import pytest
from worlds import SPEC, build_inputs

from rollout_api.fields.credentials import COORDINATOR_SECRETS
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.worker import WorkerOrder
from rollout_operator.errors import ChildRefused
from rollout_operator.run.attempt import build_children, render_record
from rollout_operator.run.permitted import Permit, build_allowances, check_permitted
from rollout_operator.run.queue.claim import build_claim


def secret(name):
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": "mine", "key": "k"}}}


GIVEN = {
    "env": [
        {"name": "MY_PLACE", "value": "here"},
        *map(secret, sorted(COORDINATOR_SECRETS)),
        secret("MY_DATABASE_URL"),
    ]
}
CODE = {
    **SPEC,
    **GIVEN,
    "code": {"configMap": {"name": "code"}},
    "train": {**SPEC["train"], "environment": {"python": {"module": "mine", "className": "Mine"}}},
}
SUITE = {
    **SPEC,
    **GIVEN,
    "evaluations": [{"suite": {"python": {"module": "mine", "className": "Mine"}}}],
}
RUNTIME = RuntimeSpec.model_validate(
    {
        "modelCache": {"hostPath": {"path": "/models"}},
        "roles": {
            "coordinator": {
                "annotations": {"eks.amazonaws.com/skip-containers": "proxy"},
                "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}, secret("PLATFORM_KEY")],
                "securityContext": {"runAsUser": 20000, "supplementalGroups": [20007]},
                "volumes": [
                    {"name": "d", "mountPath": "/d", "hostPath": {"path": "/data"}},
                    {"name": "s", "mountPath": "/s", "secret": {"secretName": "platform"}},
                    {"name": "c", "mountPath": "/c", "csi": {"driver": "secrets-store"}},
                ],
            }
        },
    }
)
CREDENTIALS = ("secret", "projected", "csi")


def coordinator(spec=CODE, runtime=None):
    found = build_children(build_inputs(spec, runtime), "record")
    return next(
        one
        for one in found
        if one["metadata"]["name"] == "run-coordinator" and one["kind"] == "StatefulSet"
    )


def containers(spec=CODE, runtime=None):
    pod = coordinator(spec, runtime)["spec"]["template"]["spec"]
    return {one["name"]: one for one in [*pod["containers"], *pod.get("initContainers", ())]}, pod


def variables(container):
    return {one["name"] for one in container.get("env", ())}


def mounted(container):
    return {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}


@pytest.mark.parametrize("spec", [CODE, SUITE, {**SPEC, **GIVEN}])
def test_the_coordinator_has_my_variables(spec):
    own = variables(containers(spec)[0]["coordinator"])
    assert not own & {"MY_PLACE", "MY_DATABASE_URL"}
    assert own >= COORDINATOR_SECRETS


def test_a_variable_is_seen_by_the_roles_that_it_names_only():
    def variables_of(roles):
        named = [{**secret("HF_TOKEN"), "roles": roles}, {"name": "P", "value": "", "roles": roles}]
        spec = {**CODE, "env": named}
        found = build_children(build_inputs(spec), "record")
        sets = [one["spec"]["template"]["spec"] for one in found if one["kind"] == "StatefulSet"]
        every = [
            one for pod in sets for one in (*pod["containers"], *pod.get("initContainers", ()))
        ]
        return {one["name"]: variables(one) & {"HF_TOKEN", "P"} for one in every}

    both = {"HF_TOKEN", "P"}
    learners = {name: seen for name, seen in variables_of(["Learner"]).items() if seen}
    assert learners == {"learner": both}
    coordinators = {name: seen for name, seen in variables_of(["Coordinator"]).items() if seen}
    assert coordinators == {"rows": both, "coordinator": {"HF_TOKEN"}}
    assert all(variables_of([])[name] == both for name in ("learner", "rows"))


@pytest.mark.parametrize("spec", [CODE, SUITE])
@pytest.mark.parametrize("runtime", [None, RUNTIME])
def test_my_code_has_a_user_of_its_own_and_no_credentials(spec, runtime):
    found, pod = containers(spec, runtime)
    rows = found["rows"]
    security = rows["securityContext"]
    everybody = {**pod["securityContext"], "more": 0}
    assert security["runAsUser"] == security["runAsGroup"] not in everybody.values()
    assert security["runAsUser"] not in everybody.get("supplementalGroups", ())
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    kinds = {volume["name"]: set(volume) for volume in pod["volumes"]}
    for mount in rows["volumeMounts"]:
        assert not kinds[mount["name"]] & set(CREDENTIALS), mount
    assert "/var/lib/rollout" not in mounted(rows)
    assert variables(rows) >= {"MY_PLACE", "MY_DATABASE_URL", "HF_TOKEN"}
    assert not variables(rows) & {"PLATFORM_KEY", "ROLLOUT_LEDGER_DSN"}
    placed = {one["name"]: one.get("value") for one in rows["env"]}["ROLLOUT_PLACED_FILES"]
    assert placed.startswith("/var/cache/rollout") and placed.endswith("/fetched")


def test_it_sees_what_it_reads_and_writes_what_is_its_own():
    rows = mounted(containers(runtime=RUNTIME)[0]["rows"])
    assert rows == {
        "/tmp": False,
        "/var/run/rollout/rows": False,
        "/var/cache/rollout": True,
        "/var/lib/rollout/code": True,
        "/d": True,
    }


def test_the_coordinator_does_not_mount_my_code():
    assert "/var/lib/rollout/code" not in mounted(containers()[0]["coordinator"])


def test_it_lives_as_long_as_the_coordinator_and_is_counted_so():
    rows = containers()[0]["rows"]
    assert rows["restartPolicy"] == "Always"
    claim = build_claim(build_inputs(CODE), "q", {})
    asked = next(one for one in claim.pod_sets if one["name"] == "coordinator")
    (side,) = asked["template"]["spec"]["initContainers"]
    assert (side["restartPolicy"], side["resources"]) == ("Always", rows["resources"])


def test_the_cloud_gives_it_no_identity_where_containers_can_be_told_apart():
    template = coordinator(runtime=RUNTIME)["spec"]["template"]
    skipped = template["metadata"]["annotations"]["eks.amazonaws.com/skip-containers"]
    assert skipped == "proxy,rows"


def test_a_wheel_is_read_where_the_coordinator_unpacked_it():
    wheel = {"uri": "https://example.com/mine.whl", "digest": "sha256:" + "0" * 64}
    found, _ = containers({**CODE, "code": {"wheel": wheel}})
    assert mounted(found["coordinator"])["/var/run/rollout/wheel"] is False
    assert mounted(found["rows"])["/var/run/rollout/wheel"] is True


def test_the_coordinator_is_told_where_it_listens():
    layouts = [
        WorkerOrder.model_validate_json(record.config_map["data"]["order.json"]).layout
        for record in (render_record(build_inputs(one)) for one in (CODE, SPEC))
    ]
    assert [one.rows_socket for one in layouts] == ["/var/run/rollout/rows/socket", None]
    socket = containers()[0]["rows"]["command"][-1]
    assert socket == layouts[0].rows_socket


def test_it_has_the_pods_network_where_the_runtime_says_so_and_only_there():
    runtime = RuntimeSpec.model_validate({"allowed": {"dataCodeNetwork": True}})
    child = coordinator(runtime=runtime)
    rows = child["spec"]["template"]["spec"]["initContainers"][0]
    assert rows["command"][-2:] == ["--network", "pod"]
    check_permitted(child, permit(runtime))
    with pytest.raises(ChildRefused, match="no network"):
        check_permitted(child, permit())
    assert "--network" not in containers()[0]["rows"]["command"]


def test_a_run_without_data_code_has_no_such_container():
    assert "rows" not in containers(SPEC)[0]


def test_it_may_leave_for_the_api_server():
    check_permitted(coordinator(), permit())
    check_permitted(coordinator(runtime=RUNTIME), permit(RUNTIME))


def permit(runtime=None):
    return Permit(
        run="run",
        namespace="ns",
        uid="uid-0001",
        allowances=build_allowances(runtime or RuntimeSpec()),
    )


def mount(name):
    return lambda pod, rows: rows["volumeMounts"].append({"name": name, "mountPath": "/loot"})


WISHES = {
    "the key": mount("tls"),
    "a token": mount("token"),
    "the ledger": lambda pod, rows: rows["volumeMounts"].append(
        deepcopy(
            next(
                one
                for one in pod["containers"][0]["volumeMounts"]
                if one["name"].startswith("ledger-")
            )
        )
    ),
    "the coordinator's user": lambda pod, rows: rows["securityContext"].update(runAsUser=10001),
    "root": lambda pod, rows: rows["securityContext"].update(runAsUser=0),
    "the pod's user": lambda pod, rows: rows["securityContext"].pop("runAsUser"),
    "the network": lambda pod, rows: rows["command"].extend(["--network", "pod"]),
    "a cache that others load from": lambda pod, rows: (
        pod["initContainers"].append({**deepcopy(rows), "name": "models"})
        or next(one for one in rows["volumeMounts"] if one["name"] == "cache").pop("readOnly")
    ),
    "the coordinator's processes": lambda pod, rows: pod.update(shareProcessNamespace=True),
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES.keys())
def test_a_broken_renderer_gives_my_code(wish):
    child = coordinator()
    pod = child["spec"]["template"]["spec"]
    wish(pod, pod["initContainers"][0])
    with pytest.raises(ChildRefused, match="it is not sent"):
        check_permitted(child, permit())
