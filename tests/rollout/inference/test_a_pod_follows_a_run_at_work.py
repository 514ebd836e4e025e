"""A server of an endpoint that follows a run: what the file names is served once it is verified, each stream from one version."""

from __future__ import annotations

import json
import time

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving_pods import WAIT_SECONDS, Pod

from rollout.errors import SpecError, StoreError
from rollout.models.resolve import resolve_model
from rollout.objects.filesystem import FilesystemStore
from rollout.pods.serving.following import FollowedRun, read_version
from rollout.weights.numbers import read_tensors
from rollout.weights.shards import combine_raw, digest_file
from rollout_api.serving import LiveOrder
from rollout_api.v1alpha1.storage import Storage

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
RUN, BASE = "uid-1", "rollout://tiny-adder?steps=0"


class SavingRun:
    """A run's place with weights in it, and the file that an operator keeps."""

    def __init__(self, folder):
        self.base = resolve_model(BASE).path
        self.folder, self.file = folder, folder / "live" / "live.json"
        self.file.parent.mkdir()
        self.place = f"file://{folder}/team/ns/{RUN}"
        self.store = FilesystemStore(folder / "team" / "ns" / RUN)

    def save(self, step, *, run=RUN, digest="", name="", scale=1.0):
        """Store weights of a step and name them; their digest."""
        tensors = load_file(self.base / "model.safetensors")
        changed = {key: one * (1 + 0.001 * step) * scale for key, one in tensors.items()}
        path = self.folder / "weights.safetensors"
        save_file({key: one.to(torch.float32) for key, one in changed.items()}, path)
        found = combine_raw(digest_file(path, read_tensors(path)))
        stored = self.store.put_parts([path.read_bytes()])
        said = {"run": run, "step": step, "object": name or stored, "digest": digest or found}
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(said))
        beside.replace(self.file)
        return found

    def pod(self):
        live = {"name": "grpo", "run": RUN, "place": self.place, "file": str(self.file)}
        return Pod(self.folder, uri=BASE, live=live, storage={})


def wait_for(pod, digest):
    deadline = time.monotonic() + WAIT_SECONDS
    while (answer := pod.ask()).headers.get("X-Rollout-Weights-Digest") != digest:
        assert answer.status_code == 200, answer.text
        assert time.monotonic() < deadline, pod.log.read_text()
        time.sleep(0.1)
    return answer.json()["model"]


def wait_until_said(pod, words):
    deadline = time.monotonic() + WAIT_SECONDS
    while words not in pod.log.read_text():
        assert time.monotonic() < deadline, pod.log.read_text()
        time.sleep(0.1)


def stream(pod):
    """One streamed answer: the digest that it began with, and the models that its events name."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "3+4="}]}
    body |= {"stream": True, "max_tokens": 32}
    url = f"{pod.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=WAIT_SECONDS) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [one.removeprefix("data: ") for one in answer.iter_lines() if one]
    assert lines[-1] == "[DONE]"
    digest = answer.headers["X-Rollout-Weights-Digest"]
    return digest, {json.loads(one)["model"] for one in lines[:-1]}


def test_the_newest_version_is_served_and_every_stream_is_of_one(tmp_path):
    run = SavingRun(tmp_path)
    first = run.save(4)
    with run.pod() as pod:
        pod.ready()
        assert wait_for(pod, first) == "grpo@4"
        names = [one["id"] for one in httpx.get(f"{pod.url}/v1/models").json()["data"]]
        assert {"chat", "grpo@live", "grpo@4"} <= set(names)
        second = run.save(8)
        wanted, met = {first: {"grpo@4"}, second: {"grpo@8"}}, []
        deadline = time.monotonic() + WAIT_SECONDS
        while not met or met[-1] != second:
            digest, models = stream(pod)
            assert models == wanted[digest]
            met.append(digest)
            assert time.monotonic() < deadline, pod.log.read_text()
        assert met == sorted(met, key=[first, second].index), "no version comes back"
        run.save(12, digest="blake3:" + "0" * 64)
        wait_until_said(pod, "expected blake3:" + "0" * 64)
        assert wait_for(pod, second) == "grpo@8", "what does not verify is not served"


def feed_of(run):
    order = LiveOrder(name="grpo", run=RUN, place=run.place, file=str(run.file))
    return FollowedRun(order, Storage(), run.base, run.folder / "scratch")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": "blake3:" + "0" * 64}, "weights of step 4: expected blake3:000"),
        ({"name": "blake3:" + "0" * 64}, "does not keep the weights of step 4"),
    ],
)
def test_weights_that_are_not_what_was_said_become_no_folder(tmp_path, change, words):
    run = SavingRun(tmp_path)
    run.save(4, **change)
    feed = feed_of(run)
    with pytest.raises(StoreError, match=words):
        feed.fetch(feed.newest(), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    assert not (tmp_path / "scratch").exists()


def test_what_another_run_of_the_name_has_saved_is_nobodys_to_take(tmp_path):
    run = SavingRun(tmp_path)
    run.save(4, run="another")
    assert feed_of(run).newest() is None


def test_an_object_whose_bytes_were_changed_becomes_no_folder(tmp_path):
    run = SavingRun(tmp_path)
    run.save(4)
    [path] = [one for one in (tmp_path / "team").rglob("*") if one.is_file()]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    feed = feed_of(run)
    with pytest.raises(StoreError):
        feed.fetch(feed.newest(), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    "text", ["", "{}", "[" * 5000, '{"run": "uid-1", "step": 4, "place": "s3://x"}']
)
def test_a_file_that_names_no_version_is_none(tmp_path, text):
    file = tmp_path / "live.json"
    file.write_text(text)
    with pytest.raises(SpecError, match="names no version"):
        read_version(file)


def test_a_run_that_comes_by_a_step_again_has_another_name_for_it(tmp_path):
    run = SavingRun(tmp_path)
    feed = feed_of(run)
    run.save(4)
    first = feed.newest()
    again = run.save(4, scale=2.0)
    second = feed.newest()
    assert (first.name, second.name) == ("grpo@4", f"grpo@4-{again.partition(':')[2][:8]}")
    folder = feed.fetch(second, tmp_path / "folder")
    path = folder / "model.safetensors"
    assert combine_raw(digest_file(path, read_tensors(path))) == again == second.digest
    assert (folder / "config.json").exists()
    assert not (tmp_path / "scratch").exists()
