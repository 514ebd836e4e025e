"""``prune`` of all of a run's snapshots, killed at any change of the file system: the same command ends it."""

import shutil

import pytest
from crash_kit import every_call, whole_snapshots
from ledger_kit import IDENTITY
from snapshot_kit import make_run, open_at, snapshot

from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.runs.snapshots.places import WhereToLook
from rollout.runs.snapshots.pruning import prune
from rollout_api.worker import Layout, ResolvedRun, RunIdentity, WorkerConfig

SPEC = {
    "model": {"uri": "file:///models/tiny", "chatTemplate": "plain"},
    "train": {
        "algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 4}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "sampling": {"maxNewTokens": 4},
        "maxSteps": 5,
    },
}


@pytest.fixture
async def run(tmp_path):
    """A run of this machine that is over, with its folder's ``worker.json``."""
    folder = tmp_path / "run"
    await make_run(folder)
    data = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": IDENTITY.name},
        "spec": SPEC,
    }
    config = WorkerConfig(
        run=RunIdentity(name=IDENTITY.name, uid=IDENTITY.uid),
        spec_digest=IDENTITY.spec_digest,
        spec=prepare_run(Document(source="run.yaml", data=data, lines={})).spec,
        resolved=ResolvedRun(
            model_path="/models/tiny",
            model_digest="blake3:" + "1" * 64,
            dtype="Float32",
            prompt_tokens_max=16,
        ),
        layout=Layout(
            run_dir=str(folder),
            coordinator_url="http://127.0.0.1:1",
            token_file=str(folder / "token"),
            objects_dir=str(folder / "objects"),
            ledger_path=str(folder / "ledger.db"),
        ),
    )
    (folder / "worker.json").write_text(config.model_dump_json(exclude_none=True))
    return folder


def prune_all(folder):
    where = WhereToLook(storage_path=str(folder))
    return prune(where, IDENTITY.uid, keep_last=0, keep_labeled=False)


def test_also_where_no_snapshot_is_left_to_remove(run, tmp_path, signer):
    before = set(open_at(run / "objects").store.names())
    made = snapshot(run, signer)
    own = made.objects.keys() - before
    assert own
    folders, left = {}, set()

    def begin(call):
        folders[call] = tmp_path / f"copy-{call}"
        shutil.copytree(run, folders[call], copy_function=shutil.copy)
        return lambda: prune_all(folders[call])

    for call in every_call(begin):
        place = open_at(folders[call] / "objects")
        there = bool(whole_snapshots(folders[call] / "objects"))
        left.add((there, any(map(place.store.has, own))))
        prune_all(folders[call])
        assert whole_snapshots(folders[call] / "objects") == set()
        assert list(place.named.entries("snapshots/condemned/")) == []
        assert set(place.store.names()) == before
        shutil.rmtree(folders[call])
    assert (False, True) in left, "no kill fell between the manifest and its objects"
