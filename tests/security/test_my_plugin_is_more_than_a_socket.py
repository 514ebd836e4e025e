"""The attacker's wish: as a plugin in a cluster, any image, or a container with a token, a key or a variable of the run's."""

from copy import deepcopy

import pytest
from pydantic import ValidationError
from worlds import SPEC, build_inputs

from rollout_api.checks import check_spec
from rollout_api.checks.facts import Facts
from rollout_api.problems import Severity
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.errors import ChildRefused
from rollout_operator.run.attempt import build_children
from rollout_operator.run.permitted import Permit, build_allowances, check_permitted
from rollout_operator.run.plan.preconditions.allowed import check_allowed

DIGEST = f"@sha256:{'a' * 64}"
IMAGE = f"registry.example/plugins/polite{DIGEST}"
SECRET = {"name": "MINE", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "k"}}}


def plugin(name="polite", image=IMAGE, **more):
    return {"container": {"name": name, "image": image}, **more}


def scored_by(*plugins, **more):
    rewards = [{"plugin": one, "name": f"r{place}"} for place, one in enumerate(plugins)]
    return {**SPEC, **more, "train": {**SPEC["train"], "rewards": rewards}}


def problems(spec, platform="cluster"):
    found = check_spec(RolloutRunSpec.model_validate(spec), Facts(platform=platform))
    return {
        (one.field, one.reason): f"{one.message}; {one.fix}"
        for one in found
        if one.severity is Severity.error
    }


def judged(image, lists):
    allowed = RuntimeSpec.model_validate({"allowed": lists}).allowed if lists else None
    gate = check_allowed(
        RolloutRunSpec.model_validate(scored_by(plugin(image=image))), allowed, "mine"
    )
    return None if gate is None else f"{gate.reason}: {gate.message}"


# -- which image -----------------------------------------------------------------------------------

FIELD = "spec.train.rewards[0].plugin.container"


@pytest.mark.parametrize("named", [IMAGE, "registry.example/plugins/", IMAGE.partition("@")[0]])
def test_an_image_that_the_runtime_names_is_taken(named):
    assert judged(IMAGE, {"images": [named]}) is None


@pytest.mark.parametrize(
    "lists",
    [
        None,
        {"images": []},
        {"images": ["registry.example/other/"]},
        {"images": [IMAGE.replace("a" * 64, "b" * 64)]},
        {"images": ["registry.example/plugins/polit"]},
    ],
)
def test_an_image_that_is_not_on_the_list_is_refused_by_name(lists):
    said = judged(IMAGE, lists)
    for word in (
        f"{FIELD}.image",
        IMAGE,
        "spec.allowed.images",
        "let the platform add it",
        "NotAllowed",
    ):
        assert word in said


@pytest.mark.parametrize(
    "image",
    [
        f"registry.example/plugins/../evil{DIGEST}",
        f"registry.example/plugins/polite{DIGEST} ",
        f"registry.example/plugins/\u0440olite{DIGEST}",
    ],
)
def test_an_image_that_can_be_read_in_two_ways_is_refused(image):
    assert "is not an image" in judged(image, {"images": ["registry.example/plugins/"]})


@pytest.mark.parametrize(
    "image",
    [
        "registry.example/plugins/polite:1",
        "registry.example/plugins/polite",
        f"registry.example/plugins/polite@sha256:{'a' * 63}",
        f"registry.example/plugins/polite@sha512:{'a' * 64}",
        f"registry.example/plugins/polite{DIGEST}{DIGEST}",
    ],
)
def test_a_tag_is_no_digest(image):
    said = problems(scored_by(plugin(image=image)))[f"{FIELD}.image", "MissingDigest"]
    assert repr(image) in said and "@sha256:" in said


