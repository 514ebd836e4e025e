"""Fields that the schema declares and no part reads yet are refused by name, with what to write instead."""

import pytest

from rollout_api.checks import Facts, check_document
from rollout_api.problems import Severity

HEAD = {"apiVersion": "rollout.dev/v1alpha1", "metadata": {"name": "default"}}


def test_a_runtime_whose_sandbox_pods_are_plain_containers_is_refused():
    for kind in ("RolloutRuntime", "ClusterRolloutRuntime"):

        def found(kind=kind, **sandbox):
            return check_document({**HEAD, "kind": kind, "spec": {"sandbox": sandbox}})

        [problem] = found(warmPods=2)

        assert (problem.field, problem.reason) == ("spec.sandbox", "NoSandbox")
        assert problem.severity is Severity.error
        assert found(runtimeClassName="gvisor") == found(userNamespaces=True) == ()
        [problem] = found(userNamespaces=True, maxPods=2, warmPods=3)
        assert (problem.field, problem.reason) == ("spec.sandbox.warmPods", "OutOfRange")
        for asked, field in (
            ({"memoryRequest": "1.5Gi"}, "memory"),
            ({"memory": "500e6", "memoryRequest": "512Mi"}, "memory"),
            ({"cpu": "500m", "cpuRequest": "0.6"}, "cpu"),
        ):
            [problem] = found(userNamespaces=True, **asked)
            assert (problem.field, problem.reason) == (f"spec.sandbox.{field}Request", "OutOfRange")
        assert found(userNamespaces=True, memoryRequest="1024Mi", cpuRequest="1000m") == ()


def test_a_runtime_whose_engine_moves_weights_between_devices_is_refused_as_a_run_is():
    engine = {"vllm": {"weightTransfer": "Nccl"}}
    document = {**HEAD, "kind": "ClusterRolloutRuntime", "spec": {"engine": engine}}

    [problem] = check_document(document)

    assert (problem.field, problem.reason) == ("spec.engine.vllm.weightTransfer", "NotSupported")


def evaluated(suite):
    train = {
        "algorithm": {"grpo": {}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 1,
    }
    spec = {"model": {"uri": "rollout://tiny-adder"}, "train": train}
    document = {**HEAD, "kind": "RolloutRun", "spec": {**spec, "evaluations": [{"suite": suite}]}}
    return [
        (one.field.removeprefix("spec.evaluations[0].suite."), one.reason)
        for one in check_document(document)
        if one.severity is Severity.error
    ]


def test_an_evaluations_rows_have_no_order_no_tail_no_pairs_and_no_labels_of_their_own():
    rows = {"uri": "a.jsonl"}
    assert evaluated({"data": {"jsonl": rows}}) == []
    assert evaluated({"data": {"jsonl": rows, "shuffle": True, "tailBatch": "Drop"}}) == []

    for name, value in (("shuffle", False), ("tailBatch", "Short")):
        suite = {"data": {"jsonl": rows, name: value}}
        assert evaluated(suite) == [(f"data.{name}", "NotSupported")]
    for name in ("chosenField", "rejectedField", "labelField", "marginField"):
        suite = {"data": {"jsonl": {**rows, name: "other"}}}
        assert evaluated(suite) == [(f"data.jsonl.{name}", "NotSupported")]
    dataset = {"path": "o/d", "labelField": "other"}
    assert evaluated({"data": {"huggingFace": dataset}}) == [
        ("data.huggingFace.labelField", "NotSupported")
    ]


def test_an_evaluation_has_no_reward_model_of_its_own_as_it_would_be_given_trainings():
    rewards = [{"builtin": {"name": "exact-match"}}, {"model": {"uri": "hf://o/judge"}}]
    suite = {"data": {"jsonl": {"uri": "a.jsonl"}}, "rewards": rewards}

    assert evaluated(suite) == [("rewards[1].model", "NotSupported")]


RUN = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {
        "algorithm": {"grpo": {}},
        "data": {"jsonl": {"uri": "a.jsonl"}},
        "environment": {"builtin": {"name": "single-turn"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 1,
    },
}


@pytest.mark.parametrize(
    ("field", "part", "value"),
    [
        ("data.jsonl.imageField", "data", {"jsonl": {"uri": "a.jsonl", "imageField": "images"}}),
    ],
)
def test_what_is_to_come_has_its_place_and_is_refused_by_name(field, part, value):
    train = {**RUN["train"], part: value}
    document = {**HEAD, "kind": "RolloutRun", "spec": {**RUN, "train": train}}
    errors = [one for one in check_document(document) if one.severity is Severity.error]
    assert [(one.field, one.reason) for one in errors] == [(f"spec.train.{field}", "NotSupported")]
    assert errors[0].fix


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"storageRef": {"name": "a"}}, "spec.storageRef"),
        ({"include": ["Buffer", "Process"]}, "spec.include"),
    ],
)
def test_what_a_snapshot_object_cannot_do_yet_is_refused_by_name(part, field):
    spec = {"source": {"run": {"name": "a"}}, **part}
    assert not check_document(
        {**HEAD, "kind": "RolloutSnapshot", "spec": {"source": {"run": {"name": "a"}}}}
    )
    [problem] = check_document({**HEAD, "kind": "RolloutSnapshot", "spec": spec})
    assert (problem.field, problem.reason, problem.severity) == (
        field,
        "NotSupported",
        Severity.error,
    )
    assert problem.fix


