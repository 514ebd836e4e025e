"""How long a person waits for the command line: whole processes, interpreter start included."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, level

ROLLOUT = str(Path(sys.executable).with_name("rollout"))
REPEATS = 11
HEAD = """\
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: long}
spec:
  model: {uri: "rollout://tiny-adder"}
  train:
    algorithm: {grpo: {promptsPerStep: 32, groupSize: 8}}
    environment: {builtin: {name: arithmetic}}
    maxSteps: 400
    rewards:
"""
REWARD = """\
    - builtin:
        name: length
        parameters:
        - {name: target, value: "10"}
      name: reward-%d
      weight: "0.1"
"""


def long_manifest(lines: int = 200) -> str:
    """A valid manifest of about so many lines."""
    text = HEAD
    for index in range(31):
        text += REWARD % index
    return (
        text
        + "  env:\n"
        + "".join(
            f"  - {{name: VARIABLE_{index}, value: x}}\n"
            for index in range(lines - text.count("\n") - 1)
        )
    )


def seconds(*arguments: str) -> float:
    """Wall seconds of one command. Raises when it fails."""
    start = time.perf_counter()
    subprocess.run([ROLLOUT, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def measure() -> Iterator[Figure]:
    """The two figures that are promised."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.yaml"
        path.write_text(long_manifest())
        seconds("validate", "-f", str(path))
        validate = [seconds("validate", "-f", str(path)) for _ in range(REPEATS)]
        help_ = [seconds("--help") for _ in range(REPEATS)]
    yield level("validate, 200 lines, wall", validate, "s", "<= 0.5")
    yield level("rollout --help, wall", help_, "s", "<= 0.3")