# -- which name ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../rows", "a/b", "/etc", ".", "", "A", "a.b", "-a", "a-", "a" * 41, "a\n", "\u0430"]
)
def test_a_name_that_is_a_path_or_no_name_is_refused(name):
    with pytest.raises(ValidationError, match=r"container\.name"):
        RolloutRunSpec.model_validate(scored_by(plugin(name=name)))


@pytest.mark.parametrize(
    "other",
    [
        plugin(image=IMAGE.replace("a" * 64, "b" * 64)),
        plugin(parameters=[{"name": "word", "value": "hey"}]),
        {"container": {"name": "polite", "image": IMAGE, "resources": {"limits": {"cpu": "1"}}}},
    ],
)
def test_two_plugins_have_two_names(other):
    said = problems(scored_by(plugin(), other))
    assert (
        "'polite' is also the plugin of"
        in said["spec.train.rewards[1].plugin.container.name", "DuplicatePlugin"]
    )
    assert not problems(scored_by(plugin(), plugin()))
    assert not problems(
        scored_by(plugin(), {**other, "container": {**other["container"], "name": "b"}})
    )


# -- where ---------------------------------------------------------------------------------------------


def test_a_container_runs_in_a_cluster_and_a_folder_on_one_machine():
    code = {"code": {"configMap": {"name": "code"}}}
    folder = problems(scored_by({"path": "polite"}, **code))
    assert "container: {name" in folder["spec.train.rewards[0].plugin.path", "NotSupported"]
    contained = problems(scored_by(plugin()), "local")
    assert "with path" in contained["spec.train.rewards[0].plugin.container", "NotSupported"]


def with_tools(*shelves):
    environment = {**SPEC["train"]["environment"], "toolPlugins": list(shelves)}
    return {**SPEC, "train": {**SPEC["train"], "environment": environment}}


def shelf(**more):
    tool = {"name": "count", "parameters": '{"type": "object"}'}
    told = {"name": "shelf", "image": IMAGE.replace("polite", "shelf"), "tools": [tool], **more}
    return {"container": told}


@pytest.mark.parametrize(
    ("more", "member", "reason"),
    [
        ({"image": "registry.example/plugins/shelf:1"}, "image", "MissingDigest"),
        ({"tools": [{"name": "a", "parameters": "{"}]}, "tools[0].parameters", "NoSchema"),
        ({"tools": [{"name": "a", "parameters": "[]"}]}, "tools[0].parameters", "NoSchema"),
        ({"tools": [{"name": "a", "parameters": "{}"}]}, "tools[0].parameters", "NoSchema"),
        (
            {"tools": [{"name": "a", "parameters": "[" * 16_384}]},
            "tools[0].parameters",
            "NoSchema",
        ),
    ],
)
def test_an_image_of_tools_is_held_to_the_same_and_says_what_its_tools_take(more, member, reason):
    place = "spec.train.environment.toolPlugins[0].container"
    assert not problems(with_tools(shelf()))
    assert (f"{place}.{member}", reason) in problems(with_tools(shelf(**more)))


@pytest.mark.parametrize(
    "tools",
    [[], [{"name": "a b", "parameters": "{}"}], [{"name": "a\n", "parameters": "{}"}]],
)
def test_tools_that_no_prompt_could_have_are_refused_as_they_are_written(tools):
    with pytest.raises(ValidationError, match="tools"):
        RolloutRunSpec.model_validate(with_tools(shelf(tools=tools)))


def test_an_image_of_tools_is_one_that_the_runtime_names_and_stands_beside_actors_alone():
    spec = with_tools(shelf())
    allowed = RuntimeSpec.model_validate({"allowed": {"images": [IMAGE]}}).allowed
    gate = check_allowed(RolloutRunSpec.model_validate(spec), allowed, "mine")
    assert gate is not None
    assert gate.reason == "NotAllowed"
    assert "spec.train.environment.toolPlugins[0].container.image" in gate.message
    (one,) = plugins(workload("actor", spec=spec))
    assert one["name"] == "plugin-shelf"
    assert {item["name"] for item in one["env"]} == {"ROLLOUT_PLUGIN_SOCKET", "HOME"}
    for role in ("coordinator", "learner"):
        assert "/plugins/" not in str(pod(workload(role, spec=spec)))
    for child in build_children(build_inputs(spec, None), "run-0123456789"):
        check_permitted(child, permit())


