"""The sample agents learn to ask a calculator and to search on; their controls do not learn, kills change nothing.

What accuracy is measured on is held out, and sampled as in training. One pinned seed of one agent and two fifths of its
steps here; both agents, three seeds, every step and the controls in the slow tier.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from local_jobs import start_job
from ruins import check_same

from rollout.report import write_report
from rollout.runs.manifest import load_documents
from rollout.runs.validation import apply_values
from rollout.supervisor import run_manifest

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_starts")]

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
QUESTIONS = SAMPLES / "data" / "two-hops" / "questions.jsonl"
STEPS_QUICK = 24
"""Of 60. Accuracy was 0.26, 0.61, 0.64 and 0.64 after 0, 20, 40 and 60 of them."""
RISE_MIN, OVER_CONTROL_MIN = 0.2, 0.15

SHUFFLED = """
import random

def shuffled(prompts, completions, rows):
    found = [float(c.text.strip() == row["answer"]) for c, row in zip(completions, rows)]
    random.Random(sum(len(c.text) for c in completions) + len(rows)).shuffle(found)
    return found
"""
BROKEN = """
def calculator(expression: str) -> str:
    '''Work out an expression of numbers, + - * / // % and brackets, exactly.'''
    return "0"
"""


def learn(agent: str, home: Path, monkeypatch, **changes: object) -> tuple[float, float]:
    """First and last accuracy of a sample with something changed."""
    (document,) = load_documents(SAMPLES / f"{agent}-agent.yaml")
    monkeypatch.setenv("ROLLOUT_HOME", str(home))
    result = run_manifest([apply_values(document, changes)], progress=False, report=write_report)
    assert result.exit_code == 0, result.summary
    rows = json.loads((result.run_dir / "report.json").read_text())["evaluations"]
    found = [r for r in rows if (r["split"].lower(), r["metric"]) == ("report", "accuracy")]
    found.sort(key=lambda row: row["step"])
    print(f"accuracy {found[0]['value']:.3f} -> {found[-1]['value']:.3f}")
    return found[0]["value"], found[-1]["value"]


@pytest.mark.timeout(900)
def test_one_pinned_seed_learns_to_ask(tmp_path, monkeypatch):
    ends = {"train.maxSteps": STEPS_QUICK, "evaluations[0].everySteps": STEPS_QUICK}
    first, last = learn("arithmetic", tmp_path, monkeypatch, **ends)

    assert last - first >= RISE_MIN


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("agent", ["arithmetic", "search"])
@pytest.mark.parametrize("seed", range(3))
def test_every_seed_learns_more_than_its_controls(agent, seed, tmp_path, monkeypatch):
    (tmp_path / "shuffled.py").write_text(SHUFFLED)
    mine = {"seed": seed}
    shuffled = [{"python": {"path": str(tmp_path / "shuffled.py"), "function": "shuffled"}}]

    first, last = learn(agent, tmp_path / "agent", monkeypatch, **mine)
    _, by_chance = learn(
        agent, tmp_path / "chance", monkeypatch, **mine, **{"train.rewards": shuffled}
    )
    _, without = learn(agent, tmp_path / "without", monkeypatch, **mine, **WITHOUT[agent](tmp_path))

    assert last - first >= RISE_MIN
    assert last - by_chance >= OVER_CONTROL_MIN
    assert last - without >= OVER_CONTROL_MIN


def a_broken_calculator(folder: Path) -> dict[str, object]:
    (folder / "broken.py").write_text(BROKEN)
    return {"code": {"path": str(folder)}, "train.environment.tools": ["broken.calculator"]}


def empty_documents(folder: Path) -> dict[str, object]:
    """The same questions over documents that say nothing."""
    nothing = [{"title": "", "paragraph_text": "nothing"}]
    rows = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]
    emptied = [json.dumps({**row, "paragraphs": nothing}) for row in rows]
    (folder / "emptied.jsonl").write_text("\n".join(emptied))
    jsonl = {"uri": str(folder / "emptied.jsonl"), "promptField": "question"}
    data = {"jsonl": jsonl, "evalFraction": 0.25}
    evaluation = {"name": "two-hops", "suite": {"data": data}, "temperature": "1"}
    return {"train.data": data, "evaluations": [evaluation]}


WITHOUT = {"arithmetic": a_broken_calculator, "search": empty_documents}


SMALL = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: small-agent}
spec:
  seed: 5
  model: {uri: "rollout://tiny-agent"}
  train:
    algorithm: {grpo: {promptsPerStep: 4, groupSize: 4}}
    environment:
      builtin: {name: arithmetic, parameters: [{name: digits, value: "3"}, {name: operations, value: "+-*"}]}
      tools: [calculator]
    rewards: [{builtin: {name: exact-match}}, {python: {path: even.py, function: even}, weight: "0.01"}]
    sampling: {maxNewTokens: 40}
    maxSteps: 8
  snapshots: {everySteps: 3}
  evaluations: [{suite: {builtin: {name: arithmetic}}, maxPrompts: 8, everySteps: 4}]
"""
ROOM = 3


@pytest.mark.timeout(900)
def test_killed_processes_change_nothing_of_episodes_with_tools(tmp_path):
    undisturbed = start_job(tmp_path / "undisturbed", manifest=SMALL).finish()
    job = start_job(tmp_path / "runs", manifest=SMALL, lease_seconds=4.0, steps_max=0)

    for step, role in ((1, "actor-0"), (3, "coordinator"), (5, "learner")):
        job.limit_steps(min(step + ROOM, 7))
        job.wait_until(lambda status, step=step: status.step >= step)
        job.kill(role)
    job.limit_steps()

    check_same(job, job.finish(), undisturbed)
    assert "starting it again" in job.said()
