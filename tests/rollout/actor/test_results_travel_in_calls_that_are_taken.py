"""However much a claim brings: each call is within what the coordinator takes, and each group goes when it ends."""

import asyncio
import threading

import msgspec
import pytest
from actor_fakes import CountingBuilder, CountingEnv, LetterRenderer, SayingEngine, make_task
from hypothesis import given
from hypothesis import strategies as st
from test_an_actor_works_until_told_to_stop import AnyWeights, LengthScorer, ScriptedClient

from rollout.actor import submitting
from rollout.actor.loop import Actor, ActorParts
from rollout.actor.runner import RunnerParts
from rollout.actor.submitting import CALL_BYTES, GROUP_BYTES_MAX, fit_result, plan_submits
from rollout.errors import EngineError
from rollout.protocol.messages import Failure, Submit, TaskResult
from rollout.protocol.routes import SUBMIT
from rollout.types import Prefix, Trajectory, VersionSpan


def trajectory(tokens: int, sample: int = 0) -> Trajectory:
    return Trajectory(
        ordinal=0,
        sample=sample,
        prompt_ids=(1, 2),
        token_ids=(150_000,) * tokens,
        actor_logprobs=(-0.5,) * tokens,
        loss_mask=(1,) * tokens,
        spans=(VersionSpan(start=0, end=tokens, lineage=0, step=1),),
        rewards={"r": 1.0},
        reward=1.0,
        ending="stop",
        text="x" * tokens,
    )


def result(number: int, tokens: int, samples: int = 1) -> TaskResult:
    made = tuple(trajectory(tokens, sample) for sample in range(samples))
    return TaskResult(task_id=f"t{number}", epoch=1, trajectories=made)


def size(value) -> int:
    return len(msgspec.msgpack.encode(value))


def test_a_claim_whose_results_no_call_could_carry_travels_in_several():
    # 128 groups x 16 samples x 8192 tokens are 300 MiB, encoded; a call takes 256.
    group = result(0, 8192, samples=16)
    calls = list(plan_submits([group] * 128))
    assert size(group) * 128 > SUBMIT.body_bytes_max
    assert sum(len(call.results) for call in calls) == 128
    assert max(sum(map(size, call.results)) for call in calls[:2]) <= CALL_BYTES


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(200, 1200))
def test_calls_are_full_in_order_and_within_the_bound(lengths, bound):
    results = [result(number, tokens) for number, tokens in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submitting, "CALL_BYTES", bound)
        calls = list(plan_submits(results))
    assert [one for call in calls for one in call.results] == results
    carried = [sum(map(size, call.results)) for call in calls]
    for call, held in zip(calls, carried, strict=True):
        assert held <= bound or len(call.results) == 1
    for held, following in zip(carried, calls[1:], strict=False):
        assert held + size(following.results[0]) > bound


def test_what_a_group_may_have_leaves_room_for_the_call_around_it():
    assert size(Submit(results=())) + 16 < SUBMIT.body_bytes_max - GROUP_BYTES_MAX


def test_a_group_that_no_call_can_carry_fails_by_name_and_takes_no_other_along():
    refused, _ = fit_result(result(3, 1000, samples=2), bytes_max=8000)
    assert refused.trajectories == ()
    assert refused.failure is not None
    assert refused.failure.kind == "data"
    assert "2 samples of task t3" in refused.failure.message
    assert "sample 0 with 1000 tokens" in refused.failure.message
    assert "lower sampling.maxNewTokens" in refused.failure.message


def test_beginnings_that_no_call_can_carry_are_left_behind():
    prefix = Prefix(
        sample=0,
        segment=1,
        prompt_ids=(1,),
        token_ids=(5,) * 1000,
        logprobs=(-0.5,) * 1000,
        loss_mask=(1,) * 1000,
        spans=(),
        turn_ends=(),
        ending=None,
    )
    failure = Failure(kind="returned", message="another actor")
    given_back = TaskResult(task_id="t0", epoch=1, failure=failure, prefixes=(prefix,))
    without = TaskResult(task_id="t0", epoch=1, failure=failure)
    assert fit_result(given_back, bytes_max=2000) == (without, size(without))


class UnequalBuilder(CountingBuilder):
    """Row ``qN`` asks for N + 1 replies."""

    def build(self, row):
        return CountingEnv(row["prompt"], int(row["prompt"][1:]) + 1)


class CallCounting(ScriptedClient):
    def __init__(self, *batches) -> None:
        super().__init__(*batches)
        self.calls, self.came = [], threading.Event()

    def submit(self, ask):
        self.calls.append([one.task_id for one in ask.results])
        answer = super().submit(ask)
        self.came.set()
        return answer


def actor(client, engine, builder=None, scorer=None) -> Actor:
    return Actor(
        ActorParts(
            worker="actor-0",
            client=client,
            weights=AnyWeights(),
            stage=RunnerParts(
                engine=engine,
                renderer=LetterRenderer(),
                builders=lambda task: builder or CountingBuilder(),
                seed=7,
            ),
            scorer=scorer or LengthScorer(),
            tasks_max=8,
        )
    )


async def test_an_actor_brings_a_large_claim_in_several_calls(monkeypatch):
    monkeypatch.setattr(submitting, "CALL_BYTES", 1)
    client = CallCounting([make_task(0), make_task(1), make_task(2)])
    await actor(client, SayingEngine(lambda prompt, seed: "ok")).run()
    assert client.calls == [["t0"], ["t1"], ["t2"]]
    assert all(len(one.trajectories) == 2 for one in client.results)


async def test_groups_that_end_together_travel_and_are_scored_together():
    scored = []

    class Counting(LengthScorer):
        async def score(self, played):
            scored.append(len(played))
            return await super().score(played)

    client = CallCounting([make_task(0), make_task(1)])
    await actor(client, SayingEngine(lambda p, s: "ok"), scorer=Counting()).run()
    assert (client.calls, scored) == ([["t0", "t1"]], [2])


async def test_a_group_that_has_ended_is_submitted_while_another_goes_on():
    client = CallCounting([make_task(0), make_task(1)])

    class Waiting(SayingEngine):
        async def generate(self, requests):
            if self.calls:
                assert await asyncio.to_thread(client.came.wait, 30)
            return await super().generate(requests)

    await actor(client, Waiting(lambda p, s: "ok"), UnequalBuilder()).run()
    assert client.calls == [["t0"], ["t1"]]


async def test_an_engine_that_fails_later_takes_nothing_of_a_group_that_had_ended():
    client = CallCounting([make_task(0), make_task(1)])

    class Failing(SayingEngine):
        async def generate(self, requests):
            if self.calls:
                raise EngineError("the engine's process was killed")
            return await super().generate(requests)

    await actor(client, Failing(lambda p, s: "ok"), UnequalBuilder()).run()
    assert [(one.task_id, one.failure and one.failure.kind) for one in client.results] == [
        ("t0", None),
        ("t1", "infrastructure"),
    ]


async def test_what_a_reward_raises_ends_the_actor_as_it_did():
    class Broken(LengthScorer):
        async def score(self, played):
            raise EngineError("no such pipeline")

    client = CallCounting(*([make_task(0)] for _ in range(3)))
    with pytest.raises(EngineError, match="no such pipeline"):
        await actor(client, SayingEngine(lambda p, s: "ok"), scorer=Broken()).run()