def test_tools_and_a_reward_under_one_name_are_two_plugins():
    spec = with_tools(shelf(name="polite"))
    spec["train"]["rewards"] = [{"plugin": plugin()}]
    assert ("spec.train.rewards[0].plugin.container.name", "DuplicatePlugin") in problems(spec)


def test_kinds_that_are_asked_elsewhere_than_beside_actors_are_refused_by_name():
    environment = {**SPEC["train"]["environment"], "toolPlugins": [{"path": "shelf"}]}
    spec = {
        **SPEC,
        "code": {"configMap": {"name": "code"}},
        "train": {**SPEC["train"], "environment": environment},
        "evaluations": [{"suite": {"plugin": {"path": "quiz"}}}],
        "tracking": [{"plugin": {"path": "rows"}}],
    }
    fields = {field for field, reason in problems(spec) if reason == "NotSupported"}
    assert fields >= {
        "spec.train.environment.toolPlugins[0].path",
        "spec.evaluations[0].suite.plugin",
        "spec.tracking[0].plugin",
    }


def test_it_is_a_folder_or_a_container_and_not_both():
    with pytest.raises(ValidationError, match="exactly one"):
        RolloutRunSpec.model_validate(scored_by(plugin(path="polite")))


# -- what it is given ----------------------------------------------------------------------------------

RUNTIME = RuntimeSpec.model_validate(
    {
        "engine": {"vllm": {}},
        "images": {"worker": "w:1", "vllm": "v:1", "pullPolicy": "Never"},
        "modelCache": {"hostPath": {"path": "/models"}},
        "roles": {
            "actors": {
                "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}, SECRET],
                "annotations": {"eks.amazonaws.com/skip-containers": "proxy"},
                "securityContext": {"runAsUser": 20000, "supplementalGroups": [20007]},
                "volumes": [
                    {"name": "d", "mountPath": "/d", "hostPath": {"path": "/data"}},
                    {"name": "s", "mountPath": "/s", "secret": {"secretName": "platform"}},
                ],
            }
        },
    }
)
OTHER = plugin(name="other", image=f"registry.example/plugins/other{DIGEST}")
TWO = scored_by(
    plugin(),
    {**OTHER, "container": {**OTHER["container"], "resources": {"limits": {"memory": "1Gi"}}}},
    env=[SECRET, {"name": "PLACE", "value": "here"}],
    code={"configMap": {"name": "code"}},
)


def workload(role, runtime=None, spec=TWO):
    found = build_children(build_inputs(spec, runtime), "record")
    name = {"actor": "run-actors"}.get(role, f"run-{role}")
    return next(
        one for one in found if one["kind"] == "StatefulSet" and one["metadata"]["name"] == name
    )


def pod(child):
    return child["spec"]["template"]["spec"]


def plugins(child):
    return [
        one for one in pod(child).get("initContainers", ()) if one["name"].startswith("plugin-")
    ]


