import json
import math
import struct
import subprocess
import sys
import time

import pytest

from rollout.errors import SpecError, StoreError
from rollout.run_events import RunEnd
from rollout.tracking.build import build_trackers
from rollout.tracking.closing import close_trackers
from rollout.tracking.jsonl import JsonlTracker
from rollout.tracking.last_step import FILE, NOTHING, read_last_step
from rollout_api.v1alpha1.operations import Tracking

METRICS = {"reward": 0.5, "lineage": 0, "phase_seconds": {"train": 0.25}, "note": "text"}


def build(run_dir, *kinds):
    tracking = [Tracking.model_validate(kind) for kind in kinds]
    return build_trackers(tracking, run_dir, name="demo", uid="uid-1", config={"lr": "1e-3"})


def log(trackers, steps):
    for step in steps:
        for tracker in trackers:
            tracker.log(step, {**METRICS, "reward": step / 10})


def close(trackers):
    for tracker in trackers:
        tracker.close()


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_metrics_file_is_written_in_any_case(tmp_path):
    trackers = build(tmp_path)
    log(trackers, [0, 1])
    close(trackers)

    assert lines(tmp_path) == [
        {**METRICS, "reward": 0.0, "step": 0},
        {**METRICS, "reward": 0.1, "step": 1},
    ]


def test_a_step_is_written_once_however_often_it_is_logged(tmp_path):
    first = build(tmp_path)
    log(first, [0, 1, 2, 1, 2])
    close(first)
    second = build(tmp_path)
    log(second, [0, 1, 2, 3])
    close(second)

    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2, 3]


FORK = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (1, 4)]
"""The steps of a run that forked after step 1, as the coordinator sends them."""


def log_places(trackers, places):
    for lineage, step in places:
        for tracker in trackers:
            tracker.log(step, {**METRICS, "lineage": lineage, "reward": lineage + step / 10})


@pytest.mark.parametrize("before", range(1, len(FORK)))
def test_steps_of_a_younger_lineage_are_not_those_that_were_written(tmp_path, before):
    """A process that ends anywhere is sent the live chain's steps again by the next one."""
    first = build(tmp_path)
    log_places(first, FORK[:before])
    close(first)
    second = build(tmp_path)
    log_places(second, FORK[before - 1 :])
    close(second)

    assert [(line["lineage"], line["step"]) for line in lines(tmp_path)] == FORK


def test_the_last_step_of_an_older_version_is_of_the_first_lineage(tmp_path):
    (tmp_path / FILE).write_text("7\n")

    assert read_last_step(tmp_path) == (0, 7)


def test_tensorboard_has_the_steps_of_a_younger_lineage(tmp_path):
    for places in (FORK[:5], FORK[4:]):
        trackers = build(tmp_path, {"tensorboard": {}})
        log_places(trackers, places)
        close(trackers)

    found = scalars(tmp_path / "tracking/tensorboard")
    assert [f[1:] for f in found if f[0] == "reward"] == [
        (step, round(lineage + step / 10, 6)) for lineage, step in FORK
    ]


@pytest.mark.process
def test_mlflow_has_the_steps_of_a_younger_lineage(tmp_path):
    for places in (FORK[:5], FORK[4:]):
        trackers = build(tmp_path, {"mlflow": {}})
        log_places(trackers, places)
        close(trackers)

    client, run = mlflow_run(tmp_path / "tracking/mlflow")
    wanted = sorted((step, round(lineage + step / 10, 6)) for lineage, step in FORK)
    assert sorted(history(client, run, "reward")) == wanted


@pytest.mark.process
def test_wandb_has_the_steps_of_a_younger_lineage(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    trackers = build(tmp_path, {"wandb": {"project": "gsm8k", "mode": "Offline"}})
    log_places(trackers, FORK)
    close(trackers)

    rows, _ = written_history(tmp_path / "tracking/wandb", num_steps=len(FORK))
    assert [round(float(items["reward"]), 6) for _, items in rows] == [
        round(lineage + step / 10, 6) for lineage, step in FORK
    ]


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_that_a_crash_left_unfinished_is_written_again(tmp_path, cut):
    first = build(tmp_path)
    log(first, [0, 1, 2])
    close(first)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])

    second = build(tmp_path)
    log(second, [0, 1, 2, 3])
    close(second)

    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2, 3]


