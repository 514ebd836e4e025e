"""A run goes back to one of its own snapshots in place: whole or not at all, with nobody else's, and what it let go is there again."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from crash_kit import ALL_OR_SOME, every_call, whole_snapshots
from ledger_kit import IDENTITY, Clock, claim_request, finished, started, step_commit
from restore_kit import config_at, step_of, write_config
from snapshot_kit import admit, ordinals, save_state

from rollout.errors import SnapshotRefused, SpecError, StoreError
from rollout.ledger.opening import open_reader
from rollout.ledger.records import Limits
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import create_snapshot
from rollout.runs.snapshots.places import WhereToLook
from rollout.runs.snapshots.restoring import prepare_restore
from rollout.runs.snapshots.returning import STALE, find_folder, return_to
from rollout.snapshots.layers.train_state import objects_of_anchor


@pytest.fixture
async def saved(tmp_path, signer, monkeypatch):
    """A run of four steps that is over, and a snapshot of its second."""
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-of-nobody"))
    await make_committed(tmp_path / "run")
    write_config(config_at(tmp_path / "run"))
    (tmp_path / "run" / "snapshots").mkdir(exist_ok=True)
    for name in STALE:
        (tmp_path / "run" / name).write_text("{}")
    return create_snapshot(RunDir(path=tmp_path / "run"), signer, step=2).manifest


async def make_committed(folder: Path) -> None:
    """Steps of which each has an anchor, of the very weights that were committed."""
    store = FilesystemStore(folder / "objects")
    ledger = SqliteLedger(folder / "ledger.db", IDENTITY, Limits(), Clock())
    learner, actor = await started(ledger, 0)
    for step in range(1, 5):
        await admit(ledger, step)
        leases = (await ledger.claim(claim_request("actor-0", actor, step=step - 1))).leases
        await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
        anchor = save_state(store, step)
        commit = step_commit(step, ordinals(step), learner)
        await ledger.commit(msgspec.structs.replace(commit, version=anchor.version))
        await ledger.save_anchor(learner, anchor)
    await ledger.close()


def restore_of(folder: Path, made, signer):
    return prepare_restore(
        made.id, WhereToLook(object_path=str(folder / "objects"), trust=(signer.public,))
    )


def state_of(folder: Path):
    with open_reader(None, folder / "ledger.db", config_at(folder).run.uid) as ledger:
        return ledger.state()


def test_as_a_new_lineage_after_its_step(saved, tmp_path, signer):
    folder = tmp_path / "run"
    assert return_to(restore_of(folder, saved, signer), config_at(folder)) == 1
    state = state_of(folder)
    assert (state.lineage, state.head.step, state.anchors[-1].step) == (1, 2, 2)
    assert (folder / "snapshots" / f"{state.anchors[-1].name}.json").exists()
    assert not any((folder / name).exists() for name in STALE)


def test_what_it_has_let_go_comes_from_where_the_snapshot_was_taken_to(saved, tmp_path, signer):
    folder = tmp_path / "run"
    shutil.copytree(folder / "objects", tmp_path / "copy" / "objects")
    restore = restore_of(tmp_path / "copy", saved, signer)
    gone = set(objects_of_anchor(restore.anchor).values())
    store = FilesystemStore(folder / "objects")
    for digest in gone:
        store.path(digest).unlink()
    return_to(restore, config_at(folder))
    fresh = FilesystemStore(folder / "objects")
    assert all(fresh.path(digest).is_file() for digest in gone)


def test_what_is_damaged_leaves_the_run_as_it_is(saved, tmp_path, signer):
    folder = tmp_path / "run"
    shutil.copytree(folder / "objects", tmp_path / "copy" / "objects")
    restore = restore_of(tmp_path / "copy", saved, signer)
    [digest, *_] = objects_of_anchor(restore.anchor).values()
    FilesystemStore(folder / "objects").path(digest).unlink()
    path = FilesystemStore(tmp_path / "copy" / "objects").path(digest)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    before = state_of(folder)
    with pytest.raises(StoreError, match=digest):
        return_to(restore, config_at(folder))
    assert state_of(folder) == before
    assert all((folder / name).exists() for name in STALE)


@pytest.mark.parametrize("field", ["uid", "namespace"])
def test_not_to_anothers(saved, tmp_path, signer, field):
    folder = tmp_path / "run"
    config = config_at(folder)
    run = config.run.model_copy(update={field: "another"})
    before = state_of(folder)
    with pytest.raises(SnapshotRefused, match="--in-place"):
        return_to(restore_of(folder, saved, signer), config.model_copy(update={"run": run}))
    assert state_of(folder) == before


def test_not_past_its_last_step(saved, tmp_path, signer):
    folder = tmp_path / "run"
    config = config_at(folder)
    train = config.spec.train.model_copy(update={"max_steps": 1})
    short = config.model_copy(update={"spec": config.spec.model_copy(update={"train": train})})
    with pytest.raises(SnapshotRefused, match=r"maxSteps: 1"):
        return_to(restore_of(folder, saved, signer), short)
    assert state_of(folder).lineage == 0


def test_its_folder_is_found_by_its_uid(saved, tmp_path, signer):
    restores = {"small": restore_of(tmp_path / "run", saved, signer)}
    assert find_folder(saved.id, restores, None, in_place=True) == "run"
    assert find_folder(saved.id, restores, tmp_path / "given", in_place=True) == "given"
    assert find_folder(saved.id, restores, None, in_place=False) is None
    assert find_folder("run-3", {}, None, in_place=False) == "run-3"
    for wrong in (None, "Latest", "run-3"):
        with pytest.raises(SpecError, match="--in-place: expected --resume ID"):
            find_folder(wrong, {}, None, in_place=True)
    (tmp_path / "run" / "worker.json").unlink()
    with pytest.raises(SnapshotRefused, match="leave --in-place out"):
        find_folder(saved.id, restores, None, in_place=True)


@ALL_OR_SOME
def test_killed_at_any_call_it_stands_where_it_stood_or_has_gone_back(
    saved, tmp_path, signer, stride
):
    seen = set()

    def begin(call):
        folder = tmp_path / f"run-{call}"
        shutil.copytree(tmp_path / "run", folder)
        return lambda: return_to(restore_of(folder, saved, signer), config_at(folder))

    for call in every_call(begin, stride):
        folder = tmp_path / f"run-{call}"
        state = state_of(folder)
        seen.add(state.lineage)
        assert (state.lineage, state.head.step) in {(0, 4), (1, 2)}
        assert whole_snapshots(folder / "objects") == {saved.id}
        lineage = return_to(restore_of(folder, saved, signer), config_at(folder))
        assert (lineage, step_of(config_at(folder))) == (state.lineage + 1, 2)
        shutil.rmtree(folder)
    assert 0 in seen
