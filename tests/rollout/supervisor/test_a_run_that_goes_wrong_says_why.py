"""Bad input and bad rewards: a clear message, the right exit code, nothing lost."""

import pytest
from local_jobs import members, start_job

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

REWARDS = """
import time

def broken(prompts, completions, rows):
    raise ZeroDivisionError("no scores today")

def nan(prompts, completions, rows):
    return [float("nan")] * len(completions)

def hang(prompts, completions, rows):
    time.sleep(3600)

def equal(prompts, completions, rows):
    return [1.0] * len(completions)
"""


def with_reward(tmp_path, function: str, more: str = "") -> list[str]:
    (tmp_path / "mine.py").write_text(REWARDS)
    reward = f"{{python: {{path: mine.py, function: {function}}}{more}}}"
    return [f"train.rewards=[{reward}]", "evaluations=[]"]


@pytest.mark.parametrize(
    ("function", "more", "said"),
    [
        ("broken", "", "no scores today"),
        pytest.param("nan", "", "nan", marks=pytest.mark.slow),
        pytest.param(
            "hang", ", timeoutSeconds: 1", "did not answer within 1 s", marks=pytest.mark.slow
        ),
    ],
)
def test_a_reward_that_fails_stops_the_run_and_is_named(tmp_path, function, more, said):
    job = start_job(tmp_path / "runs", overrides=with_reward(tmp_path, function, more))

    assert job.wait() == 1
    assert function in job.said()
    assert said in job.said()
    assert members(job.run_dir) == []


@pytest.mark.slow
def test_a_failed_run_goes_on_once_its_reward_is_corrected(tmp_path):
    overrides = with_reward(tmp_path, "broken")
    assert start_job(tmp_path / "runs", overrides=overrides).wait() == 1
    (tmp_path / "mine.py").write_text(REWARDS.replace("raise", "return [0.5] * len(rows)  #"))

    assert start_job(tmp_path / "runs", overrides=overrides, resume="Latest").finish()["step"] == 12


def test_a_run_that_cannot_learn_says_so_within_five_steps(tmp_path):
    job = start_job(
        tmp_path / "runs", overrides=[*with_reward(tmp_path, "equal"), "train.maxSteps=400"]
    )

    status = job.wait_until(
        lambda status: any(one.reason == "NoLearningSignal" for one in status.conditions)
    )
    job.end()

    assert status.step <= 6


SINGLE_TURN = "train.environment={builtin: {name: single-turn}}"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.uri=file:///nowhere"], "nowhere"),
        (["train.rewards=[{python: {path: absent.py, function: f}}]"], "absent.py"),
        (["train.data={jsonl: {uri: absent.jsonl}}", SINGLE_TURN], "absent.jsonl"),
        (["train.sampling.maxNewTokens=100"], "context"),
    ],
)
def test_what_is_missing_is_named_and_exits_with_two(tmp_path, overrides, said):
    job = start_job(tmp_path / "runs", overrides=[*overrides, "evaluations=[]"])

    assert job.wait() == 2
    assert said in job.said()
    assert "Traceback" not in job.said()
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_a_corrupt_ledger_is_named_and_left_alone(tmp_path):
    job = start_job(tmp_path / "runs", overrides=["train.maxSteps=2", "evaluations=[]"])
    job.finish()
    ledger = job.run_dir / "ledger.db"
    broken = b"\xff" * 4096 + ledger.read_bytes()[4096:]
    ledger.write_bytes(broken)

    resumed = start_job(tmp_path / "runs", resume="Latest", overrides=["evaluations=[]"])

    assert resumed.wait() == 1
    assert "ledger.db" in resumed.said()
    assert ledger.read_bytes() == broken
    assert members(job.run_dir) == []