def test_what_is_no_number_is_null_in_the_file(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log(1, {"a": math.nan, "b": [1.0, math.inf], "c": {"d": -math.inf}, "e": "NaN"})
    tracker.close()

    text = (tmp_path / "m.jsonl").read_text()
    assert json.loads(text) == {
        "a": None,
        "b": [1.0, None],
        "c": {"d": None},
        "e": "NaN",
        "step": 1,
    }


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"metrics file .*m\.jsonl cannot be written"):
        JsonlTracker(tmp_path / "file" / "m.jsonl")


def test_a_full_disk_is_an_error_and_the_step_is_not_counted():
    tracker = JsonlTracker.__new__(JsonlTracker)
    with open("/dev/full", "ab") as full:  # noqa: PTH123 - a device, open while it is written to
        tracker._path, tracker._file, tracker.last_step = "/dev/full", full, NOTHING
        with pytest.raises(StoreError, match="cannot be written"):
            tracker.log(1, METRICS)
        assert tracker.last_step == NOTHING
        full.close = lambda: None


def scalars(folder):
    """(tag, step, value) of every event file, in the order of the files."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        (value.tag, event.step, round(value.tensor.float_val[0], 6))
        for path in sorted(folder.glob("events.*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def test_tensorboard_goes_on_after_a_resume(tmp_path):
    for steps in ([0, 1, 2], [1, 2, 3]):
        trackers = build(tmp_path, {"tensorboard": {}})
        log(trackers, steps)
        close(trackers)

    found = scalars(tmp_path / "tracking/tensorboard")
    assert [f for f in found if f[0] == "reward"] == [("reward", i, i / 10) for i in range(4)]
    assert ("phase_seconds/train", 3, 0.25) in found
    assert not [f for f in found if f[0] == "note"]


def wandb_records(path):
    """The records of an offline run's file: LevelDB's log format after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, body = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        body += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(body)
            body = b""
            yield record


def wandb_history(folder):
    """The history of all offline runs below ``folder``, in order, and which runs they name."""
    history, runs = [], set()
    for path in sorted(folder.rglob("*.wandb")):
        for record in wandb_records(path):
            if record.HasField("run"):
                runs.add((record.run.run_id, record.run.project, record.run.display_name))
            if record.HasField("history"):
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                history.append((record.history.step.num, items))
    return history, runs


def written_history(folder, num_steps, seconds_max=120):
    """``wandb_history`` when it is there: W&B's own process may write its last block after ``finish``."""
    deadline = time.monotonic() + seconds_max
    while len(wandb_history(folder)[0]) < num_steps and time.monotonic() < deadline:
        time.sleep(0.1)
    return wandb_history(folder)


