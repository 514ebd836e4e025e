"""Small real runs, started as a user would start them, watched and wounded from outside."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from warm import SERVERS, outside_of_tests, serves, settings, warm_server

from rollout.common.child_processes import Process, ProcessSpec, end_processes, start_process
from rollout.common.parent_death import tied_argv
from rollout.errors import RolloutError
from rollout.protocol.auth import read_token
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.status import Status

RUN_SECONDS_MAX = 600.0
START_SECONDS_MAX = 120.0
"""Bounds against hanging only: a machine that does other things too is slow, not wrong."""
STARTED: list[Job] = []
"""Jobs of the present test: ``end_jobs`` ends those that it left running."""

MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: small}
spec:
  seed: 11
  model: {uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"}
  train:
    algorithm: {grpo: {promptsPerStep: 4, groupSize: 4}}
    environment: {builtin: {name: arithmetic, parameters: [{name: digits, value: "1"}]}}
    rewards: [{python: {path: even.py, function: even}}]
    sampling: {maxNewTokens: 5}
    optimizer: {adamw: {learningRate: "1e-3"}}
    maxSteps: 12
  snapshots: {everySteps: 5}
  evaluations: [{suite: {builtin: {name: arithmetic, parameters: [{name: digits, value: "1"}]}}, maxPrompts: 8, everySteps: 6}]
"""

EVEN = """
import os, pathlib, time

def even(prompts, completions, rows):
    spells = pathlib.Path(os.environ["ROLLOUT_TEST_SPELLS"])
    time.sleep(float((spells / "slow-rewards").read_text()))
    version = max(span.step for one in completions for span in one.spans)
    while version >= float((spells / "steps-max").read_text()):
        time.sleep(0.02)
    return [sum(token % 2 == 0 for token in c.token_ids) / len(c.token_ids) for c in completions]
"""


SUMS_MANIFEST = """
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
"""A run that never ends by itself, on the rows that ``write_sums`` writes."""


@dataclass
class Job:
    """One supervised run under ``home``; ``stderr`` is what the user would have seen."""

    process: Process
    home: Path
    stderr: Path
    spells: Path

    @property
    def run_dir(self) -> Path:
        """The newest run directory. Raises ValueError before there is one."""
        found = [path for path in self.home.iterdir() if (path / "token").exists()]
        return max(found, key=lambda path: int(path.name.rpartition("-")[2]))

    def said(self) -> str:
        return self.stderr.read_text()

    def wait(self, seconds_max: float = RUN_SECONDS_MAX) -> int:
        try:
            return self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGINT)
            os.kill(self.process.pid, signal.SIGINT)
            self.process.wait(30)
            raise AssertionError(f"the run did not end:\n{self.said()}\n{self.logs()}") from None

    def logs(self) -> str:
        logs = sorted((self.run_dir / "logs").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in logs)

    def result(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "result.json").read_text())

    def finish(self) -> dict[str, Any]:
        """Wait for success and return what the run came to."""
        code = self.wait()
        assert code == 0, f"exit code {code}\n{self.said()}\n{self.logs()}"
        return self.result()

    def status(self) -> Status | None:
        """What the coordinator says now; None while it cannot be asked."""
        try:
            config = json.loads((self.run_dir / "worker.json").read_text())
            token = read_token(self.run_dir / "token", "operator")
        except (OSError, ValueError):
            return None
        client = CoordinatorClient.connect(
            config["layout"]["coordinatorUrl"], token, patience_seconds=0.0
        )
        try:
            return client.status()
        except RolloutError:
            return None
        finally:
            client.close()

    def wait_until(self, condition: Callable[[Status], bool], seconds_max: float = 400.0) -> Status:
        """The first status that meets the condition, looked for often."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline and self.process.poll() is None:
            status = self.status()
            if status is not None and condition(status):
                return status
            time.sleep(0.01)
        raise AssertionError(f"never happened:\n{self.said()}\n{self.logs()}")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Signal one process of the run by its name: ``actor-0``, ``learner``, ``coordinator``.

        The coordinator answers before the others have been forked: one that does not live yet is waited for.
        """
        for process in self.processes(name):
            process.send_signal(number)

    def processes(self, name: str) -> list[psutil.Process]:
        """Those of that name, waited for as ``signal`` does."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (found := [one for one in members(self.run_dir) if is_named(one, name)]):
            assert time.monotonic() < deadline, f"no {name}:\n{self.said()}\n{self.logs()}"
            time.sleep(0.02)
        return found

    def kill(self, name: str) -> None:
        """``kill -9`` one process of the run."""
        self.signal(name, signal.SIGKILL)

    def freeze(self, name: str, seconds: float) -> None:
        """Let a process see nothing of the next seconds."""
        self.signal(name, signal.SIGSTOP)
        time.sleep(seconds)
        self.signal(name, signal.SIGCONT)

    def hold(self, name: str) -> None:
        """Keep processes of this name that start from now on from doing anything (``spells/``)."""
        (self.spells / f"hold-{name}").touch()

    def release(self, name: str) -> None:
        """Let them go."""
        (self.spells / f"hold-{name}").unlink()

    def set_clock(self, name: str, seconds: float) -> None:
        """Move the wall clock of processes of this name, those that run already included."""
        tell(self.spells, f"skew-{name}", seconds)

    def slow_rewards(self, seconds: float) -> None:
        """Let every call of ``EVEN`` take so long from now on."""
        tell(self.spells, "slow-rewards", seconds)

    def limit_steps(self, steps_max: float = math.inf) -> None:
        """Let ``EVEN`` wait with what versions from ``steps_max`` on have sampled.

        Without staleness the run takes so many steps and no more, and all its processes live until it may go on.
        """
        tell(self.spells, "steps-max", steps_max)

    def slow_tokens(self, seconds: float) -> None:
        """Let every token of actors that were started slow (``slow_tokens``) take so long from now on."""
        tell(self.spells, "slow-tokens", seconds)

    def has_begun(self, name: str) -> bool:
        """Whether an actor that was started slow has sampled the first tokens of something."""
        return (self.spells / f"begun-{name}").exists()

    @contextmanager
    def another(self, name: str) -> Iterator[None]:
        """A second process under the name of one that is believed to be lost, as another node would start it."""
        role, _, index = name.partition("-")
        process = start_process(
            ProcessSpec(
                name=name,
                role=role,
                module=f"rollout.entrypoints.{role}",
                arguments=(
                    *("--config", str(self.run_dir / "worker.json")),
                    *(("--index", index) if index else ()),
                ),
                log=self.home.parent / f"another-{name}.log",
                env={**enchanted(self.spells), "ROLLOUT_RUN_DIR": str(self.run_dir)},
            )
        )
        try:
            yield
        finally:
            end_processes([process], grace_seconds=0.0, ask=False)

    def log(self, name: str) -> str:
        """What a process has logged; empty when there is nothing yet."""
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def tell(spells: Path, name: str, number: float) -> None:
    """Write a number that other processes read at any time: the old or the new one, never half of it."""
    work = spells / f".{name}"
    work.write_text(str(number))
    work.replace(spells / name)


