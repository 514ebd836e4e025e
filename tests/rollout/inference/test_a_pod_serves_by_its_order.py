"""The pod of an endpoint's server as a process: its order is served, keys come and go with their files, SIGTERM drains."""

from __future__ import annotations

import time

import httpx
import pytest
from serving_pods import WAIT_SECONDS, Pod

from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.models.packed import PackedModel, pack
from rollout.models.resolve import resolve_model
from rollout.objects.filesystem import FilesystemStore

pytestmark = pytest.mark.process


def make_key(folder, name):
    """A key as a person makes it on another machine, for a Secret."""
    return KeyFile(folder / "elsewhere").create(name, KeyLimits(), now=time.time(), expires=None)


def test_keys_come_and_go_with_the_files_of_their_secret_and_are_said_nowhere(tmp_path):
    first, second = make_key(tmp_path, "ann"), make_key(tmp_path, "bob")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "ann").write_text(first + "\n")
    (tmp_path / "keys" / "bob").write_text(second)

    with Pod(tmp_path, keys=["ann", "bob"]) as pod:
        pod.ready()
        answer = pod.ask(first)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "chat"
        assert pod.ask().status_code == 401
        assert pod.ask(make_key(tmp_path, "eve")).status_code == 401
        third = make_key(tmp_path, "ann")
        (pod.keys / "ann").write_text(third)
        pod.wait_for(200, third)
        pod.wait_for(401, first)
        (pod.keys / "ann").write_text("my-password")
        pod.wait_for(401, third)
        assert pod.ask(second).status_code == 200

    said = pod.log.read_text()
    assert "names=ann" in said
    kept = b"".join(one.read_bytes() for one in (tmp_path / "work").rglob("*") if one.is_file())
    for secret in (first, second, third, "my-password"):
        assert secret[-16:] not in said
        assert secret[-16:].encode() not in kept


@pytest.mark.parametrize("text", [None, "my-password"])
def test_a_server_whose_key_is_missing_or_none_ends_and_says_which_but_not_what(tmp_path, text):
    pod = Pod(tmp_path, keys=["ann"])
    if text:
        (pod.keys / "ann").write_text(text)
    with pod:
        assert pod.process.wait(WAIT_SECONDS) != 0
    said = pod.log.read_text()
    assert "spec.apiKeys: ann: missing, or no key" in said
    assert "my-password" not in said


def test_a_pod_that_ends_answers_whoever_still_comes_and_closes_their_connections(tmp_path):
    with Pod(tmp_path, leaveSeconds=5) as pod, httpx.Client() as client:
        pod.ready()
        assert pod.ask(client=client).headers.get("Connection", "") != "close"
        pod.process.terminate()
        deadline = time.monotonic() + WAIT_SECONDS
        while client.get(f"{pod.url}/readyz").status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        last = pod.ask(client=client)
        assert (last.status_code, last.headers["Connection"]) == (200, "close")
        assert pod.process.wait(WAIT_SECONDS) == 0


def test_a_model_that_is_not_there_ends_the_pod_with_its_name(tmp_path):
    (tmp_path / "empty").mkdir()
    with Pod(tmp_path, uri=f"file://{tmp_path}/empty") as pod:
        assert pod.process.wait(WAIT_SECONDS) != 0
    assert "empty" in pod.log.read_text()


def test_placing_brings_the_model_into_the_cache_and_ends(tmp_path):
    Pod(tmp_path).place(ROLLOUT_CACHE=str(tmp_path / "cache"))
    assert list((tmp_path / "cache").rglob("model.safetensors"))


def handed_on(folder):
    """A model as a run hands it on: the place of its objects, and its URI."""
    model = resolve_model("rollout://tiny-adder").path
    store = FilesystemStore(folder / "team" / "ns" / "uid")
    digest = store.put_parts(pack(model))
    uri = str(PackedModel(place=f"file://{folder}/team/ns/uid", digest=digest))
    return store.path(digest), uri, digest


def test_the_model_that_a_run_has_handed_on_is_served_and_told_by_its_digest(tmp_path):
    _, uri, digest = handed_on(tmp_path)
    (tmp_path / "cache").mkdir()
    pod = Pod(tmp_path, uri=uri, storage={})
    pod.env["ROLLOUT_CACHE"] = str(tmp_path / "cache")
    with pod:
        answer = pod.ready().ask()
    assert (answer.status_code, answer.json()["model"]) == (200, "chat")
    assert answer.headers["X-Rollout-Weights-Digest"] == digest


def test_a_model_that_is_not_what_its_name_says_is_not_served(tmp_path):
    path, uri, digest = handed_on(tmp_path)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    pod = Pod(tmp_path, uri=uri, storage={})
    pod.env["ROLLOUT_CACHE"] = str(tmp_path / "cache")
    with pod:
        assert pod.process.wait(WAIT_SECONDS) != 0
    assert digest in pod.log.read_text()
    assert not list((tmp_path / "cache").rglob("model.safetensors"))


def test_a_model_that_was_placed_is_served_without_its_bucket(tmp_path):
    path, uri, _ = handed_on(tmp_path)
    pod = Pod(tmp_path, uri=uri, storage={})
    pod.env["ROLLOUT_CACHE"] = str(tmp_path / "cache")
    pod.place()
    path.unlink()
    pod.env["ROLLOUT_PLACED_MODELS"] = str(tmp_path / "cache" / "hub")
    with pod:
        assert pod.ready().ask().status_code == 200
    assert not list((tmp_path / "work").rglob("packed"))