def test_what_a_snapshot_object_holds_may_be_named():
    spec = {"source": {"run": {"name": "a"}}, "include": ["EpisodicMemory", "Buffer", "TrainState"]}
    assert not check_document({**HEAD, "kind": "RolloutSnapshot", "spec": spec})


@pytest.mark.parametrize("platform", ["local", "cluster", "any"])
def test_a_run_begins_with_a_snapshot_of_the_cluster_there_only(platform):
    spec = {**RUN, "restoreFrom": {"snapshotRef": {"name": "best"}}}
    found = check_document({**HEAD, "kind": "RolloutRun", "spec": spec}, Facts(platform=platform))
    refused = [one.field for one in found if one.severity is Severity.error]
    assert refused == (["spec.restoreFrom"] if platform == "local" else [])


ID = "ab" * 32


@pytest.mark.parametrize("platform", ["local", "cluster", "any"])
@pytest.mark.parametrize(
    ("uri", "digest", "refused"),
    [
        (f"s3://b/p/snapshots/manifests/{ID}.json", f"blake3:{ID}", ""),
        (f"gs://b/p/snapshots/manifests/{ID}.json", f"blake3:{ID}", ""),
        (f"s3://b/p/snapshots/manifests/{ID}.json", f"blake3:{'cd' * 32}", "InvalidValue"),
        (f"s3://b/p/snapshots/manifests/{ID}.json", f"sha256:{ID}", "InvalidValue"),
        (f"s3://b/p/snapshots/manifests/{ID[:32]}.json", f"blake3:{ID[:32]}", "InvalidValue"),
        (f"s3://b/p/{ID}.json", f"blake3:{ID}", "InvalidValue"),
        (f"s3://b/p/snapshots/manifests/x/{ID}.json", f"blake3:{ID}", "InvalidValue"),
        (f"https://b/p/snapshots/manifests/{ID}.json", f"blake3:{ID}", "NotSupported"),
        (f"pvc://b/p/snapshots/manifests/{ID}.json", f"blake3:{ID}", "NotSupported"),
        (f"/p/snapshots/manifests/{ID}.json", f"blake3:{ID}", "NotSupported"),
    ],
)
def test_a_run_begins_with_what_its_uri_and_digest_name_together(platform, uri, digest, refused):
    spec = {**RUN, "restoreFrom": {"object": {"uri": uri, "digest": digest}}}
    found = check_document({**HEAD, "kind": "RolloutRun", "spec": spec}, Facts(platform=platform))
    errors = [one for one in found if one.severity is Severity.error]
    assert [one.reason for one in errors] == ([refused] if refused else [])
    assert all(one.field.startswith("spec.restoreFrom.object") and one.fix for one in errors)


@pytest.mark.parametrize("platform", ["local", "cluster"])
def test_a_folder_of_one_machine_is_no_place_of_a_cluster(platform):
    given = {"uri": f"file:///p/snapshots/manifests/{ID}.json", "digest": f"blake3:{ID}"}
    spec = {**RUN, "restoreFrom": {"object": given}}
    found = check_document({**HEAD, "kind": "RolloutRun", "spec": spec}, Facts(platform=platform))
    refused = [one.field for one in found if one.severity is Severity.error]
    assert refused == ([] if platform == "local" else ["spec.restoreFrom.object.uri"])


@pytest.mark.parametrize(
    ("facts", "part", "refused"),
    [
        ({"platform": "local"}, {}, False),
        ({"platform": "any"}, {}, False),
        ({"platform": "cluster"}, {}, True),
        ({"platform": "local", "device_bytes": (1 << 34,)}, {}, True),
        ({"platform": "local"}, {"accelerator": {"className": "h100"}}, True),
    ],
)
def test_a_standby_is_for_one_machine_without_devices(facts, part, refused):
    spec = {**RUN, "learner": {"standby": True, **part}}
    found = check_document({**HEAD, "kind": "RolloutRun", "spec": spec}, Facts(**facts))
    assert ("spec.learner.standby" in {one.field for one in found}) is refused


def answered(engine=None, jsonl=None, **infer):
    data = {"jsonl": {"uri": "a.jsonl", **(jsonl or {})}}
    actors = {} if engine is None else {"actors": {"engine": engine}}
    spec = {"model": {"uri": "rollout://tiny-adder"}, "infer": {"data": data, **infer}, **actors}
    found = check_document({**HEAD, "kind": "RolloutRun", "spec": spec})
    return [(one.field, one.reason) for one in found if one.severity is Severity.error]


@pytest.mark.parametrize("task", ["Embed", "Score"])
def test_rows_that_are_embedded_or_scored_are_not_sampled_and_not_by_an_engine_that_only_writes(
    task,
):
    assert answered(task=task) == []
    for name, value in (
        ("sampling", {"temperature": "0.5"}),
        ("samplesPerPrompt", 2),
        ("logprobs", True),
    ):
        assert answered(task=task, **{name: value}) == [(f"spec.infer.{name}", "NotSupported")]
    assert answered(engine={"vllm": {}}, task=task) == [("spec.infer.task", "NotSupported")]
    chosen = answered(jsonl={"answerField": "said"}, task=task)
    told = [("spec.infer.data.jsonl.answerField", "NotSupported")]
    assert chosen == ([] if task == "Score" else told)
