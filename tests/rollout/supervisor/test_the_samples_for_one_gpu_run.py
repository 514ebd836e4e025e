"""The recipes for one GPU: each fits the card that it names by its plan, and trains as it stands on a tiny stand-in of its model and data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_stand_in import TINY, place_gsm8k

from rollout.models.resolve import resolve_model

SAMPLES = sorted((Path(__file__).parents[3] / "manifests" / "samples" / "one-gpu").glob("*.yaml"))
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "recipes-for-one-gpu.md"
CARD = re.compile(r"^# card: (\w+)$", re.MULTILINE)
FEWER = {
    "gsm8k-grpo": {
        "train.maxPromptTokens": "1024",
        "train.algorithm.grpo.promptsPerStep": "4",
        "train.algorithm.grpo.groupSize": "4",
        "train.sampling.maxNewTokens": "6",
        "evaluations[0].maxPrompts": "4",
        "evaluations[0].maxNewTokens": "6",
    },
    "chat-sft": {"train.algorithm.sft.batchSize": "4"},
    "chat-dpo": {"train.algorithm.dpo.batchSize": "4"},
}
"""What a machine without a GPU makes smaller, beside the model, the data and the steps."""


def talk(number: int, answer: str) -> list[dict[str, str]]:
    question = f"What is {number} and two?"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


ROWS = [
    {"messages": talk(i, "Four."), "chosen": talk(i, "Four."), "rejected": talk(i, "Five.")}
    for i in range(100)
]
LOCAL = {
    "chat-sft": "{jsonl: {uri: rows.jsonl, messagesField: messages}, evalFraction: '0.5'}",
    "chat-dpo": "{jsonl: {uri: rows.jsonl}, evalFraction: '0.5'}",
}


def rollout(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rollout", *words]
    given = None if env is None else {**os.environ, **env}
    return subprocess.run(argv, env=given, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_each_fits_the_card_that_it_names_with_room_for_a_longer_sequence(sample: Path) -> None:
    card = CARD.search(sample.read_text()).group(1)
    done = rollout("plan", "--offline", "-f", str(sample), "--card", card, "--output", "json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    (load,) = run["devices"]["loads"]
    assert 0.2 * load["memory"] < sum(size for _, size in load["held"]) <= 0.92 * load["memory"]
    assert run["devices"]["longestSequence"] >= 2048
    total = sum(size for _, size in load["held"]) / 2**30
    longest, more = (run["devices"][f"longestSequence{one}"] for one in ("", "Recomputing"))
    row = (
        f"| `{sample.stem}` | {card.replace('Gi', ' GB')} | {total:.1f} | {longest:,} | {more:,} |"
    )
    assert row in PAGE.read_text()


@pytest.mark.process
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    "name", ["gsm8k-grpo", *(pytest.param(one, marks=pytest.mark.slow) for one in LOCAL)]
)
def test_each_trains_as_it_stands_on_a_small_model(tmp_path: Path, name: str) -> None:
    place_gsm8k(tmp_path / "hub")
    sample = tmp_path / f"{name}.yaml"
    shutil.copy(next(path for path in SAMPLES if path.stem == name), sample)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    changed = {
        "model.uri": f"file://{resolve_model(TINY).path}",
        "train.maxSteps": "2",
        "train.schedule": "{constant: {}}",
        **({"train.data": LOCAL[name]} if name in LOCAL else {}),
        **FEWER[name],
    }
    given = [f"--set={path}={value}" for path, value in changed.items()]
    env = {
        "HF_HOME": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    folder = tmp_path / "run"
    done = rollout("run", "-f", str(sample), "--run-dir", str(folder), *given, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((folder / "result.json").read_text())["step"] == 2
