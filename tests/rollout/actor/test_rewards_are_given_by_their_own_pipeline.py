from collections.abc import Sequence

from actor_fakes import CountingBuilder, LetterRenderer, SayingEngine, make_task

from rollout.actor.runner import PlayedTask, RunnerParts, play
from rollout.actor.scoring import PipelineScorer
from rollout.protocol.messages import Failure
from rollout.rewards.build import build_rewards
from rollout.rewards.pipeline import RewardPipeline
from rollout_api.v1alpha1.environment import Reward

EXACT = Reward.model_validate({"builtin": {"name": "exact-match"}, "weight": "2"})
MISSING = Reward.model_validate(
    {"builtin": {"name": "exact-match", "parameters": [{"name": "field", "value": "nowhere"}]}}
)


async def played(tasks, say=lambda prompt, seed: "a1") -> Sequence[PlayedTask]:
    stage = RunnerParts(
        engine=SayingEngine(say),
        renderer=LetterRenderer(),
        builders=lambda task: CountingBuilder(),
        seed=7,
    )
    return await play(tasks, stage)


class Recording(RewardPipeline):
    def __init__(self, sources) -> None:
        super().__init__(sources)
        self.sizes: list[int] = []

    def judge(self, batch):
        self.sizes.append(len(batch.rows))
        return super().judge(batch)


async def test_the_weighted_sum_and_its_parts_are_kept():
    pipeline = build_rewards([EXACT])
    scorer = PipelineScorer(pipelines=lambda task: pipeline, apart=True)

    right, wrong = await scorer.score(await played([make_task(1), make_task(2)]))

    assert {(one.reward, one.rewards["exact-match"]) for one in right} == {(2.0, 1.0)}
    assert {(one.reward, one.rewards["exact-match"]) for one in wrong} == {(0.0, 0.0)}


async def test_an_evaluation_is_scored_by_its_own_rewards():
    train, held_out = build_rewards([EXACT]), build_rewards([])
    scorer = PipelineScorer(
        pipelines=lambda task: train if task.evaluation is None else held_out, apart=False
    )

    one, other = await scorer.score(
        await played([make_task(1), make_task(1, task_id="e", kind="eval", evaluation="sums")])
    )

    assert one[0].rewards == {"exact-match": 1.0}
    assert other[0].rewards == {}


async def test_in_exact_each_group_is_scored_alone_and_else_together():
    tasks = await played([make_task(1, samples=3), make_task(2, samples=3)])
    sizes = {}
    for apart in (True, False):
        pipeline = Recording(build_rewards([EXACT]).sources)
        await PipelineScorer(pipelines=lambda task, p=pipeline: p, apart=apart).score(tasks)
        sizes[apart] = pipeline.sizes

    assert sizes == {True: [3, 3], False: [6]}


async def test_a_reward_that_cannot_score_is_the_tasks_failure_and_names_itself():
    pipeline = build_rewards([MISSING])
    scorer = PipelineScorer(pipelines=lambda task: pipeline, apart=True)

    (result,) = await scorer.score(await played([make_task(1)]))

    assert isinstance(result, Failure)
    assert result.kind == "data"
    assert "exact-match" in result.message
    assert "nowhere" in result.message


async def test_a_task_that_has_failed_is_not_scored():
    failed = PlayedTask(task=make_task(1), failure=Failure(kind="data", message="no sandbox"))
    pipeline = Recording(build_rewards([EXACT]).sources)

    await PipelineScorer(pipelines=lambda task: pipeline, apart=False).score([failed])

    assert pipeline.sizes == []
