"""A run of one machine that names a snapshot by its location: what is read is whole, signed by who is trusted, or refused by field."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from restore_kit import SPEC, make_whole_run, take_snapshot

from rollout.errors import RolloutError, SnapshotRefused, SpecError, StoreError
from rollout.objects.reading import ObjectFiles
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import RESTORED_FILE
from rollout.runs.snapshots.places import WhereToLook
from rollout.runs.snapshots.wanted import (
    choose_restore,
    find_restores,
    find_wanted,
    require_begun_with,
)
from rollout.snapshots.layers.train_state import objects_of_anchor
from rollout.snapshots.manifest import encode_manifest
from rollout.snapshots.signing import open_signer

OTHER = "cd" * 32


@pytest.fixture
async def made(tmp_path, signer, monkeypatch):
    """A snapshot in a folder that is no run's: the run that it is of is gone. This installation trusts nobody yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "fresh"))
    await make_whole_run(tmp_path / "run")
    snapshot = take_snapshot(tmp_path / "run", signer)
    shutil.move(tmp_path / "run" / "objects", tmp_path / "store")
    shutil.rmtree(tmp_path / "run")
    return snapshot


def prepared(folder: Path, snapshot: str, name="second", **storage):
    uri = f"{(folder / 'store').as_uri()}/snapshots/manifests/{snapshot}.json"
    given = {"object": {"uri": uri, "digest": f"blake3:{snapshot}"}}
    spec = {**SPEC, "restoreFrom": given, **({"storage": storage} if storage else {})}
    return prepare(spec, name)


def prepare(spec, name="second"):
    data = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": spec,
    }
    return prepare_run(Document(source="run.yaml", data=data, lines={}))


def trusting(signer):
    return WhereToLook(trust=(signer.public,))


def test_it_is_read_without_its_run(made, tmp_path, signer):
    found = find_wanted(prepared(tmp_path, made.id), trusting(signer))
    assert found.manifest == made
    assert found.anchor.step == made.header.step
    assert find_wanted(prepare(SPEC), trusting(signer)) is None


def test_a_key_that_nobody_trusts_is_named_with_the_field(made, tmp_path, signer):
    with pytest.raises(SnapshotRefused, match=r"restoreFrom\.object: .*does not trust") as refused:
        find_wanted(prepared(tmp_path, made.id), WhereToLook())
    assert signer.public in str(refused.value)
    stranger = open_signer(tmp_path / "stranger.key")
    with pytest.raises(SnapshotRefused, match="does not trust"):
        find_wanted(prepared(tmp_path, made.id), trusting(stranger))


def test_one_that_is_not_there_is_named_with_its_place(made, tmp_path, signer):
    with pytest.raises(SnapshotRefused, match=r"restoreFrom\.object: .*snapshot not found") as no:
        find_wanted(prepared(tmp_path, OTHER), trusting(signer))
    assert OTHER in str(no.value)
    assert str(tmp_path / "store") in str(no.value)
    elsewhere = prepared(tmp_path / "nowhere", made.id)
    with pytest.raises(SnapshotRefused, match="snapshot not found"):
        find_wanted(elsewhere, trusting(signer))
    assert not (tmp_path / "nowhere").exists()


def manifest_path(folder, snapshot):
    return folder / "store" / "snapshots" / "manifests" / f"{snapshot}.json"


