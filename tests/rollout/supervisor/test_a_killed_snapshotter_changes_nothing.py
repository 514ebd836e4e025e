"""Real processes: learner, actor, coordinator and the commands that take snapshots are killed, and every chain is one chain.

So is that of the steps after a snapshot of the disturbed run, taken again. A hundred more in virtual time: simulation/.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from local_jobs import start_job
from ruins import check_same
from test_a_kill_changes_nothing import LEASE_SECONDS, disturb

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]


class Snapshotters:
    """Commands that take snapshots of a run, one after the other, each killed after a drawn time or left alone."""

    def __init__(self, job, config, seed):
        self._job, self._chance, self._over = job, random.Random(seed), threading.Event()
        self._environment = {**os.environ, "XDG_CONFIG_HOME": str(config)}
        self.taken, self.num_killed = set(), 0
        self._thread = threading.Thread(target=self._work, daemon=True)

    def command(self, *words):
        return [sys.executable, "-m", "rollout", "snapshot", *words]

    def run(self, *words):
        return subprocess.run(
            self.command(*words),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def _work(self):
        while not self._over.is_set():
            process = subprocess.Popen(
                self.command("create", str(self._job.run_dir)),
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            if self._chance.random() < 0.5:
                time.sleep(self._chance.uniform(0.5, 3.0))
                self.num_killed += process.poll() is None
                process.send_signal(signal.SIGKILL)
            said, _ = process.communicate(timeout=300)
            if process.returncode == 0:
                self.taken.add(said.strip())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(400)


@pytest.mark.parametrize("seed", range(100, 200))
def test_beside_a_run_that_is_killed(seed, undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", lease_seconds=LEASE_SECONDS, steps_max=0)
    job.wait_until(lambda status: status.step >= 0)
    with Snapshotters(job, tmp_path / "config", seed) as snapshotters:
        disturb(job, seed)
        check_same(job, job.finish(), undisturbed)
    last = snapshotters.run("create", str(job.run_dir), "--step", "5")
    assert last.returncode == 0, last.stderr

    place = str(job.run_dir / "objects")
    listed = json.loads(snapshotters.run("list", "--object-path", place).stdout)
    ids = {one["id"] for one in listed}
    assert snapshotters.taken | {last.stdout.strip()} <= ids
    for one in ids:
        verified = snapshotters.run("verify", one, "--object-path", place)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    again = snapshotters.run(
        "verify-resume", last.stdout.strip(), "--object-path", place, "--output", "json"
    )
    told = json.loads(again.stdout)
    assert told["equal"] is True
    assert told["steps"][-1]["chain"] == undisturbed["chain"]
