"""An inference run whose processes are killed ends with the files of an undisturbed one, each row in them once."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from local_jobs import members, start_job

from rollout.coordinator.batch_run import build_batch_rows
from rollout.coordinator.duties.batch_results import build_results_writer
from rollout.errors import StoreError
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.places import read_config

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

NUM_ROWS = 240
BROKEN = 17
MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: answers}
spec:
  seed: 11
  model: {uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"}
  infer:
    data: {jsonl: {uri: rows.jsonl}}
    samplesPerPrompt: 2
    logprobs: true
    sampling: {maxNewTokens: 24}
"""
LEASE_SECONDS = 4.0
TOKEN_SECONDS = 0.1
"""Two batches of up to 24 tokens each: the second is under way for seconds when the first is counted."""


def start_batch(folder, **options):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"prompt": f"{n}+{n % 7}=", "id": n}) for n in range(NUM_ROWS)]
    lines[BROKEN] = "{broken"
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return start_job(folder / "runs", manifest=MANIFEST, lease_seconds=LEASE_SECONDS, **options)


def files_of(job) -> dict[str, bytes]:
    """Everything in the folder of results, by name."""
    return {path.name: path.read_bytes() for path in (job.run_dir / "results").iterdir()}


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A run that nobody disturbed."""
    job = start_batch(tmp_path_factory.mktemp("untouched"))
    job.finish()
    return job


@pytest.fixture(scope="module")
def untouched(answered) -> dict[str, bytes]:
    return files_of(answered)


def done(job, number: int):
    job.wait_until(lambda status: status.infer is not None and status.infer.num_done >= number)


def test_each_row_is_in_one_of_the_two_files_in_the_order_of_the_input(untouched):
    assert untouched.keys() == {"results.jsonl", "errors.jsonl"}
    results = [json.loads(line) for line in untouched["results.jsonl"].splitlines()]
    errors = [json.loads(line) for line in untouched["errors.jsonl"].splitlines()]

    assert [one["row"] for one in results] == [n for n in range(NUM_ROWS) if n != BROKEN]
    assert [one["input"]["id"] for one in results] == [one["row"] for one in results]
    assert [(one["row"], one["error"]["code"]) for one in errors] == [(BROKEN, "invalid_row")]
    for one in results:
        assert len(one["completions"]) == 2
        for made in one["completions"]:
            assert len(made["token_ids"]) == len(made["token_logprobs"]) <= 24


@pytest.mark.parametrize(
    ("role", "number"),
    [
        ("model", 0),
        pytest.param("actor-0", 0, marks=pytest.mark.slow),
        ("actor-0", 1),
        pytest.param("coordinator", 0, marks=pytest.mark.slow),
        ("coordinator", 1),
    ],
)
def test_a_process_that_is_killed_changes_no_byte(role, number, untouched, tmp_path):
    """Quick: each role once, the two that work on when there is most to lose; killed whole at the start, below."""
    if role == "model":  # its work would be over before the coordinator answers
        (tmp_path / "runs.spells").mkdir()
        (tmp_path / "runs.spells" / f"hold-{role}").touch()
    job = start_batch(tmp_path, slow_tokens=TOKEN_SECONDS)
    done(job, number)

    job.kill(role)

    if role == "model":
        job.release(role)
    job.slow_tokens(0.0)
    job.finish()
    assert files_of(job) == untouched
    assert "starting it again" in job.said()


@pytest.mark.parametrize("number", [0, 1])
def test_a_writer_that_dies_at_a_rename_leaves_whole_files_and_the_next_writes_the_same(
    number, answered, untouched, tmp_path, monkeypatch
):
    config = read_config(RunDir(path=answered.run_dir))
    writer = replace(
        build_results_writer(config, build_batch_rows(config)), folder=tmp_path / "out"
    )
    renames, rename = iter(range(2)), Path.replace

    def die_at(path, target):
        if next(renames) == number:
            raise OSError("no more")
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="no more"):
        patch.setattr(Path, "replace", die_at)
        writer()

    left = {path.name: path.read_bytes() for path in writer.folder.iterdir()}
    assert left == {name: untouched[name] for name in ("errors.jsonl",)[:number]}
    writer()
    assert {path.name: path.read_bytes() for path in writer.folder.iterdir()} == untouched


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 100))]
)
def test_a_run_that_is_killed_whole_at_any_moment_goes_on(seed, untouched, tmp_path):
    """Quick: one moment; another is that of test_ctrl_c_leaves_no_file_and_the_run_goes_on."""
    chance = random.Random(seed)
    job = start_batch(tmp_path)
    done(job, 0)
    time.sleep(chance.uniform(0, 1.6))

    job.process.kill()
    psutil.wait_procs(members(job.run_dir), timeout=60)

    resumed = start_batch(tmp_path, resume="Latest")
    resumed.finish()
    assert files_of(resumed) == untouched


def test_two_actors_write_the_bytes_of_one(untouched, tmp_path):
    job = start_batch(tmp_path, overrides=["actors.replicas=2"])

    job.finish()

    assert files_of(job) == untouched


def test_ctrl_c_leaves_no_file_and_the_run_goes_on(untouched, tmp_path):
    job = start_batch(tmp_path, overrides=["infer.sampling.maxNewTokens=24"])
    done(job, 1)
    job.process.send_signal(signal.SIGINT)
    code = job.wait()

    if code != 0:  # it may have been over by then
        assert code == 130
        assert not (job.run_dir / "results").exists()
    start_batch(tmp_path, resume="Latest").finish()
    assert files_of(job) == untouched
