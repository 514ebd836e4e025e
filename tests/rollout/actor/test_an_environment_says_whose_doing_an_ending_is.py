"""Endings of the policy, the task and infrastructure; budgets in their order; turn rewards and numbers."""

import asyncio
from dataclasses import replace

import pytest
from actor_fakes import CountingBuilder, CountingEnv, LetterRenderer, SayingEngine, make_task

from rollout.actor.episodes import action_of
from rollout.actor.runner import RunnerParts, play
from rollout.actor.scoring import score_batch
from rollout.rewards.builtins import EnvironmentReward
from rollout.rewards.pipeline import RewardPipeline
from rollout.rewards.source import RewardSource
from rollout.turns import Budgets, Ending, State
from rollout.types import Message


class Scripted(CountingBuilder):
    """Environments that answer with what ``answers`` says, each with its number and turn."""

    def __init__(self, answer) -> None:
        self.answer, self.made, self.closed = answer, 0, 0

    def build(self, row):
        builder, number = self, self.made
        self.made += 1

        class One(CountingEnv):
            heard = 0

            async def step(self, action):
                self.heard += 1
                return builder.answer(number, action)

            async def close(self):
                builder.closed += 1

        return One(row["prompt"], 9)


def on(reward=None, **signals):
    return State(
        messages=(Message(role="user", content="on"),), turn_reward=reward, signals=signals
    )


def stage(builder, say=lambda prompt, seed: "x", **more):
    engine = SayingEngine(say)
    return RunnerParts(
        engine=engine, renderer=LetterRenderer(), builders=lambda task: builder, seed=7, **more
    )


async def test_an_ending_of_the_policys_is_data_by_its_own_name():
    builder = Scripted(lambda number, action: Ending(kind="answered"))
    (played,) = await play([make_task(0)], stage(builder))
    assert [one.ending for one in played.episodes] == ["answered"] * 2
    assert builder.closed == builder.made == 2


async def test_infrastructures_is_asked_of_a_fresh_one_that_heard_the_same():
    def answer(number, action):
        if action.turn == 0:
            return on()
        lost = Ending(kind="sandbox-lost", owner="infrastructure", detail="node gone")
        return lost if number == 0 else Ending()

    builder = Scripted(answer)
    (played,) = await play([make_task(0, samples=1)], stage(builder))
    assert played.failure is None
    assert [(one.ending, one.turn) for one in played.episodes] == [("stop", 2)]
    assert builder.closed == builder.made == 2


async def test_infrastructures_twice_costs_one_sample_and_is_never_scored():
    lost = Ending(kind="sandbox-lost", owner="infrastructure", detail="node gone")
    builder = Scripted(lambda number, action: lost if action.text == "b" else Ending())
    replies = iter("abc")
    (played,) = await play(
        [make_task(0, samples=3)], stage(builder, lambda prompt, seed: next(replies))
    )
    assert [one.sample for one in played.episodes] == [0, 2]
    assert played.failure.kind == "infrastructure"
    assert "sandbox-lost: node gone" in played.failure.message


async def test_the_tasks_own_ending_fails_its_task_by_name_and_no_other():
    broken = Ending(kind="no-solution", owner="task", detail="row 3 has none")
    builder = Scripted(lambda number, action: broken if number < 2 else Ending())
    played = await play([make_task(0), make_task(1)], stage(builder))
    assert [one.failure and one.failure.kind for one in played] == ["data", None]
    assert "no-solution: row 3 has none" in played[0].failure.message


@pytest.mark.parametrize(
    ("budgets", "ending", "turns"),
    [
        (Budgets(turns=3), "turn-limit", 3),
        (Budgets(tokens=4), "token-limit", 2),
        (Budgets(turns=2, tokens=4), "turn-limit", 2),
        (Budgets(seconds=1e-9), "seconds-limit", 1),
        (Budgets(turns=1, seconds=1e-9), "turn-limit", 1),
    ],
)
async def test_a_budget_that_is_used_up_ends_an_episode_as_the_policys(budgets, ending, turns):
    (played,) = await play(
        [make_task(0)], stage(Scripted(lambda number, action: on(1.0)), budgets=budgets)
    )
    assert played.failure is None
    assert {(one.ending, one.turn) for one in played.episodes} == {(ending, turns)}
    assert {one.turn_rewards for one in played.episodes} == {(1.0,) * turns}


