"""Runs of this machine whose learner is imaged, by the command line, and snapshots of them with the image."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from process_kit import ROLLOUT, WAIT_SECONDS_MAX

from rollout.runs.processes.learners import learner_imaged
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import create_snapshot
from rollout.runs.snapshots.places import place_of_run
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.processes.contract import ProcessSnapshotter
from rollout.snapshots.processes.criu import find_criu
from rollout.snapshots.signing import key_path, open_signer

SPECS = {
    "sft": {
        "algorithm": {"sft": {"batchSize": 4, "maxLength": 64}},
        "data": {"jsonl": {"uri": "rows.jsonl"}},
        "maxSteps": 200,
    },
    "grpo": {
        "algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 2}},
        "environment": {
            "builtin": {"name": "arithmetic", "parameters": [{"name": "digits", "value": "1"}]}
        },
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "sampling": {"maxNewTokens": 4},
        "maxSteps": 60,
    },
}
BOTH = ("TrainState", "Process")


class ImagedRuns:
    """A home of runs; ``monkeypatch`` has this process see it as the commands do."""

    def __init__(self, criu: Path, folder: Path, monkeypatch: Any) -> None:
        self.folder, self.home = folder, folder / "runs"
        self.started: list[subprocess.Popen[bytes]] = []
        mine = {
            "ROLLOUT_HOME": str(self.home),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "ROLLOUT_CRIU": str(criu),
            "OMP_NUM_THREADS": "1",
        }
        for name, value in mine.items():
            monkeypatch.setenv(name, value)
        rows = [{"prompt": f"1{n}+11=", "answer": f"0{21 + n}"} for n in range(8)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.started:
            one.kill()
            one.wait()

    def begin(
        self,
        name: str,
        algorithm: str,
        *words: str,
        include: tuple[str, ...] = BOTH,
        env: dict[str, str] | None = None,
        learner: dict[str, Any] | None = None,
    ) -> subprocess.Popen[bytes]:
        """``rollout run`` of a new run; what it says goes to ``<name>.out``."""
        spec = {
            "seed": 7,
            "model": {"uri": "rollout://tiny-adder?steps=0"},
            "train": SPECS[algorithm],
            "numerics": {"mode": "Exact"},
            "snapshots": {"everySteps": 5, "include": list(include)},
            "learner": learner or {},
        }
        head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps({**head, "metadata": {"name": name}, "spec": spec}))
        with (self.folder / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [*ROLLOUT, "run", "-f", str(file), *words],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        self.started.append(process)
        return process

    def said(self, name: str) -> str:
        """What the command of a run printed."""
        return (self.folder / f"{name}.out").read_text()

    def dir(self, name: str) -> RunDir:
        """The folder of the only run of a name."""
        return RunDir(path=self.home / f"{name}-1")

    def chain(self, name: str, process: subprocess.Popen[bytes]) -> str:
        """Where a run ends that ends well."""
        assert process.wait(WAIT_SECONDS_MAX) == 0, self.said(name)
        return json.loads((self.dir(name).path / "result.json").read_text())["chain"]

    def whole(self, name: str, algorithm: str, *words: str, **more: Any) -> str:
        """The chain of a run from its beginning to its end."""
        return self.chain(name, self.begin(name, algorithm, *words, **more))

    def wait_for(self, name: str, word: str) -> None:
        """Until the learner of a run has logged a word."""
        log = self.dir(name).path / "logs" / "learner.log"
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not log.exists() or word not in log.read_text():
            assert time.monotonic() < deadline, self.said(name)
            assert self.started[-1].poll() is None, self.said(name)
            time.sleep(0.005)

    def image(self, name: str, snapshotter: ProcessSnapshotter | None = None) -> Manifest:
        """A snapshot of a run at work with an image of its learner, as ``snapshot create --include process`` makes it."""
        run = self.dir(name)
        place, signer = place_of_run(run), open_signer(key_path(os.environ))
        with learner_imaged(run, place, snapshotter or find_criu(os.environ)) as image:
            made = create_snapshot(run, signer, step=image.step, place=place, beside=image.take)
        return made.manifest
