"""The attacker's wish: a reward, or an objective, that writes into the model cache which other runs load from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import SPEC, build_inputs

from rollout.entrypoints.prepare import find_here
from rollout.errors import ModelNotFound, SpecError, StoreError
from rollout.models.files import build_cached, default_cache_dir, digest_model, scratch_dir
from rollout.models.hub.fetch import fetch_model
from rollout.models.packed import PackedModel, pack
from rollout.objects.filesystem import FilesystemStore
from rollout.pods.placing import read_refusal, refusal_path, write_refusal
from rollout.runs.model_transfer import unfold
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.worker import WorkerOrder
from rollout_operator.run.attempt import render_record
from rollout_operator.run.permitted import Permit, build_allowances, check_permitted

SHARED = {
    "node": {"hostPath": {"path": "/models"}},
    "claim": {"persistentVolumeClaim": {"claimName": "models"}},
}
VLLM = {**SPEC, "actors": {"engine": {"vllm": {}}}}
EMBEDDED = {**SPEC, "actors": {"engine": {"embedded": {}}}}
OURS_ONLY = {"coordinator", "models"}
"""Containers that run none of the author's code."""


def render(cache, spec=VLLM, namespace="ns"):
    runtime = RuntimeSpec.model_validate({"modelCache": cache} if cache else {})
    inputs = build_inputs(spec, runtime)
    moved = replace(inputs, namespace=namespace)
    return render_record(moved).children, runtime


def pods(cache, spec=VLLM, namespace="ns"):
    return {
        one["spec"]["template"]["metadata"]["labels"]["rollout.dev/role"]: one["spec"]["template"][
            "spec"
        ]
        for one in render(cache, spec, namespace)[0]
        if one["kind"] == "StatefulSet"
    }


def containers(pod):
    return {one["name"]: one for one in (*pod.get("initContainers", ()), *pod["containers"])}


def writers(pod):
    return {
        name
        for name, one in containers(pod).items()
        for mount in one["volumeMounts"]
        if mount["name"] == "cache" and not mount.get("readOnly")
    }


def order_of_a_pod(run_dir):
    order = json.loads(render_record(build_inputs()).config_map["data"]["order.json"])
    order["layout"]["runDir"] = str(run_dir)
    return WorkerOrder.model_validate(order)


def variables(container):
    return {one["name"]: one.get("value") for one in container.get("env", ())}


