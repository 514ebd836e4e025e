"""The programs in docs/examples: each is started as its first lines say, on a few rows, and says what was learned."""

import json
import re
import shutil
from pathlib import Path

import pytest
from docs_kit import ROOT
from serve_kit import ServedTraining
from warm import run_module

pytestmark = pytest.mark.process
PROGRAMS = ROOT / "docs" / "examples" / "programs"
DATA = ROOT / "manifests" / "samples" / "data"


def run(folder, name, *words, **variables):
    shutil.copy(PROGRAMS / name, folder)
    module = Path(name).stem
    done = run_module(module, *map(str, words), folder=folder, environment=variables)
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


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A service of both bases, as variables that programs read."""
    one = ServedTraining(
        home=tmp_path_factory.mktemp("served"),
        base="tiny=rollout://tiny-qwen2?hidden=32&layers=1",
        more=("--train", "agent=rollout://tiny-agent?tool=search"),
    )
    one.start()
    yield {"TINKER_BASE_URL": one.url, "TINKER_API_KEY": one.key}
    one.kill()


def said_of_steps(said, name):
    return [float(one) for one in re.findall(rf"^step \d+: .*{name} ([\d.]+)", said, re.MULTILINE)]


def write_digits(folder):
    """Questions whose answers a tiny model hits by chance."""
    rows = [
        {"question": f"How many, {i}?", "answer": f"So. #### {i % 2 * 4 + 3}"} for i in range(4)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), "utf-8")


def test_gsm8k_is_a_loop_of_ones_own_in_one_file(served, tmp_path):
    write_digits(tmp_path)
    small = ("--base", "tiny", "--steps", 2, "--prompts", 4, "--group", 16, "--new-tokens", 8)
    said = run(tmp_path, "gsm8k_loop.py", ".", *small, **served)
    assert len(said_of_steps(said, "gradient")) == 2
    assert "sampler_weights/final" in said


AGENT = ("--base", "agent", "--plain", "--new-tokens", 24)


def test_an_agent_searches_in_a_loop_of_ones_own_in_one_file(served, tmp_path):
    small = (DATA / "two-hops" / "questions.jsonl", "--steps", 2, "--prompts", 4, "--group", 4)
    said = run(tmp_path, "musique_loop.py", *small, *AGENT, **served)
    assert len(said_of_steps(said, "F1")) == 2
    assert all(turns > 16 for turns in said_of_steps(said, "turns"))
    assert "sampler_weights/final" in said


@pytest.mark.slow
def test_an_agent_learns_to_search_in_a_loop_of_ones_own(served, tmp_path):
    words = (DATA / "two-hops" / "questions.jsonl", "--steps", 14, "--prompts", 8)
    said = run(tmp_path, "musique_loop.py", *words, "--learning-rate", 2e-3, *AGENT, **served)
    found = said_of_steps(said, "F1")
    assert sum(found[-3:]) > sum(found[:3]) + 1