@pytest.mark.parametrize("runtime", [None, RUNTIME])
def test_it_has_a_user_a_socket_and_scratch_space_of_its_own_and_nothing_else(runtime):
    actors = workload("actor", runtime)
    first, second = plugins(actors)
    sources = {one["name"]: one for one in pod(actors)["volumes"]}
    users = [one["securityContext"]["runAsUser"] for one in (first, second)]
    everybody = {**pod(actors)["securityContext"], "root": 0}
    assert len({*users}) == 2 and not {*users} & {
        *map(str, everybody.values()),
        *(one for one in everybody.values() if isinstance(one, int)),
    }
    assert not {*users} & {*everybody.get("supplementalGroups", ())}
    for one, name in ((first, "polite"), (second, "other")):
        assert one["restartPolicy"] == "Always" and "command" not in one
        assert one["image"].endswith(DIGEST)
        security = one["securityContext"]
        assert security["readOnlyRootFilesystem"] and security["runAsNonRoot"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert not security["allowPrivilegeEscalation"]
        folder = f"/var/run/rollout/plugins/{name}"
        assert [mount["mountPath"] for mount in one["volumeMounts"]] == [folder, "/tmp"]
        assert all(
            sources[mount["name"]].keys() == {"name", "emptyDir"} for mount in one["volumeMounts"]
        )
        told = {item["name"]: item["value"] for item in one["env"]}
        assert told == {"ROLLOUT_PLUGIN_SOCKET": f"{folder}/socket", "HOME": "/tmp"}
    assert second["resources"] == {"limits": {"memory": "1Gi"}}
    assert pod(actors)["automountServiceAccountToken"] is False


@pytest.mark.parametrize("runtime", [None, RUNTIME])
def test_the_actor_sees_its_sockets_and_no_other_role_or_container_does(runtime):
    actors = workload("actor", runtime)
    every = [*pod(actors)["containers"], *pod(actors).get("initContainers", ())]
    seen = {
        one["name"]: [m for m in one["volumeMounts"] if "/plugins/" in m["mountPath"]]
        for one in every
    }
    assert [mount["readOnly"] for mount in seen.pop("actor")] == [True, True]
    assert {name for name, mounts in seen.items() if mounts} == {"plugin-polite", "plugin-other"}
    for role in ("coordinator", "learner"):
        assert "plugin" not in str(pod(workload(role, runtime)).get("initContainers", ""))
        assert "/plugins/" not in str(pod(workload(role, runtime)))


def test_a_cloud_gives_it_no_identity():
    meta = workload("actor", RUNTIME)["spec"]["template"]["metadata"]
    skipped = meta["annotations"]["eks.amazonaws.com/skip-containers"]
    assert skipped == "proxy,plugin-polite,plugin-other"


def test_two_runs_of_the_same_plugin_share_its_container():
    same = scored_by(plugin(), plugin())
    assert len(plugins(workload("actor", spec=same))) == 1


# -- what leaves for the API server ------------------------------------------------------------------


def permit(runtime=None):
    allowances = build_allowances(runtime or RuntimeSpec())
    return Permit(run="run", namespace="ns", uid="uid-0001", allowances=allowances)


@pytest.mark.parametrize("runtime", [None, RUNTIME])
def test_what_is_rendered_may_leave(runtime):
    for child in build_children(build_inputs(TWO, runtime), "run-0123456789"):
        check_permitted(child, permit(runtime))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image": "registry.example/plugins/polite:1"}, "an image by digest"),
        ({"securityContext": {"allowPrivilegeEscalation": False, "runAsUser": 10001}}, "its own"),
        ({"securityContext": {"allowPrivilegeEscalation": False, "runAsUser": 0}}, "its own"),
        ({"securityContext": {"allowPrivilegeEscalation": False}}, "its own"),
        ({"volumeMounts": [{"name": "token", "mountPath": "/t"}]}, "an empty folder"),
        ({"volumeMounts": [{"name": "code", "mountPath": "/t"}]}, "an empty folder"),
        ({"volumeMounts": [{"name": "none", "mountPath": "/t"}]}, "an empty folder"),
        ({"env": [SECRET]}, "plain variables"),
        ({"envFrom": [{"secretRef": {"name": "mine"}}]}, "plain variables"),
    ],
)
def test_a_renderer_that_gives_it_more_is_stopped(change, says):
    child = deepcopy(workload("actor"))
    plugins(child)[0].update(change)
    with pytest.raises(ChildRefused, match=says):
        check_permitted(child, permit())
