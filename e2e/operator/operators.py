"""Starts operator processes against a cluster, kills them, and asks what they say."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waiting import wait_until

READY_SECONDS_MAX = 90.0
COMMAND = ("-m", "rollout_operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator process. ``port`` serves health and metrics."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read().decode()

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz") == "ok"
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        lines = self.get("/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def environment(kubeconfig: Path, port: int, **settings: str) -> dict[str, str]:
    return os.environ | {
        "KUBECONFIG": str(kubeconfig),
        "ROLLOUT_HEALTH_PORT": str(port),
        "ROLLOUT_OPERATOR_NAMESPACE": "default",
        "ROLLOUT_LEADER_ELECTION": "false",
        **settings,
    }


@contextmanager
def operating(
    kubeconfig: Path,
    port: int,
    log: Path,
    *,
    wait: bool = True,
    command: Sequence[str] = COMMAND,
    **settings: str,
) -> Iterator[Operator]:
    """An operator for a block; killed at its end. `command` is what Python is told."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment(kubeconfig, port, **settings),
            stdout=output,
            stderr=output,
        )
    operator = Operator(process=process, port=port, log=log)
    try:
        if wait:
            eventually(operator.is_ready, f"the operator was not ready; see {log}")
        yield operator
    finally:
        process.kill()
        process.wait()


def eventually(
    ask: Callable[[], Any], what: str, seconds: float = READY_SECONDS_MAX, every: float = 0.1
) -> Any:
    """The first true answer. Raises AssertionError when none comes."""
    return wait_until(ask, what, seconds, every=every)
