"""A reward that raises InfrastructureError loses the samples that it could not score, and nothing else."""

from pathlib import Path

import pytest

from rollout.actor.episodes import Episode, Score
from rollout.actor.runner import PlayedTask
from rollout.actor.scoring import score_batch
from rollout.actor.submitting import finish_task
from rollout.errors import RewardUnavailable
from rollout.protocol.messages import Failure, Task
from rollout.rewards.pipeline import RewardPipeline, RewardVerdict
from rollout.rewards.source import RewardSource
from rollout.types import Message, SamplingParams, WeightVersion

VERSION = WeightVersion(lineage=0, step=0, digest="", object="")
JUDGE = """
from rollout.errors import InfrastructureError

def score(prompts, completions, rows):
    for completion in completions:
        if completion.text.startswith("away"):
            raise InfrastructureError("judge answered HTTP 503")
        if completion.text.startswith("bug"):
            raise KeyError("answer")
    return [float(len(completions)) for _ in completions]
"""


@pytest.fixture
def judge(tmp_path):
    (tmp_path / "judge_that_may_be_away.py").write_text(JUDGE)
    source = RewardSource(
        name="judge",
        module="judge_that_may_be_away",
        function="score",
        folders=(Path(tmp_path),),
    )
    pipeline = RewardPipeline([source])
    yield pipeline
    pipeline.close()


def play(*replies, name="t/0") -> PlayedTask:
    task = Task(
        task_id=name,
        kind="train",
        ordinal=0,
        row={"prompt": "p"},
        num_samples=len(replies),
        attempt=1,
        epoch=1,
        lease_seconds=30,
        version=VERSION,
        sampling=SamplingParams(max_new_tokens=4),
        noise_domain="train",
    )
    episodes = tuple(
        Episode(
            task_id=name,
            ordinal=0,
            sample=sample,
            seed=0,
            messages=(
                Message(role="user", content="p"),
                Message(role="assistant", content=reply),
            ),
            prompt_ids=(1,),
            token_ids=(2,),
            logprobs=(-1.0,),
            loss_mask=(1,),
            replies=(reply,),
            ending="stop",
        )
        for sample, reply in enumerate(replies)
    )
    return PlayedTask(task=task, episodes=episodes)


def test_the_samples_that_it_could_score_are_kept(judge):
    played = play("x", "away", "y")
    scores = score_batch(judge, [played])["t/0"]
    result = finish_task(played, scores, {})
    assert [one.sample for one in result.trajectories] == [0, 2]
    assert [one.reward for one in result.trajectories] == [2.0, 2.0]
    assert result.failure.kind == "infrastructure"
    assert "judge answered HTTP 503" in result.failure.message


def test_what_a_lost_round_cost_is_counted_with_what_it_was_spent_on(judge, monkeypatch):
    told = iter([(RewardUnavailable, (1,)), (None, ())])

    def rate(batch):
        failure, lost = next(told)
        costs = {"judge/tokens": 5.0}
        if failure is not None:
            raise failure("judge answered HTTP 503", lost, costs=[costs] * len(batch.rows))
        return [RewardVerdict(total=1.0, parts={}, costs=costs) for _ in batch.rows]

    monkeypatch.setattr(judge, "judge", rate)
    kept, lost, other = score_batch(judge, [play("x", "away", "y")])["t/0"]
    assert [kept.costs, other.costs] == [{"judge/tokens": 10.0}] * 2
    assert lost.kind == "infrastructure"
    result = finish_task(play("x"), (kept,), {})
    assert result.trajectories[0].costs == {"judge/tokens": 10.0}


def test_tasks_that_were_scored_beside_it_are_whole(judge):
    scores = score_batch(judge, [play("away", "away", name="t/1"), play("x", "y", name="t/2")])
    assert [one.kind for one in scores["t/1"]] == ["infrastructure"] * 2
    assert scores["t/2"] == (Score(rewards={"judge": 2.0}, reward=2.0),) * 2


def test_a_fault_of_the_function_is_still_the_tasks(judge):
    failure = score_batch(judge, [play("bug", "x")])["t/0"]
    assert isinstance(failure, Failure)
    assert failure.kind == "data"


def test_both_at_once_are_told_as_the_fault(judge):
    failure = score_batch(judge, [play("away", "bug")])["t/0"]
    assert failure.kind == "data"
    assert "KeyError" in failure.message
