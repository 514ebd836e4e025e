"""Environments that hang, raise, answer otherwise, change their rows: each costs its own sample, and each is closed."""

import asyncio
import threading
import time
from typing import Any

import pytest
from actor_fakes import CountingBuilder, CountingEnv, LetterRenderer, SayingEngine, make_task

from rollout.actor.episodes import OUT_OF_TIME
from rollout.actor.runner import RunnerParts, play
from rollout.actor.scoring import score_batch
from rollout.actor.turns import environment_turns
from rollout.environments import threads
from rollout.environments.plugin import PluginEnv, wrap_class
from rollout.environments.threads import Overdue, Threads, within
from rollout.errors import EngineError, InfrastructureError
from rollout.rewards.pipeline import RewardVerdict


@pytest.fixture
def hanging():
    """What hangs waits for this, and ends with the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hurry(monkeypatch):
    """Nobody has long. What is quick is quick by far; only what hangs is overdue."""
    monkeypatch.setattr(environment_turns, "ENVIRONMENT_SECONDS_MAX", 1.0)
    monkeypatch.setattr(environment_turns, "CLOSE_SECONDS_MAX", 1.0)


class World:
    """Makes environments that behave as ``start`` and ``step`` say, and counts which are open.

    They are users' classes of plain functions, which block.
    """

    def __init__(self, *, start=None, step=None, close=None, turns: int = 1) -> None:
        self.start, self.step, self.closing = start, step, close
        self.turns = turns
        self.made: list[Any] = []
        self.closed: list[Any] = []

    def build(self, row):
        return PluginEnv(lambda: self._make(row), "environment told")

    def _make(self, row):
        world, number = self, len(self.made)

        class Told:
            question, turns = row["prompt"], world.turns

            def start(self):
                if world.start is not None:
                    world.start(number, row)
                return self.question

            def step(self, reply):
                if world.step is not None:
                    world.step(number, reply)
                self.turns -= 1
                return f"not {reply}", self.turns == 0

            def close(self):
                world.closed.append(self)
                if world.closing is not None:
                    world.closing(number)

        self.made.append(Told())
        return self.made[-1]


def stage(world, say=lambda prompt, seed: "x") -> RunnerParts:
    return RunnerParts(
        engine=SayingEngine(say), renderer=LetterRenderer(), builders=lambda task: world, seed=7
    )


def assert_all_closed(world) -> None:
    assert sorted(map(id, world.closed)) == sorted(map(id, world.made))


@pytest.mark.usefixtures("hurry")
async def test_one_that_never_starts_costs_one_sample(hanging):
    world = World(start=lambda number, row: number == 1 and hanging.wait())
    played = await play([make_task(n) for n in range(3)], stage(world))
    assert sum(len(one.episodes) for one in played) == 5
    (hurt,) = [one for one in played if one.failure is not None]
    assert hurt.failure.kind == "infrastructure"
    assert "did not start: no answer within 1 s" in hurt.failure.message
    assert_all_closed(world)


@pytest.mark.usefixtures("hurry")
async def test_a_task_whose_environments_all_never_start_fails_by_name(hanging):
    world = World(start=lambda number, row: row["prompt"] == "q1" and hanging.wait())
    played = await play([make_task(n) for n in range(3)], stage(world))
    assert [one.failure is None for one in played] == [True, False, True]
    assert played[1].failure.kind == "data"
    assert played[1].failure.message == "the environment did not answer in 1 s"


@pytest.mark.usefixtures("hurry")
async def test_one_that_hangs_once_is_asked_again_afresh_and_nothing_is_lost(hanging):
    world = World(step=lambda number, reply: number == 0 and hanging.wait(), turns=1)
    (played,) = await play([make_task(0)], stage(world))
    assert played.failure is None
    assert [one.ending for one in played.episodes] == ["stop", "stop"]
    assert len(world.made) == 3
    assert_all_closed(world)


@pytest.mark.usefixtures("hurry")
async def test_a_fresh_one_hears_what_the_first_had_heard(hanging):
    heard = []

    def step(number, reply):
        heard.append((number, reply))
        if number == 0 and len(heard) == 2:
            hanging.wait()

    world = World(step=step, turns=3)
    (played,) = await play([make_task(0, samples=1)], stage(world, lambda p, s: f"r{p.count('r')}"))
    assert played.failure is None
    first = [reply for number, reply in heard if number == 0]
    second = [reply for number, reply in heard if number == 1]
    assert second[:2] == first
    assert len(second) == 3
    assert_all_closed(world)


@pytest.mark.usefixtures("hurry")
async def test_a_reply_that_hangs_it_twice_is_the_policys_and_loses_reward(hanging):
    world = World(step=lambda number, reply: reply == "hang" and hanging.wait())
    seeds = []

    def say(prompt, seed):
        seeds.append(seed)
        return "hang" if len(seeds) == 1 else "ok"

    (played,) = await play([make_task(0, samples=3)], stage(world, say))
    assert played.failure is None
    assert [one.ending for one in played.episodes] == [OUT_OF_TIME, "stop", "stop"]

    class Generous:
        def judge(self, batch):
            return [RewardVerdict(total=1.0, parts={"right": 1.0}) for _ in batch.rows]

    scores = score_batch(Generous(), [played])["t0"]
    assert [(one.reward, one.rewards) for one in scores] == [
        (0.0, {"right": 1.0}),
        (1.0, {"right": 1.0}),
        (1.0, {"right": 1.0}),
    ]
    assert_all_closed(world)


@pytest.mark.usefixtures("hurry")
async def test_a_fresh_one_that_answers_otherwise_is_no_fault_of_the_policy(hanging):
    world = World(turns=2)

    def step(number, reply):
        world.made[number].question = "other"
        if number == 0 and reply == "b":
            hanging.wait()

    world.step = step
    world.start = lambda number, row: number and setattr(world.made[number], "question", "other")
    (played,) = await play(
        [make_task(0, samples=1)], stage(world, lambda p, s: "b" if "not" in p else "a")
    )
    assert played.episodes == ()
    assert played.failure.kind == "infrastructure"
    assert "did not answer as it had before" in played.failure.message
    assert_all_closed(world)


async def test_what_raises_in_close_costs_nobody_anything(caplog):
    def close(number):
        raise OSError("already gone")

    world = World(close=close)
    played = await play([make_task(0), make_task(1)], stage(world))
    assert [one.failure for one in played] == [None, None]
    assert_all_closed(world)
    assert "at its close: OSError: already gone" in caplog.text


@pytest.mark.usefixtures("hurry")
async def test_what_hangs_in_close_holds_nobody_up(hanging):
    world = World(close=lambda number: hanging.wait())
    (played,) = await play([make_task(0)], stage(world))
    assert played.failure is None


@pytest.mark.parametrize("error", [ValueError("bad row"), InfrastructureError("no node")])
async def test_all_are_closed_after_an_error_at_any_point(error):
    def fail(number, *_):
        if number == 1:
            raise error

    for world in (World(start=fail, turns=2), World(step=fail, turns=2)):
        await play([make_task(0), make_task(1)], stage(world))
        assert_all_closed(world)


async def test_all_are_closed_when_the_engine_fails_and_when_playing_is_cancelled():
    world, at_work = World(), asyncio.Event()
    parts = stage(world)

    async def crash(requests):
        raise EngineError("killed")

    parts.engine.generate = crash
    with pytest.raises(EngineError, match="killed"):
        await play([make_task(0)], parts)
    assert_all_closed(world)

    async def hang(requests):
        at_work.set()
        await asyncio.Event().wait()

    parts.engine.generate = hang
    playing = asyncio.create_task(play([make_task(1)], parts))
    await at_work.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert_all_closed(world)


async def test_slow_ones_are_waited_for_together():
    together = threading.Barrier(6)
    world = World(step=lambda number, reply: together.wait(60))
    played = await play([make_task(n) for n in range(3)], stage(world))
    assert [one.failure for one in played] == [None] * 3


async def test_a_row_that_one_changes_is_still_the_others():
    class Greedy:
        def __init__(self, row):
            self.prompt = row.pop("prompt")
            row["facts"].append("mine")

        def start(self):
            return self.prompt

        def step(self, reply):
            return True

    builder = wrap_class(Greedy, {}, "environment greedy")
    task = make_task(0, row={"prompt": "q", "facts": []}, samples=3)
    (played,) = await play([task], stage(builder))
    assert played.failure is None
    assert len(played.episodes) == 3
    assert task.row == {"prompt": "q", "facts": []}


async def test_a_users_close_is_called_and_one_without_is_no_trouble():
    closed = []

    class Closing:
        def __init__(self, row): ...

        def start(self):
            return "q"

        def step(self, reply):
            return True

        def close(self):
            closed.append(self)

    for found in (Closing, type("Plain", (), {**vars(Closing), "close": None})):
        (played,) = await play([make_task(0)], stage(wrap_class(found, {}, "environment one")))
        assert played.failure is None
    assert len(closed) == 2


async def test_members_of_a_group_may_be_asked_different_questions():
    class Numbered(CountingBuilder):
        made = 0

        def build(self, row):
            self.made += 1
            return CountingEnv(f"{row['prompt']}-{self.made}", 1)

    parts = stage(Numbered())
    (played,) = await play([make_task(0, samples=2)], parts)
    prompts = ["".join(map(chr, one.prompt_ids)) for one in played.episodes]
    assert sorted(prompts) == ["q0-1\n", "q0-2\n"]
    assert [len(request.seeds) for request in parts.engine.calls[0]] == [1, 1]


async def test_calls_answer_whoever_ends_first():
    pool, gate = Threads(), threading.Event()

    def late():
        gate.wait(60)
        return "first"

    def early():
        gate.set()
        return "second"

    assert await asyncio.gather(pool.call(late), pool.call(early)) == ["first", "second"]


async def test_sys_exit_in_a_call_is_an_error_of_the_call():
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await Threads().call(lambda: (_ for _ in ()).throw(SystemExit(3)))


async def test_calls_that_return_at_once_need_one_thread(monkeypatch):
    monkeypatch.setattr(
        threads, "TICK_SECONDS", 60.0
    )  # on a slow machine, too, they return at once
    pool = Threads()
    asked = await asyncio.gather(*(pool.call(threading.get_ident) for _ in range(32)))
    assert len(set(asked)) == 1


async def test_a_process_with_too_many_calls_that_never_return_is_started_afresh(
    monkeypatch, hanging
):
    monkeypatch.setattr(threads, "HUNG_MAX", 1)
    pool = Threads()
    asked = [within(0.05, pool.call(hanging.wait)) for _ in range(2)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in answers] == [Overdue, Overdue]
    with pytest.raises(EngineError, match="have never returned"):
        await pool.call(time.time)
    hanging.set()


async def test_what_waits_for_a_thread_is_not_yet_late(monkeypatch, hanging):
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    pool = Threads()
    first = asyncio.create_task(pool.call(lambda: hanging.wait(60)))
    second = asyncio.create_task(within(0.05, pool.call(lambda: "done")))
    await asyncio.sleep(0.2)
    hanging.set()
    assert await first
    assert await second == "done"


async def test_a_call_that_is_given_up_makes_room_for_the_next(hanging, monkeypatch):
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    pool = Threads()
    with pytest.raises(Overdue, match=r"no answer within 0\.05 s"):
        await within(0.05, pool.call(lambda: hanging.wait(60)))
    assert await asyncio.wait_for(pool.call(lambda: "next"), 60) == "next"