HOSTILE = {
    "nothing": lambda text: b"",
    "no document": lambda text: b"\x00\xff" * 10,
    "another kind of document": lambda text: b"[]",
    "half of it": lambda text: text[: len(text) // 2],
    "a format of later": lambda text: text.replace(b'"format":1', b'"format":99', 1).replace(
        b'"format": 1', b'"format": 99', 1
    ),
    "another step": lambda text: text.replace(b'"step":4', b'"step":5', 1).replace(
        b'"step": 4', b'"step": 5', 1
    ),
    "a very deep document": lambda text: b"[" * 200_000,
    "no signature": lambda text: json.dumps(
        {name: value for name, value in json.loads(text).items() if name != "signature"}
    ).encode(),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_that_was_changed_begins_nothing(made, tmp_path, signer, change):
    path = manifest_path(tmp_path, made.id)
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    with pytest.raises(RolloutError) as refused:
        find_wanted(prepared(tmp_path, made.id), trusting(signer))
    assert isinstance(refused.value, SnapshotRefused | StoreError)
    assert made.id in str(refused.value)


async def test_a_manifest_under_the_name_of_another_begins_nothing(made, tmp_path, signer):
    manifest_path(tmp_path, OTHER).write_bytes(encode_manifest(made))
    with pytest.raises(SnapshotRefused, match=f"the manifest of {OTHER} is that of {made.id}"):
        find_wanted(prepared(tmp_path, OTHER), trusting(signer))


def test_a_piece_that_is_missing_or_changed_is_named(made, tmp_path, signer):
    files = ObjectFiles(tmp_path / "store")
    for digest in made.objects:
        path = files.locate(digest)
        whole = path.read_bytes()
        if not whole:
            continue
        path.unlink()
        with pytest.raises((SnapshotRefused, StoreError)) as refused:
            restore = find_wanted(prepared(tmp_path, made.id), trusting(signer))
            _read_all(restore)
        assert digest in str(refused.value)
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises((SnapshotRefused, StoreError)) as refused:
            restore = find_wanted(prepared(tmp_path, made.id), trusting(signer))
            _read_all(restore)
        assert digest in str(refused.value)
        path.write_bytes(whole)


def _read_all(restore):
    """What a run that begins copies."""
    for digest in objects_of_anchor(restore.anchor).values():
        restore.source.path(digest)
    for objects in restore.cut.versions.values():
        for digest in objects:
            restore.source.path(digest)
    for digest in restore.manifest.objects:
        restore.source.path(digest)


def test_all_that_a_file_names_is_read_before_its_first_run(made, tmp_path, signer):
    runs = [prepare(SPEC, "plain"), prepared(tmp_path, made.id), prepared(tmp_path, OTHER, "third")]
    assert set(find_restores(runs[:2], None, trusting(signer))) == {"second"}
    with pytest.raises(SnapshotRefused, match=OTHER):
        find_restores(runs, None, trusting(signer))
    assert find_restores(runs, "Latest", trusting(signer)) == {}


def test_the_command_line_and_the_manifest_do_not_name_two(made, tmp_path, signer):
    lies = replace(trusting(signer), object_path=str(tmp_path / "store"))
    [found] = find_restores([prepared(tmp_path, made.id)], made.id, lies).values()
    assert found.manifest.id == made.id
    with pytest.raises(SpecError, match=f"--resume {made.id}: .*{OTHER}"):
        find_restores([prepared(tmp_path, OTHER)], made.id, lies)
    with pytest.raises(SpecError, match="a snapshot is of one run"):
        find_restores([prepare(SPEC), prepare(SPEC, "b")], made.id, lies)


def test_a_run_that_has_begun_is_held_to_what_it_names_and_needs_it_no_more(made, tmp_path, signer):
    run = RunDir(path=tmp_path / "begun")
    run.path.mkdir()
    wanted = prepared(tmp_path, made.id)
    with pytest.raises(SpecError, match=r"restoreFrom\.object.*has begun with its model"):
        require_begun_with(run, wanted)
    (run.path / RESTORED_FILE).write_text(json.dumps({"snapshot": OTHER}))
    with pytest.raises(SpecError, match=f"has begun with snapshot {OTHER}"):
        require_begun_with(run, wanted)
    (run.path / RESTORED_FILE).write_text(json.dumps({"snapshot": made.id}))
    shutil.rmtree(tmp_path / "store")
    assert choose_restore(wanted, run, {}, trusting(signer)) is None
    require_begun_with(run, prepare(SPEC))