@pytest.mark.parametrize("cache", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("spec", [VLLM, EMBEDDED], ids=["vllm", "embedded"])
def test_no_container_with_an_authors_code_writes_into_it(cache, spec):
    found = {role: writers(pod) for role, pod in pods(cache, spec).items()}
    assert found == {"coordinator": {"coordinator"}, "learner": {"models"}, "actor": {"models"}}
    assert set().union(*found.values()) <= OURS_ONLY


@pytest.mark.parametrize("cache", SHARED.values(), ids=SHARED)
def test_the_writer_is_done_before_the_others_begin_and_runs_no_code_of_the_authors(cache):
    spec = {**VLLM, "code": {"configMap": {"name": "mine"}}}
    for role, pod in pods(cache, spec).items():
        if role == "coordinator":
            continue
        writer = next(one for one in pod["initContainers"] if one["name"] == "models")
        assert "restartPolicy" not in writer
        assert writer["command"][2:4] == ["rollout.entrypoints.models", role]
        assert "code" not in {mount["name"] for mount in writer["volumeMounts"]}
        assert "code" in {mount["name"] for mount in containers(pod)[role]["volumeMounts"]}


def test_what_is_rendered_so_may_leave_for_the_api_server():
    children, runtime = render(SHARED["node"])
    permit = Permit(run="run", namespace="ns", uid="uid-0001", allowances=build_allowances(runtime))
    for child in children:
        check_permitted(child, permit)


def test_a_pods_own_folder_needs_no_other_writer():
    for pod in (*pods(None).values(), *pods({"emptyDir": {}}).values()):
        assert "models" not in containers(pod)
        assert "ROLLOUT_PLACED_MODELS" not in variables(pod["containers"][0])


def test_namespaces_of_one_node_have_folders_of_their_own():
    roots = set()
    for namespace in ("research", "teaching"):
        for pod in pods(SHARED["node"], namespace=namespace).values():
            found = [
                variables(one)
                for one in containers(pod).values()
                if "ROLLOUT_CACHE" in variables(one)
            ]
            assert {one["ROLLOUT_CACHE"] for one in found} == {f"/var/cache/rollout/{namespace}"}
            roots |= {one["ROLLOUT_CACHE"] for one in found}
            writing = [one for one in found if "ROLLOUT_PLACED_MODELS" not in one]
            assert all(
                one["HF_HOME"].startswith(f"/var/cache/rollout/{namespace}/") for one in writing
            )
    assert len(roots) == 2
    for pod in pods(SHARED["claim"]).values():
        assert variables(pod["containers"][0])["ROLLOUT_CACHE"] == "/var/cache/rollout"


# -- in the containers --------------------------------------------------------------------------------


def build_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\x01" * 100)
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def only_read(cache, monkeypatch):
    """As in a container beside the one that placed the models."""

    def begin():
        monkeypatch.setenv("ROLLOUT_PLACED_MODELS", str(cache / "huggingface" / "hub"))
        monkeypatch.setenv("ROLLOUT_SCRATCH", str(cache.parent / "scratch"))

    return begin


def test_a_folder_that_was_poisoned_is_refused_by_name_and_not_made_again(tmp_path, only_read):
    store = FilesystemStore(tmp_path / "store")
    model = PackedModel(
        place="s3://b/ns/r", digest=store.put_parts(pack(build_model(tmp_path / "model")))
    )
    folder = unfold(lambda: store.path(model.digest), model)
    only_read()
    assert unfold(lambda: store.path(model.digest), model) == folder
    (folder / "config.json").chmod(0o644)
    (folder / "config.json").write_text("poisoned")
    with pytest.raises(
        StoreError, match=r"does not hold what it should.*only reads.*delete the pod"
    ):
        unfold(lambda: store.path(model.digest), model)
    assert (folder / "config.json").read_text() == "poisoned"


def test_a_folder_that_nobody_placed_is_not_built_here(cache, only_read):
    only_read()
    with pytest.raises(StoreError, match="is not there"):
        build_cached(default_cache_dir(), "name", lambda folder: folder.mkdir())
    assert not cache.exists()


def test_a_model_is_held_against_what_the_coordinator_found_and_not_against_itself(tmp_path):
    folder = build_model(tmp_path / "model")
    source = ModelSource(uri=f"file://{folder}")
    found = digest_model(folder)
    assert find_here("spec.model", source, found) == str(folder)
    (folder / "model.safetensors").write_bytes(b"\x02" * 100)
    with pytest.raises(SpecError, match=r"spec\.model .* in this pod and blake3:"):
        find_here("spec.model", source, found)


def test_what_is_kept_besides_stays_in_the_pod(cache, only_read):
    assert scratch_dir() == cache
    only_read()
    assert scratch_dir() == cache.parent / "scratch"


def test_the_hub_is_asked_by_the_writer_alone(cache, only_read, monkeypatch):
    commit = "c" * 40
    repo = cache / "huggingface" / "hub" / "models--team--model"
    build_model(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    only_read()
    assert fetch_model("team/model", None) == (repo / "snapshots" / commit, commit)
    with pytest.raises(ModelNotFound, match="not in the local cache"):
        fetch_model("team/other", None)


# -- from the writer to the one that works -------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["{", '{"kind": 1}', '{"kind": "SystemExit", "message": "x"}', "\0" * 100_000]
)
def test_a_word_that_is_none_of_the_writers_is_an_error_of_the_manifest(tmp_path, text):
    order = order_of_a_pod(tmp_path)
    write_refusal(order, SpecError("x"))
    assert str(read_refusal(order)) == "x"
    refusal_path(order).write_text(text)
    assert type(read_refusal(order)) is SpecError
