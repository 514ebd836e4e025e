"""The main job learns what it was never shown, and its controls do not.

2,000 sums are held out of supervised fine-tuning and of reinforcement learning alike; accuracy is greedy,
on all of them. One pinned seed and an eighth of the steps here; five seeds, every step and the controls in the slow tier.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout.report import write_report
from rollout.runs.manifest import Document, load_documents
from rollout.runs.validation import apply_values
from rollout.supervisor import run_manifest

pytestmark = pytest.mark.usefixtures("warm_starts")

MANIFEST = Path(__file__).parents[3] / "manifests" / "samples" / "addition-sft-grpo.yaml"
STEPS_QUICK = 50
"""Of 400. Accuracy was 0.30, 0.93, 0.98 and 0.997 after 0, 25, 50 and 100 of them."""
RISE_MIN, ACCURACY_MIN, CONTROL_GAIN_MAX = 0.4, 0.9, 0.05

SHUFFLED = """
import random

def shuffled(prompts, completions, rows):
    found = [float(c.text.strip() == row["answer"]) for c, row in zip(completions, rows)]
    random.Random(sum(len(c.text) for c in completions) + len(rows)).shuffle(found)
    return found
"""


def main_job(seed: int, **changes: object) -> list[Document]:
    """Both stages with another model, another data order and other noise; ``changes`` are the second's."""
    sft, grpo = load_documents(MANIFEST)
    model = {"model.uri": f"rollout://tiny-adder?steps=0&seed={seed}"}
    return [
        apply_values(sft, {"seed": seed, **model}),
        apply_values(grpo, {"seed": seed, **changes}),
    ]


def control(seed: int, **changes: object) -> list[Document]:
    """The second stage alone, on the warm-started model, with something taken away."""
    _, grpo = load_documents(MANIFEST)
    model = {"model": {"uri": f"rollout://tiny-adder?seed={seed}"}}
    return [apply_values(grpo, {"seed": seed, **model, **changes})]


def accuracy(run_dir: Path) -> tuple[float, float, float]:
    """First and last accuracy on the report split, and the last one's lower bound."""
    rows = json.loads((run_dir / "report.json").read_text())["evaluations"]
    found = [r for r in rows if (r["split"].lower(), r["metric"]) == ("report", "accuracy")]
    found.sort(key=lambda row: row["step"])
    assert found[-1]["num_prompts"] == 2000
    return found[0]["value"], found[-1]["value"], found[-1]["low"]


def learn(documents: list[Document], home: Path, monkeypatch) -> tuple[float, float, float]:
    monkeypatch.setenv("ROLLOUT_HOME", str(home))
    result = run_manifest(documents, progress=False, report=write_report)
    assert result.exit_code == 0, result.summary
    found = accuracy(result.run_dir)
    print(f"accuracy {found[0]:.3f} -> {found[1]:.3f} (95 % from {found[2]:.3f})")
    return found


@pytest.mark.process
@pytest.mark.timeout(900)
def test_one_pinned_seed_learns_to_carry(tmp_path, monkeypatch):
    short = {"train.maxSteps": STEPS_QUICK}
    first, last, low = learn(main_job(1, **short), tmp_path, monkeypatch)
    assert last - first >= RISE_MIN
    assert low >= ACCURACY_MIN


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_four_of_five_seeds_learn_to_carry(tmp_path, monkeypatch):
    found = [learn(main_job(seed), tmp_path / str(seed), monkeypatch) for seed in range(5)]
    learned = [last - first >= RISE_MIN and last >= ACCURACY_MIN for first, last, _ in found]
    assert sum(learned) >= 4, found


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_learning_rate_of_zero_gains_nothing(tmp_path, monkeypatch):
    still = {"train.optimizer": {"adamw": {"learningRate": 0}}}
    first, last, _ = learn(control(0, **still), tmp_path, monkeypatch)
    assert last - first <= CONTROL_GAIN_MAX


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_shuffled_rewards_gain_nothing(tmp_path, monkeypatch):
    (tmp_path / "shuffled.py").write_text(SHUFFLED)
    python = {"path": str(tmp_path / "shuffled.py"), "function": "shuffled"}
    noise = {"train.rewards": [{"python": python}]}
    first, last, _ = learn(control(0, **noise), tmp_path, monkeypatch)
    assert last - first <= CONTROL_GAIN_MAX
