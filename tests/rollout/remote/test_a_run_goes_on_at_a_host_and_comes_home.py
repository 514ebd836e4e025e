"""`rollout run --on`: a run starts at another machine, is followed over a cut connection, stopped, gone on with and brought home."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from warm import run_rollout, start_rollout

from rollout.runs.run_dir import RunDir, find_owner

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
WAIT_SECONDS = 240.0
STEP = re.compile(r"step (\d+)")
MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: small}
spec:
  seed: 3
  model: {uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"}
  train:
    maxSteps: 100000
    data: {jsonl: {uri: rows.jsonl}}
    algorithm: {sft: {batchSize: 2}}
"""


@pytest.fixture
def folder(tmp_path):
    """A person's folder on this machine."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "m.yaml").write_text(MANIFEST)
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(16)]
    (here / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return here


def there(folder, far):
    return {"ROLLOUT_HOME": str(folder / "runs"), "ROLLOUT_SSH_CONFIG": str(far.client)}


def call(folder, far, *words, code=0):
    done = run_rollout(*words, folder=folder, environment=there(folder, far))
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


@contextmanager
def following(folder, far, *words):
    """The command as it goes on, and where it says what."""
    out, err = folder / "out.txt", folder / "err.txt"
    with out.open("wb") as first, err.open("wb") as second:
        process = start_rollout(
            *words,
            folder=folder,
            out=first.fileno(),
            err=second.fileno(),
            environment=there(folder, far),
        )
    try:
        yield process, out, err
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(condition, *files):
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "\n".join(one.read_text() for one in files)
        time.sleep(0.02)
    return found


def steps(out: Path) -> list[int]:
    return [int(one) for one in STEP.findall(out.read_text())]


def test_it_is_followed_over_a_cut_stopped_gone_on_with_and_brought_home(folder, far):
    on = ("--on", "ssh://far")
    python = ("--remote-python", sys.executable)
    with following(folder, far, "run", "-f", "m.yaml", *on, *python) as (process, out, err):
        wait_for(lambda: [one for one in steps(out) if one > 0], out, err)
        assert far.cut() == 1
        seen = len(steps(out))
        wait_for(lambda: "trying again" in err.read_text(), out, err)
        wait_for(lambda: len(steps(out)) > seen, out, err)
        assert far.cut() == 1
        call(folder, far, "stop", "small", *on)
        code = process.wait(WAIT_SECONDS)
    home = folder / "runs" / "small-1@far"
    result = json.loads((home / "result.json").read_text())
    assert code == result["exit_code"]
    assert str(home) in out.read_text()
    assert (home / "report.html").stat().st_size > 1000
    assert (home / "logs" / "supervisor.log").exists()
    assert not (home / "token").exists()
    assert find_owner(RunDir(path=far.data / "runs" / "small-1")) is None

    jobs = len(list((far.cache / "sent").iterdir()))
    limit = ("--set", f"train.maxSteps={max(steps(out)) + 60}")
    more = ("run", "-f", "m.yaml", *limit, *on, *python, "--resume", "small-1")
    done = call(folder, far, *more, "--bring", "snapshot", "--bring", "model")
    assert "Succeeded" in done.stdout
    assert (
        len(list((far.cache / "sent").iterdir())) == jobs + 1
    )  # the manifest alone is another one
    assert list(home.glob("*.snapshot"))
    assert (home / "model" / "config.json").exists()
    assert "Succeeded" in call(folder, far, "attach", "small", *on).stdout


def test_what_cannot_be_sent_is_said_before_anybody_is_asked(folder, far):
    (folder / "rows.jsonl").unlink()
    err = call(folder, far, "run", "-f", "m.yaml", "--on", "ssh://far", code=2).stderr
    assert "there is no" in err
    assert "rows.jsonl" in err
    (folder / "m.yaml").write_text(MANIFEST + "---" + MANIFEST.replace("small", "other"))
    err = call(folder, far, "run", "-f", "m.yaml", "--on", "ssh://far", code=2).stderr
    assert "--on takes one RolloutRun" in err
    wrong = ("run", "-f", "m.yaml", "--on", "ssh://far", "--dry-run")
    assert "--dry-run is of this machine" in call(folder, far, *wrong, code=2).stderr
    assert "Accepted" not in far.said()


def test_a_host_that_refuses_is_told_by_the_exit_code(folder, far):
    far.known.write_text("")
    words = ("run", "-f", "m.yaml", "--on", "ssh://far", "--remote-python", sys.executable)
    assert "connect once by hand" in call(folder, far, *words, code=4).stderr


@pytest.mark.slow
def test_the_environment_of_this_checkout_is_installed_there_once(folder, far):
    """As `make setup` makes it, by digest, from the package index that this machine uses."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    config = {"UV_CACHE_DIR": str(Path(base) / "uv"), "PYTHONPATH": ""}
    far.with_environment({**config, **{k: v for k, v in os.environ.items() if "INDEX" in k}})
    few = ("--set", "train.maxSteps=2", "--on", "ssh://far", "--detach", "--output", "json")

    first = call(folder, far, "run", "-f", "m.yaml", *few)
    environments = list((far.cache / "environments").glob("*/complete"))
    made = environments[0].stat().st_mtime_ns
    second = call(folder, far, "run", "-f", "m.yaml", *few)

    assert [json.loads(one.stdout)["run"] for one in (first, second)] == ["small-1", "small-2"]
    assert list((far.cache / "environments").glob("*/complete")) == environments
    assert environments[0].stat().st_mtime_ns == made
    for run in ("small-1", "small-2"):
        assert "Succeeded" in call(folder, far, "attach", run, "--on", "ssh://far").stdout
