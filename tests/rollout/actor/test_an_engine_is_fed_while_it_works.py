"""With water marks an actor asks for more groups while others are played, and an engine never waits for the longest."""

import asyncio

import pytest
from actor_fakes import VERSION, CountingBuilder, LetterRenderer, SayingEngine, make_task
from hypothesis import given
from hypothesis import strategies as st
from test_an_actor_works_until_told_to_stop import AnyWeights, LengthScorer, ScriptedClient

from rollout.actor.feeding import ASK_MAX, WaterMarks, plan_marks
from rollout.actor.loop import Actor, ActorParts
from rollout.actor.runner import RunnerParts
from rollout.errors import CoordinatorError, EngineError
from rollout.protocol.messages import Claimed
from rollout.types import WeightVersion


class OneByOne(SayingEngine):
    """Takes samples one by one; the reply to ``q0`` comes when ``until`` replies have been given."""

    def __init__(self, until: int) -> None:
        super().__init__(lambda prompt, seed: "ok")
        self.until, self.given, self.most, self.playing = until, 0, 0, 0
        self.enough = asyncio.Event()
        self.failing, self.all_at = False, 0

    def interrupt(self) -> None:
        self.enough.set()

    async def generate(self, requests):
        (request,) = requests
        self.playing += 1
        self.most = max(self.most, self.playing)
        if self.all_at and self.playing == self.all_at:
            self.enough.set()
        if self.all_at:
            await self.enough.wait()
        if "q0\n" in "".join(map(chr, request.prompt_ids)):
            await self.enough.wait()
            if self.failing:
                raise EngineError("the server is gone")
        self.playing -= 1
        self.given += 1
        if self.given >= self.until:
            self.enough.set()
        return await super().generate(requests)


class FullClient(ScriptedClient):
    """Hands out as many as are asked for of what there is; says stop when nothing is left and nothing is held."""

    def claim(self, ask):
        self.claims.append(ask)
        found = tuple(self.batches[: ask.tasks_max])
        self.batches = self.batches[ask.tasks_max :]
        ended = not found and not ask.held
        return Claimed(tasks=found, stop=ended, reason="the run has ended" if ended else "")


def fed(client, engine, low=3, high=4, tasks_max=2) -> Actor:
    stage = RunnerParts(
        engine=engine,
        renderer=LetterRenderer(),
        builders=lambda task: CountingBuilder(),
        seed=7,
        keeps_prefixes=True,
        continuous=True,
    )
    return Actor(
        ActorParts(
            worker="actor-0",
            client=client,
            weights=AnyWeights(),
            stage=stage,
            scorer=LengthScorer(),
            tasks_max=tasks_max,
            marks=WaterMarks(low=low, high=high),
        )
    )


def asked(ordinal: int, **changes):
    return make_task(ordinal, samples=1, kind="eval", **changes)


async def run_soon(actor) -> None:
    async with asyncio.timeout(60):
        await actor.run()


async def test_all_others_are_answered_while_the_longest_is_played():
    engine = OneByOne(until=29)
    client = FullClient(*map(asked, range(30)))

    await run_soon(fed(client, engine))

    names = [result.task_id for result in client.results]
    assert sorted(names) == sorted(f"t{n}" for n in range(30))
    assert names[-1] == "t0"
    assert engine.loads == [VERSION]


async def test_no_more_are_in_play_than_the_upper_mark_and_what_is_held_is_said():
    engine = OneByOne(until=29)
    client = FullClient(*map(asked, range(30)))

    await run_soon(fed(client, engine))

    assert engine.most <= 4
    beside = [claim for claim in client.claims if claim.wait_seconds == 0.0]
    assert beside
    assert all("t0" in claim.held for claim in beside)
    assert all(claim.tasks_max <= 4 for claim in client.claims)


async def test_the_engine_is_filled_to_the_upper_mark_before_any_group_has_ended():
    engine = OneByOne(until=99)
    engine.all_at = 4  # nobody is answered before

    await run_soon(fed(FullClient(*map(asked, range(30))), engine))

    assert engine.most == 4


async def test_what_cannot_be_submitted_ends_the_actor_before_it_asks_for_everything():
    client = FullClient(*map(asked, range(300)))

    def refuse(ask):
        raise CoordinatorError("the ledger is full")

    client.submit = refuse
    with pytest.raises(CoordinatorError, match="the ledger is full"):
        await run_soon(fed(client, OneByOne(until=1)))

    assert len(client.batches) >= 296


async def test_how_long_a_group_was_played_is_its_own_time():
    engine = OneByOne(until=29)
    client = FullClient(*map(asked, range(30)))

    await run_soon(fed(client, engine))

    played = {one.task_id: one.trajectories[0].timings["generate"] for one in client.results}
    assert played["t0"] == max(played.values())
    assert played["t29"] < played["t0"]


async def test_a_task_that_comes_again_while_it_is_played_waits_for_the_next_round():
    engine = OneByOne(until=2)
    client = FullClient(asked(0), asked(1), asked(0, epoch=2), asked(2))

    await run_soon(fed(client, engine))

    assert [(one.task_id, one.epoch) for one in client.results] == [
        ("t1", 1),
        ("t2", 1),
        ("t0", 1),
        ("t0", 2),
    ]


async def test_tasks_of_other_weights_end_the_round_and_begin_the_next(monkeypatch):
    other = WeightVersion(lineage=0, step=4, digest="blake3:ef", object="blake3:01")
    engine = OneByOne(until=1)
    client = FullClient(asked(0), asked(1), asked(2, version=other), asked(3, version=other))
    monkeypatch.setattr(AnyWeights, "changes", lambda self, old, new: frozenset(), raising=False)

    await run_soon(fed(client, engine))

    assert engine.loads == [VERSION, other]
    assert [one.task_id for one in client.results][-2:] == ["t2", "t3"]


async def test_an_engine_that_fails_gives_back_each_group_that_had_not_ended_once():
    engine = OneByOne(until=9)
    engine.failing = True
    client = FullClient(*map(asked, range(10)))

    await run_soon(fed(client, engine))

    failed = [one.task_id for one in client.results if one.failure is not None]
    assert failed == ["t0"]
    assert sorted(one.task_id for one in client.results) == sorted(f"t{n}" for n in range(10))


async def test_an_actor_that_leaves_asks_for_no_more():
    engine = OneByOne(until=8)
    client = FullClient(*map(asked, range(30)))
    leaving = fed(client, engine)
    claim = client.claim

    def claim_and_leave(ask):
        answer = claim(ask)
        if len(client.claims) == 3:
            loop.call_soon_threadsafe(leaving.leave)
        return answer

    loop = asyncio.get_running_loop()
    client.claim = claim_and_leave

    await run_soon(leaving)

    assert len(client.claims) == 3
    handed_out = 30 - len(client.batches)
    assert len({one.task_id for one in client.results}) == len(client.results) == handed_out


@given(st.integers(1, 5000), st.integers(0, 20_000))
def test_marks_keep_between_one_and_a_half_and_two_fillings(tasks_at_once, in_play):
    marks = plan_marks(tasks_at_once)
    lacking = marks.lacking(in_play)

    assert 0 <= lacking <= ASK_MAX
    assert 1.5 * tasks_at_once <= marks.low <= marks.high == 2 * tasks_at_once
    assert in_play + lacking <= max(in_play, marks.high)
    assert lacking > 0 or in_play > marks.low or in_play >= marks.high
