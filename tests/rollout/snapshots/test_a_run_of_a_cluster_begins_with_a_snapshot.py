"""A coordinator whose order names a snapshot begins its ledger with it, once, and tells the same ever after."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from warm import run_rollout

from rollout.errors import SnapshotRefused
from rollout.ledger.opening import open_reader
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.beginning import begin_with_snapshot
from rollout.runs.snapshots.creating import create_snapshot
from rollout.snapshots.signing import open_signer
from rollout_api.worker import Layout, RestoreOrder, WorkerConfig

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SPEC = {
    "seed": 7,
    "model": {"uri": "rollout://tiny-adder?steps=0"},
    "train": {
        "algorithm": {"sft": {"batchSize": 4, "maxLength": 64}},
        "data": {"jsonl": {"uri": "rows.jsonl"}},
        "maxSteps": 4,
    },
    "numerics": {"mode": "Exact"},
    "snapshots": {"everySteps": 2},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run that has ended, its snapshot, and its configuration with that snapshot as what another run begins with."""
    folder = tmp_path_factory.mktemp("saved")
    rows = [{"prompt": f"1{n}+11=", "chosen": f"0{21 + n}", "answer": "021"} for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {**SPEC, "storage": {"uri": (folder / "bucket").as_uri()}}
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    (folder / "run.yaml").write_text(
        json.dumps({**head, "metadata": {"name": "first"}, "spec": spec})
    )
    home = {"ROLLOUT_HOME": str(folder / "runs")}
    done = run_rollout("run", "-f", "run.yaml", folder=folder, environment=home)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDir(path=folder / "runs" / "first-1")
    signer = open_signer(folder / "signer.key")
    made = create_snapshot(run, signer, step=2)
    config = WorkerConfig.model_validate_json(run.worker_config.read_bytes())
    order = RestoreOrder(
        snapshot=made.manifest.id, place=made.place.where, trusted=(signer.public,)
    )
    return folder, made, config.model_copy(update={"restore": order})


@pytest.fixture
def another(saved, tmp_path):
    """The configuration of another run that begins with the snapshot."""
    _, _, config = saved
    layout = config.layout.model_copy(
        update={
            "run_dir": str(tmp_path),
            "objects_dir": str(tmp_path / "objects"),
            "ledger_path": str(tmp_path / "ledger.db"),
        }
    )
    spec = config.spec.model_copy(
        update={
            "storage": config.spec.storage.model_copy(
                update={"uri": (tmp_path / "bucket").as_uri()}
            )
        }
    )
    run = config.run.model_copy(update={"uid": "uid-2", "name": "second"})
    return config.model_copy(
        update={"layout": layout, "spec": spec, "run": run, "threads": config.threads + 3}
    )


def ledger_of(config):
    with open_reader(
        config.spec.storage, Path(config.layout.ledger_path), config.run.uid
    ) as ledger:
        return ledger.run().step, ledger.state().anchors[-1].grade


def test_it_begins_at_the_step_with_the_threads_of_the_state_and_does_so_once(saved, another):
    _, made, _ = saved

    told = begin_with_snapshot(another)

    assert ledger_of(told) == (2, "exact")
    assert (told.threads, told.resolved.grade) == (made.manifest.header.run.threads, "Exact")
    written = WorkerConfig.model_validate_json(
        (Path(another.layout.run_dir) / "worker.json").read_bytes()
    )
    assert written == told
    gone = another.restore.model_copy(update={"place": "file:///nowhere/uid-1"})
    assert begin_with_snapshot(another.model_copy(update={"restore": gone})).threads == told.threads
    assert ledger_of(told) == (2, "exact")


def test_a_change_that_costs_the_grade_is_told_after_a_restart_too(another):
    train = another.spec.train.model_copy(update={"max_staleness": 0})
    adamw = train.optimizer.adamw.model_copy(update={"learning_rate": 0.125})
    train = train.model_copy(
        update={"optimizer": train.optimizer.model_copy(update={"adamw": adamw})}
    )
    changed = another.model_copy(update={"spec": another.spec.model_copy(update={"train": train})})
    for _ in range(2):
        assert begin_with_snapshot(changed).resolved.grade == "Logical"
    assert ledger_of(changed) == (2, "logical")


def test_what_nobody_vouches_for_or_another_namespace_made_begins_nothing(another):
    stranger = another.restore.model_copy(update={"trusted": ()})
    with pytest.raises(SnapshotRefused, match="does not trust"):
        begin_with_snapshot(another.model_copy(update={"restore": stranger}))
    elsewhere = another.run.model_copy(update={"namespace": "other"})
    with pytest.raises(SnapshotRefused, match="of its own namespace"):
        begin_with_snapshot(another.model_copy(update={"run": elsewhere}))
    train = another.spec.train.model_copy(update={"max_steps": 1})
    short = another.spec.model_copy(update={"train": train})
    with pytest.raises(SnapshotRefused, match=r"maxSteps: 1.*nothing is left"):
        begin_with_snapshot(another.model_copy(update={"spec": short}))
    assert not (Path(another.layout.run_dir) / "bucket" / "uid-2" / "snapshots").exists()


def test_one_of_another_installation_that_is_trusted_is_of_no_namespace_here(another):
    foreign = another.restore.model_copy(update={"foreign": another.restore.trusted})
    elsewhere = another.run.model_copy(update={"namespace": "other"})
    told = begin_with_snapshot(another.model_copy(update={"restore": foreign, "run": elsewhere}))
    assert ledger_of(told) == (2, "exact")


def test_a_run_that_has_begun_with_its_model_is_not_begun_again(another):
    begin_with_snapshot(another)
    shutil.rmtree(Path(another.layout.run_dir) / "bucket" / "uid-2" / "snapshots")
    with pytest.raises(SnapshotRefused, match="has begun without the snapshot"):
        begin_with_snapshot(another)


@pytest.fixture
def own(saved, tmp_path):
    """The run that the snapshot is of, which has ended, in a place of its own; it is to go back."""
    folder, _, config = saved
    shutil.copytree(folder / "bucket", tmp_path / "bucket")
    was = Path(config.layout.run_dir)
    shutil.copytree(was, tmp_path / "run", ignore=shutil.ignore_patterns("*.sock"))
    layout = config.layout.model_dump_json().replace(str(was), str(tmp_path / "run"))
    storage = config.spec.storage.model_copy(update={"uri": (tmp_path / "bucket").as_uri()})
    place = str(tmp_path / "bucket" / config.run.uid)
    return config.model_copy(
        update={
            "layout": Layout.model_validate_json(layout),
            "spec": config.spec.model_copy(update={"storage": storage}),
            "restore": config.restore.model_copy(update={"place": place}),
        }
    )


def lineage_of(config):
    with open_reader(
        config.spec.storage, Path(config.layout.ledger_path), config.run.uid
    ) as ledger:
        state = ledger.state()
    return state.lineage, state.head.step


def test_a_run_that_is_named_one_of_its_own_goes_back_to_it_once(own):
    assert lineage_of(own) == (0, 4)
    told = begin_with_snapshot(own)
    assert (lineage_of(own), told.threads, told.resolved.grade) == ((1, 2), own.threads, "Exact")
    gone = own.restore.model_copy(update={"place": "file:///nowhere/uid-1"})
    begin_with_snapshot(own.model_copy(update={"restore": gone}))
    assert lineage_of(own) == (1, 2)


def test_a_request_takes_it_back_to_the_same_one_once_more(own):
    def ordered(request):
        restore = own.restore.model_copy(update={"request": request})
        begin_with_snapshot(own.model_copy(update={"restore": restore}))
        return lineage_of(own)

    assert ordered("first") == (1, 2)
    assert ordered("first") == (1, 2)
    assert ordered("second") == (2, 2)
    assert ordered("second") == (2, 2)
    assert ordered(None) == (2, 2), "taken out it asks for nothing"
    assert ordered("second") == (2, 2)


def test_what_an_earlier_release_wrote_down_is_answered_by_a_request_only(own):
    begin_with_snapshot(own)
    [begun] = Path(own.spec.storage.uri.removeprefix("file://")).rglob("begun.json")
    kept = {k: v for k, v in json.loads(begun.read_text()).items() if k != "request"}
    begun.write_text(json.dumps(kept))
    begin_with_snapshot(own)
    assert lineage_of(own) == (1, 2)


def test_killed_before_it_was_written_down_that_it_has_gone_back_it_goes_back_again(
    own, monkeypatch
):
    """No step is taken before it is written down, so that nothing is lost by the second time."""

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("rollout.runs.snapshots.beginning._write", die)
        with pytest.raises(KeyboardInterrupt):
            begin_with_snapshot(own)
    begin_with_snapshot(own)
    assert lineage_of(own) == (2, 2)


def test_a_run_that_began_with_a_snapshot_takes_no_other_runs_after_that(another, saved):
    told = begin_with_snapshot(another)
    named = Path(another.spec.storage.uri.removeprefix("file://")) / "uid-2"
    begun = next(named.rglob("begun.json"))
    begun.write_text(begun.read_text().replace(another.restore.snapshot, "0" * 64))
    with pytest.raises(SnapshotRefused, match=r"has begun with snapshot 0{64}.*goes back to its"):
        begin_with_snapshot(another)
    assert ledger_of(told) == (2, "exact")


def test_without_an_order_nothing_is_done(another):
    plain = another.model_copy(update={"restore": None})
    assert begin_with_snapshot(plain) is plain
