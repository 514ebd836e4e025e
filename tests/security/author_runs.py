"""The configuration of a run whose data comes from its author's own code."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from rollout_api.worker import WorkerConfig

DIGEST = "blake3:" + "0" * 64
HEAD = """
import json, os, sys, time
from pathlib import Path
HERE = Path(__file__).parent
class Episode:
    def __init__(self, row):
        self.row = row
    def start(self):
        return self.row["prompt"]
    def step(self, reply):
        return True
"""


def write_environment(folder: Path, rows: str, name: str = "mine") -> Path:
    """A module whose class ``Mine`` gives rows by this code, which stands in ``rows(split)``."""
    folder.mkdir(parents=True, exist_ok=True)
    method = "class Mine(Episode):\n    @classmethod\n    def rows(cls, split):\n"
    body = textwrap.indent(textwrap.dedent(rows).strip(), "        ")
    (folder / f"{name}.py").write_text(f"{HEAD}{method}{body}\n")
    return folder


def build_config(folder: Path, name: str = "mine", **spec: Any) -> WorkerConfig:
    """A run of one machine below ``folder`` that takes its rows from ``Mine``."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    return WorkerConfig.model_validate(
        {
            "run": {"name": "r", "uid": "u"},
            "specDigest": DIGEST,
            "spec": {
                "model": {"uri": "rollout://tiny-adder"},
                "code": {"path": str(folder)},
                "train": {
                    "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
                    "environment": {"python": {"module": name, "className": "Mine"}},
                    "rewards": [{"builtin": {"name": "exact-match"}}],
                    "maxSteps": 1,
                },
                **spec,
            },
            "resolved": {
                "modelPath": str(folder),
                "modelDigest": DIGEST,
                "dtype": "Float32",
                "promptTokensMax": 16,
            },
            "layout": {
                "runDir": str(run),
                "coordinatorUrl": "http://127.0.0.1:1",
                "tokenFile": str(run / "token"),
                "objectsDir": str(run / "objects"),
                "ledgerPath": str(run / "ledger.db"),
            },
        }
    )
