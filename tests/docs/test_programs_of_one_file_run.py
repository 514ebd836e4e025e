"""The programs in docs/examples: each is started as its first lines say, on a few rows, and says what was learned."""

import json
import subprocess
import sys

import pytest
from docs_kit import ROOT

pytestmark = pytest.mark.process
PROGRAMS = ROOT / "docs" / "examples" / "programs"
DATA = ROOT / "manifests" / "samples" / "data"


def run(folder, name, *words):
    program = [sys.executable, PROGRAMS / name, *map(str, words)]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_gsm8k_is_trained_on_from_one_file(tmp_path):
    for name in ("train.jsonl", "test.jsonl"):
        lines = (DATA / "gsm8k" / name).read_text("utf-8").splitlines()
        (tmp_path / name).write_text("\n".join(lines[:20]) + "\n", "utf-8")
    small = ("--model", "rollout://tiny-qwen2?hidden=32&layers=1", "--new-tokens", 4)
    said = run(tmp_path, "gsm8k.py", ".", "--steps", 1, "--limit", 2, *small)

    assert "step 0: accuracy 0.000" in said
    row = json.loads((tmp_path / "gsm8k-prompts.jsonl").read_text("utf-8").splitlines()[0])
    assert row["answer"] == "72"
    assert (tmp_path / "runs" / "gsm8k-1" / "report.html").is_file()


def test_an_agent_searches_from_one_file(tmp_path):
    questions = DATA / "two-hops" / "questions.jsonl"
    said = run(tmp_path, "musique.py", questions, "--steps", 1, "--eval-limit", 4)

    assert "step 0: F1 of 0.5 or more in" in said