async def test_the_environments_own_ending_comes_before_the_budgets():
    builder = Scripted(lambda number, action: Ending(kind="answered"))
    (played,) = await play([make_task(0)], stage(builder, budgets=Budgets(turns=1)))
    assert {one.ending for one in played.episodes} == {"answered"}


async def test_turn_rewards_are_summed_and_numbers_are_recorded():
    def answer(number, action):
        return Ending(turn_reward=1.0, signals={"tries": 2}) if action.turn else on(-0.25, tries=1)

    (played,) = await play([make_task(0)], stage(Scripted(answer)))
    source = RewardSource(name="environment", builtin="environment")
    scores = score_batch(RewardPipeline([source]), [played])["t0"]
    assert {one.reward for one in scores} == {0.75}
    assert scores[0].rewards == {"environment": 0.75, "environment/tries": 2.0}
    assert EnvironmentReward()([()], [], []) == []


@pytest.mark.parametrize("given", [{"turn_reward": float("nan")}, {"signals": {"a": "b"}}])
async def test_what_is_no_finite_number_is_the_tasks_failure(given):
    builder = Scripted(lambda number, action: Ending(**given))
    (played,) = await play([make_task(0)], stage(builder))
    assert played.failure.kind == "data"
    assert "expected finite numbers" in played.failure.message


async def test_one_that_is_slow_holds_up_its_own_sample_and_no_other():
    gate, seen = asyncio.Event(), []

    class Slow(CountingBuilder):
        made = 0

        def build(self, row):
            self.made += 1
            made = CountingEnv(row["prompt"], 3)
            if self.made == 1:
                step = made.step

                async def wait(action):
                    await asyncio.wait_for(gate.wait(), 60)
                    return await step(action)

                made.step = wait
            return made

    def say(prompt, seed):
        seen.append(seed)
        if len(seen) == 4:  # the first of both, then two more of the second: the first still waits
            gate.set()
        return "x"

    (played,) = await play([make_task(0)], stage(Slow(), say, keeps_prefixes=True))
    assert [one.turn for one in played.episodes] == [3, 3]


async def test_in_exact_the_members_of_a_group_meet_every_turn():
    class Unequal(CountingBuilder):
        made = 0

        def build(self, row):
            self.made += 1
            made = CountingEnv(row["prompt"], 2)
            step, seconds = made.step, 0.05 * self.made

            async def wait(action):
                await asyncio.sleep(seconds)
                return await step(action)

            made.step = wait
            return made

    parts = stage(Unequal())
    (played,) = await play([make_task(0, samples=3)], parts)
    assert [[len(one.seeds) for one in call] for call in parts.engine.calls] == [[3], [1, 1, 1]]
    assert len(played.episodes) == 3


async def test_an_engine_that_is_fed_continuously_takes_each_sample_as_it_comes():
    parts = stage(CountingBuilder(turns=2), keeps_prefixes=True, continuous=True)
    batched = stage(CountingBuilder(turns=2))
    (played,) = await play([make_task(0, samples=3)], parts)
    (same,) = await play([make_task(0, samples=3)], batched)
    assert [[len(one.seeds) for one in call] for call in parts.engine.calls] == [[1]] * 6
    assert played.episodes == same.episodes


async def test_an_action_is_the_reply_of_its_turn():
    heard = []

    def answer(number, action):
        heard.append(action)
        return Ending() if action.turn else on()

    replies = iter(["one", "two"])
    (played,) = await play(
        [make_task(0, samples=1)], stage(Scripted(answer), lambda prompt, seed: next(replies))
    )
    assert [(one.turn, one.text, one.message.text) for one in heard] == [
        (0, "one", "one"),
        (1, "two", "two"),
    ]
    (episode,) = played.episodes
    assert [action_of(episode, turn) for turn in (0, 1)] == heard
    assert replace(episode, ending=None).reply == "two"