@pytest.mark.process
def test_wandb_offline_goes_on_with_the_same_run(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    kind = {"wandb": {"project": "gsm8k", "mode": "Offline"}}
    for steps in ([0, 1, 2], [1, 2, 3]):
        trackers = build(tmp_path, kind)
        log(trackers, steps)
        close(trackers)

    history, ids = written_history(tmp_path / "tracking/wandb", num_steps=4)

    assert [step for step, _ in history] == [0, 1, 2, 3]
    assert [float(items["reward"]) for _, items in history] == [0.0, 0.1, 0.2, 0.3]
    assert float(history[0][1]["phase_seconds/train"]) == 0.25
    assert ids == {("uid-1", "gsm8k", "demo")}


def mlflow_run(folder, uid="uid-1", uri=None):
    """The one MLflow run of this uid, and its client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri or f"sqlite:///{folder / 'mlflow.db'}")
    experiments = [one.experiment_id for one in client.search_experiments()]
    [run] = client.search_runs(experiments, f"tags.`rollout.uid` = '{uid}'")
    return client, run


def history(client, run, name):
    found = client.get_metric_history(run.info.run_id, name)
    return [(metric.step, round(metric.value, 6)) for metric in found]


@pytest.mark.process
def test_mlflow_goes_on_with_the_same_run(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for steps in ([0, 1, 2], [1, 2, 3]):
        trackers = build(tmp_path, {"mlflow": {"experiment": "sums"}})
        log(trackers, steps)
        close(trackers)

    client, run = mlflow_run(tmp_path / "tracking/mlflow")

    assert history(client, run, "reward") == [(i, i / 10) for i in range(4)]
    assert history(client, run, "phase_seconds/train")[-1] == (3, 0.25)
    assert run.info.run_name == "demo"
    assert run.info.status == "KILLED"  # nobody said that it has ended
    assert run.data.params == {"lr": "1e-3"}
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.process
def test_mlflow_shows_a_run_as_it_has_ended_and_at_work_when_it_goes_on(tmp_path):
    words = {"Failed": "FAILED", "Stopped": "KILLED", "Succeeded": "FINISHED"}
    for kind, word in words.items():
        trackers = build(tmp_path, {"mlflow": {}})
        assert mlflow_run(tmp_path / "tracking/mlflow")[1].info.status == "RUNNING"
        close_trackers(trackers, RunEnd(kind=kind, reason="any", message=""))
        assert mlflow_run(tmp_path / "tracking/mlflow")[1].info.status == word


@pytest.mark.process
def test_mlflow_takes_every_name_and_keeps_the_settings_it_has(tmp_path):
    first = build_trackers(
        [Tracking.model_validate({"mlflow": {}})],
        tmp_path,
        name="demo",
        uid="u",
        config={"a": {"b": [1, {"c": "x" * 900}]}, "steps": 5},
    )
    metrics = {"eval/sums/report/pass@4/value": 0.5, "bad": math.nan, "odd(name)": 1.0}
    first[1].log(1, metrics)
    close(first)
    again = build_trackers(
        [Tracking.model_validate({"mlflow": {}})],
        tmp_path,
        name="demo",
        uid="u",
        config={"steps": 9},  # a live setting, changed with the resume
    )
    close(again)

    _, run = mlflow_run(tmp_path / "tracking/mlflow", "u")

    assert run.data.metrics == {
        "eval/sums/report/pass_at_4/value": 0.5,
        "odd_name_": 1.0,
        "step": 1.0,
    }
    assert run.data.params == {"a.b.0": "1", "a.b.1.c": "x" * 500, "steps": "5"}


@pytest.mark.process
def test_an_mlflow_server_that_is_gone_is_told_and_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    with pytest.raises(SpecError, match=r"MLflow at http://127.0.0.1:9 cannot be opened"):
        build(tmp_path, {"mlflow": {"uri": "http://127.0.0.1:9"}})


@pytest.mark.process
def test_a_step_that_mlflow_does_not_take_is_not_counted(tmp_path):
    _, tracker = build(tmp_path, {"mlflow": {}})
    (tmp_path / "tracking/mlflow/mlflow.db").unlink()
    (tmp_path / "tracking/mlflow/mlflow.db").write_bytes(b"no database at all" * 100)

    with pytest.raises(StoreError, match="MLflow does not take step 1"):
        tracker.log(1, METRICS)
    assert tracker.last_step == NOTHING


def test_a_tracker_that_is_not_installed_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('wandb', 'tensorboard', 'mlflow')))\n"
        "from pathlib import Path\n"
        "from rollout.errors import SpecError\n"
        "from rollout.tracking.build import build_trackers\n"
        "from rollout_api.v1alpha1.operations import Tracking\n"
        "for kind in ({'wandb': {'project': 'x'}}, {'tensorboard': {}}, {'mlflow': {}}):\n"
        "    try:\n"
        f"        build_trackers([Tracking.model_validate(kind)], Path({str(tmp_path)!r}), name='a', uid='b')\n"
        "    except SpecError as error:\n"
        "        print(error)\n"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "rollout-rl[wandb]" in said.stdout
    assert "rollout-rl[tensorboard]" in said.stdout
    assert "rollout-rl[mlflow]" in said.stdout
