"""A run and its runtime in one file: what the runtime does not allow is refused before anything is stored."""

import copy

import pytest

from rollout_api.checks import check_together

RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "a"},
    "spec": {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 400,
        },
        "storage": {"uri": "s3://runs/research/a"},
    },
}
ALL, NOBODY = {"from": "All"}, {"from": "Names", "names": []}
RESEARCH = {"from": "Names", "names": ["research"]}
BY_LABEL = {"from": "Selector", "selector": {"matchLabels": {"team": "research"}}}
OPEN = {"storage": ["s3://runs/"]}


def run(namespace=None, reference=None):
    made = copy.deepcopy(RUN)
    if namespace is not None:
        made["metadata"]["namespace"] = namespace
    if reference is not None:
        kind, name = reference
        made["spec"]["runtimeRef"] = {"kind": kind, "name": name}
    return made


def runtime(spec, kind="ClusterRolloutRuntime", name="default", **meta):
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": kind}
    return {**head, "metadata": {"name": name, **meta}, "spec": spec}


def fields(*documents):
    found = check_together(documents)
    assert all(problem.reason == "NotAllowed" for _, problem in found)
    return [(index, problem.field) for index, problem in found]


def test_what_a_runtime_of_the_file_does_not_name_is_refused_at_the_run():
    platform = runtime({"allowedNamespaces": ALL})
    assert fields(platform, run()) == [(1, "spec.storage.uri")]
    platform["spec"]["allowed"] = OPEN
    assert fields(platform, run()) == []


@pytest.mark.parametrize(
    ("served", "namespace", "refused"),
    [
        (None, None, True),
        (NOBODY, None, True),
        (NOBODY, "research", True),
        (RESEARCH, "research", False),
        (RESEARCH, "researc", True),
        (RESEARCH, None, False),
        (ALL, "research", False),
        (BY_LABEL, "research", False),
        (BY_LABEL, None, False),
    ],
)
def test_a_namespace_is_refused_as_far_as_it_is_known(served, namespace, refused):
    spec = {"allowed": OPEN} if served is None else {"allowed": OPEN, "allowedNamespaces": served}
    found = fields(run(namespace), runtime(spec))
    assert found == ([(0, "spec.runtimeRef")] if refused else [])


@pytest.mark.parametrize(
    ("entry", "namespace", "refused"),
    [
        ("s3://runs/$(namespace)/", "research", False),
        ("s3://runs/$(namespace)/", "teaching", True),
        ("s3://runs/$(namespace)/", None, False),
        ("s3://others/$(namespace)/", None, True),
    ],
)
def test_a_place_is_refused_as_far_as_the_namespace_is_known(entry, namespace, refused):
    spec = {"allowedNamespaces": ALL, "allowed": {"storage": [entry]}}
    found = fields(run(namespace), runtime(spec))
    assert found == ([(0, "spec.storage.uri")] if refused else [])


def test_a_label_is_not_allowed_by_a_namespace_that_is_not_known():
    spec = {"allowedNamespaces": ALL, "allowed": {**OPEN, "labels": ["team-$(namespace)"]}}
    mine = run()
    mine["spec"]["learner"] = {"labels": {"team-leader": "x"}}
    assert fields(mine, runtime(spec)) == [(0, "spec.learner.labels")]


def test_a_run_is_held_against_the_runtime_that_it_would_get():
    closed, inside = runtime({}), runtime({"allowed": OPEN}, "RolloutRuntime", namespace="research")
    other = runtime({"allowedNamespaces": ALL, "allowed": OPEN}, name="other")
    assert fields(run("research"), closed, inside, other) == []
    assert fields(run("teaching"), closed, inside, other) != []
    assert fields(run("teaching", ("ClusterRolloutRuntime", "other")), closed, other) == []
    assert fields(run("teaching", ("RolloutRuntime", "default")), closed, inside) == []


def test_a_runtime_that_is_not_in_the_file_is_not_known():
    assert fields(run(), runtime({}, name="other")) == []
    assert fields(run(reference=("ClusterRolloutRuntime", "mine")), runtime({})) == []


def test_all_that_a_runtime_names_may_be_added():
    mine = run("research")
    digest = f"sha256:{'a' * 64}"
    mine["spec"]["code"] = {"wheel": {"uri": "https://files.example/a.whl", "digest": digest}}
    mine["spec"]["learner"] = {"priorityClassName": "research"}
    lists = {**OPEN, "wheels": ["https://files.example/"], "priorityClasses": ["research"]}
    assert fields(mine, runtime({"allowedNamespaces": BY_LABEL, "allowed": lists})) == []
