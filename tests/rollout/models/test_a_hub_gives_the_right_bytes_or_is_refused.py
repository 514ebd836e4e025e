"""Hub models through the real client from a hub of our own: the folder whose digest is right, or words on what to do."""

import hashlib
import shutil
import subprocess

import pytest
from hub_kit import CHUNK, SHARDS, asker, digest_of, model_repo
from hub_server import open_hub

pytestmark = pytest.mark.process


def right(repo, said, folder):
    assert "commit" in said, said
    return digest_of(repo.commits[said["commit"]], folder) == said["digest"]


def test_a_name_is_pinned_to_a_commit_and_a_second_look_asks_for_no_bytes(tmp_path):
    repo = model_repo(1)
    with open_hub({"acme/tiny": repo}) as hub, asker(hub.address, tmp_path / "home") as one:
        said = one.fetch("hf://acme/tiny")
        pinned = one.fetch("hf://acme/tiny", "v1")
        repo.sent.clear()
        again = one.fetch("hf://acme/tiny")

    assert "words" not in said, said
    assert said["commit"] == repo.refs["main"] and pinned["commit"] == repo.refs["v1"]
    assert right(repo, said, tmp_path / "a") and right(repo, pinned, tmp_path / "b")
    assert again["digest"] == said["digest"] and repo.sent.total() == 0
    assert "pytorch_model.bin" not in str(repo.asked)


def test_a_model_that_is_cached_needs_no_hub(tmp_path):
    repo = model_repo(2)
    with open_hub({"acme/tiny": repo}) as hub:
        with asker(hub.address, tmp_path / "home") as one:
            said = one.fetch("hf://acme/tiny")
        address = hub.address
    with asker(address, tmp_path / "home") as one:
        gone = one.fetch("hf://acme/tiny")
    with asker(address, tmp_path / "home", HF_HUB_OFFLINE="1") as one:
        offline = one.fetch("hf://acme/tiny")
        absent = one.fetch("hf://acme/other")

    assert gone["digest"] == offline["digest"] == said["digest"]
    assert absent["kind"] == "ModelNotFound" and "hf download acme/other" in absent["words"]


def test_a_gated_model_is_opened_by_the_token_which_goes_to_the_hub_alone(tmp_path):
    repo = model_repo(3, gate=401, token="right")
    with open_hub({"acme/tiny": repo}) as hub:
        with asker(hub.address, tmp_path / "a") as one:
            none = one.fetch("hf://acme/tiny")
        repo.gate = 403
        with asker(hub.address, tmp_path / "b", HF_TOKEN="other") as one:
            other = one.fetch("hf://acme/tiny")
        with asker(hub.address, tmp_path / "c", HF_TOKEN="right") as one:
            said = one.fetch("hf://acme/tiny")

    for refused in (none, other):
        assert refused["kind"] == "ModelNotFound"
        assert f"accept its terms at {hub.address}/acme/tiny" in refused["words"]
        assert "HF_TOKEN" in refused["words"] and "right" not in refused["words"]
    assert "account of your HF_TOKEN" in other["words"]
    assert right(repo, said, tmp_path / "files")
    assert repo.tokens_elsewhere == 0


def test_a_wrong_revision_is_told_with_those_there_are(tmp_path):
    with open_hub({"acme/tiny": model_repo(4)}) as hub, asker(hub.address, tmp_path / "h") as one:
        said = one.fetch("hf://acme/tiny", "v2")

    assert said["kind"] == "ModelNotFound"
    assert "hf://acme/tiny at revision v2: the repository has no such revision" in said["words"]
    assert "there are main, v1" in said["words"]


def test_a_killed_download_goes_on_where_its_bytes_end(tmp_path):
    repo = model_repo(5, stalls=True)
    files = repo.commits[repo.refs["main"]]
    with open_hub({"acme/tiny": repo}) as hub:
        with asker(hub.address, tmp_path / "home") as one:
            one.ask("hf://acme/tiny")
            digests = {name: hashlib.sha256(files[name]).hexdigest() for name in SHARDS}
            while not all(one.kept("acme/tiny", digest) for digest in digests.values()):
                assert one.process.poll() is None
        kept = {name: one.kept("acme/tiny", digest) for name, digest in digests.items()}
        repo.heal()
        with asker(hub.address, tmp_path / "home") as one:
            said = one.fetch("hf://acme/tiny")

    assert right(repo, said, tmp_path / "files")
    assert all(size >= CHUNK for size in kept.values())
    assert {name: repo.sent[name] for name in SHARDS} == {
        name: len(files[name]) - kept[name] for name in SHARDS
    }


