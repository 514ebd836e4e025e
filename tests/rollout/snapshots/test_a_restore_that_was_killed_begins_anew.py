"""A run that begins with a snapshot, killed at any call: it has begun with the whole state or not at all, and a repeat ends."""

import shutil

import pytest
from crash_kit import ALL_OR_SOME, every_call, whole_snapshots
from restore_kit import another, make_whole_run, step_of, take_snapshot

from rollout.errors import LedgerError
from rollout.ledger.opening import open_reader
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.snapshots.beginning import begin_with_snapshot
from rollout.snapshots.layers.train_state import objects_of_anchor


@pytest.fixture
async def run(tmp_path):
    return await make_whole_run(tmp_path / "run")


@ALL_OR_SOME
def test_at_any_call(run, tmp_path, signer, stride):
    made = take_snapshot(tmp_path / "run", signer)
    configs, begun = {}, set()

    def begin(call):
        configs[call] = another(run, tmp_path / f"second-{call}", made)
        return lambda: begin_with_snapshot(configs[call])

    for call in every_call(begin, stride):
        begun.add(has_begun(configs[call]))
        told = begin_with_snapshot(configs[call])
        assert step_of(told) == made.header.step
        assert_whole(told, tmp_path / f"second-{call}")
        shutil.rmtree(tmp_path / f"second-{call}")
    assert begun == {False, True} or stride > 1
    assert whole_snapshots(tmp_path / "run" / "objects") == {made.id}


def has_begun(config):
    """What begins is whole: a ledger at the snapshot's step, or none."""
    try:
        found = step_of(config)
    except LedgerError:
        return False
    assert found in {0, 4}
    return found == 4


def assert_whole(config, folder):
    store = FilesystemStore(folder / "objects")
    with open_reader(config.spec.storage, folder / "ledger.db", config.run.uid) as ledger:
        anchor = ledger.state().anchors[-1]
    for digest in objects_of_anchor(anchor).values():
        store.path(digest)