def is_named(process: psutil.Process, name: str) -> bool:
    role, _, index = name.partition("-")
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    if f"rollout.entrypoints.{role}" not in words:
        return False
    return role != "actor" or words[words.index("--index") + 1] == index


def members(run_dir: Path) -> list[psutil.Process]:
    """Every living process of a run, whatever started it."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("ROLLOUT_RUN_DIR") == str(run_dir) or any(
                word.startswith(f"{run_dir}/") for word in process.cmdline()
            )
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def start_job(
    home: Path,
    *,
    manifest: str = MANIFEST,
    overrides: Sequence[str] = (),
    resume: str | None = None,
    reward: str = EVEN,
    lease_seconds: float | None = None,
    slow_rewards: float = 0.0,
    steps_max: float = math.inf,
    slow_tokens: float | None = None,
    plain: bool = False,
) -> Job:
    """Start a run of ``manifest`` in a supervisor of its own; ``reward`` is the source of ``even.py``.

    ``slow_rewards``, ``steps_max`` and ``slow_tokens``: as ``Job`` has them, from the beginning.
    ``plain``: all of it is started by ``python -m``; otherwise by what has imported torch already.
    """
    home.mkdir(parents=True, exist_ok=True)
    path = home.parent / f"{home.name}.yaml"
    path.write_text(manifest)
    (home.parent / "even.py").write_text(reward)
    stderr = home.parent / f"{home.name}.stderr"
    spells = home.parent / f"{home.name}.spells"
    spells.mkdir(exist_ok=True)
    tell(spells, "slow-rewards", slow_rewards)
    tell(spells, "steps-max", steps_max)
    if slow_tokens is not None:
        tell(spells, "slow-tokens", slow_tokens)
    arguments = {
        "manifest": str(path),
        "overrides": list(overrides),
        "resume": resume,
        "lease_seconds": lease_seconds,
    }
    environment = {**outside_of_tests(), **enchanted(spells), "ROLLOUT_HOME": str(home)}
    words = ("started_job", json.dumps(arguments))
    with stderr.open("ab") as log, Path(os.devnull).open("rb") as nothing:
        files = {0: nothing.fileno(), 1: log.fileno(), 2: log.fileno()}
        if not plain and serves(environment):
            process = warm_server().fork(
                words, environment=environment, files=files, passes_on=SERVERS
            )
        else:
            process = subprocess.Popen(
                tied_argv(*words, parent=os.getpid()),
                env={**environment, **({"ROLLOUT_FORK_SERVER": "0"} if plain else {})},
                stdin=nothing,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    STARTED.append(Job(process=process, home=home, stderr=stderr, spells=spells))
    return STARTED[-1]


def enchanted(spells: Path) -> dict[str, str]:
    """What makes every Python process of a run read ``spells`` before anything else."""
    return {**settings(), "ROLLOUT_TEST_SPELLS": str(spells)}


def write_sums(folder: Path, manifest: str) -> None:
    """``m.yaml``, and ``rows.jsonl`` beside it."""
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "m.yaml").write_text(manifest)


def end_jobs() -> None:
    """End what a test that failed left running; its processes die with it."""
    while STARTED:
        STARTED.pop().end()