def test_bytes_of_another_digest_are_asked_for_twice_and_never_kept(tmp_path):
    once, always = model_repo(6, spoilt={SHARDS[0]: 1}), model_repo(7, spoilt={SHARDS[1]: 100})
    repos = {"acme/once": once, "acme/always": always}
    with open_hub(repos) as hub, asker(hub.address, tmp_path / "home") as one:
        good, bad = one.fetch("hf://acme/once"), one.fetch("hf://acme/always")
        always.heal()
        later = one.fetch("hf://acme/always")

    assert right(once, good, tmp_path / "a") and right(always, later, tmp_path / "b")
    assert bad["kind"] == "StoreError" and "hf://acme/always" in bad["words"]
    assert SHARDS[1] in bad["words"] and "HF_ENDPOINT" in bad["words"]
    assert always.sent[SHARDS[0]] == 0


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 40 KiB, and what makes it larger."""
    home = tmp_path / "home"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(home)]
    if shutil.which("mount") is None or subprocess.run(mount).returncode:
        pytest.skip("no file system may be mounted here")
    larger = ["mount", "-o", "remount,size=4m", str(home)]
    yield home, lambda: subprocess.run(larger, check=True)
    subprocess.run(["umount", "-l", str(home)], check=True)


def test_a_disk_that_is_too_small_is_named_before_anything_is_downloaded(small_disk):
    home, _ = small_disk
    repo = model_repo(8)
    with open_hub({"acme/tiny": repo}) as hub, asker(hub.address, home) as one:
        said = one.fetch("hf://acme/tiny")

    assert said["kind"] == "StoreError"
    assert "hf://acme/tiny" in said["words"] and "HF_HOME" in said["words"]
    assert "MiB free" in said["words"] and repo.sent.total() == 0


def test_a_disk_that_fills_in_the_middle_is_named_and_a_repeat_goes_on(small_disk, tmp_path):
    home, enlarge = small_disk
    repo = model_repo(9)
    files = repo.commits[repo.refs["main"]]
    digests = {name: hashlib.sha256(files[name]).hexdigest() for name in SHARDS}
    believed = {"SPARE_BYTES": str(-(1 << 30))}  # what is free by the count is taken by another
    with open_hub({"acme/tiny": repo}) as hub, asker(hub.address, home, **believed) as one:
        full = one.fetch("hf://acme/tiny")
        kept = {name: one.kept("acme/tiny", digest) for name, digest in digests.items()}
        enlarge()
        repo.heal()
        said = one.fetch("hf://acme/tiny")

    assert full["kind"] == "StoreError", full
    assert "is full" in full["words"] and "hf://acme/tiny" in full["words"]
    assert right(repo, said, tmp_path / "files")
    assert sum(kept.values()) > 0
    assert {name: repo.sent[name] for name in SHARDS} == {
        name: len(files[name]) - kept[name] for name in SHARDS
    }


def test_processes_that_download_the_same_at_once_fetch_it_once(tmp_path):
    repo = model_repo(10, share=1.0, faults=("slow",))
    files = repo.commits[repo.refs["main"]]
    with (
        open_hub({"acme/tiny": repo}) as hub,
        asker(hub.address, tmp_path / "home") as one,
        asker(hub.address, tmp_path / "home") as two,
    ):
        one.ask("hf://acme/tiny")
        two.ask("hf://acme/tiny")
        both = [one.answer(), two.answer()]

    assert right(repo, both[0], tmp_path / "files") and both[0]["digest"] == both[1]["digest"]
    assert {name: repo.sent[name] for name in SHARDS} == {name: len(files[name]) for name in SHARDS}
