"""SIGTERM, or a coordinator that wants work elsewhere: beginnings go to the next actor and are gone on with."""

import asyncio
from pathlib import Path

from actor_fakes import END, VERSION, CountingBuilder, CountingEnv, LetterRenderer, make_task
from patient_engine import PatientEngine
from routed_calls import RoutedCalls

from rollout.actor.episodes import Score
from rollout.actor.held_tasks import HeldTasks
from rollout.actor.loop import Actor, ActorParts
from rollout.actor.pace import Pace
from rollout.actor.runner import RunnerParts, play
from rollout.protocol.messages import (
    Claimed,
    HeartbeatAnswer,
    Registered,
    Submitted,
    TaskProgress,
)
from rollout.seeds import derive_seed
from rollout.turns import State
from rollout.types import Message, VersionSpan, WeightVersion

NEWER = WeightVersion(lineage=0, step=4, digest="blake3:ef", object="blake3:01")


def stage(engine, builder=None, **more):
    builders = builder or CountingBuilder()
    return RunnerParts(
        engine=engine,
        renderer=LetterRenderer(),
        builders=lambda task: builders,
        seed=7,
        **{"keeps_prefixes": True, **more},
    )


async def interrupt_once(engine, tasks, on, order):
    """Play ``tasks``, and give ``order`` of what is in hand once the engine is at work."""
    hand, returned = HeldTasks(engine.interrupt), []
    engine.holds = True

    async def hand_back(given_up):
        returned.extend(given_up)

    playing = asyncio.create_task(play(tasks, on, hand, hand_back))
    await engine.begun.wait()
    await asyncio.sleep(0)
    order(hand)
    return await asyncio.wait_for(playing, 60), returned


async def begin(task, reply="hello", stops_at=None, builder=None, **more):
    """The prefixes that an actor leaves of ``task``."""
    engine = PatientEngine(reply, stops_at)
    played, returned = await interrupt_once(
        engine, [task], stage(engine, builder, **more), HeldTasks.return_all
    )
    assert played == ()
    (one,) = returned
    assert one.failure.kind == "returned"
    return one.prefixes


async def test_tokens_logprobs_versions_and_segment_travel_along():
    first, second = await begin(make_task(0))
    assert (first.sample, second.sample) == (0, 1)
    assert first.token_ids == tuple(map(ord, "he"))
    assert first.logprobs == (-0.25, -0.25)
    assert first.spans == (VersionSpan(start=0, end=2, lineage=0, step=3),)
    assert (first.segment, first.turn_ends, first.ending) == (1, (), None)


async def test_the_next_actor_goes_on_with_the_next_segment_and_another_version():
    prefixes = await begin(make_task(0))
    engine = PatientEngine("hello")
    task = make_task(0, version=NEWER, prefixes=prefixes, attempt=1, epoch=2)

    (played,) = await play([task], stage(engine))

    one = played.episodes[0]
    assert one.reply == "hello"
    assert one.token_ids == (*map(ord, "hello"), END)
    assert [(span.start, span.end, span.step) for span in one.spans] == [(0, 2, 3), (2, 6, 4)]
    assert one.seed == derive_seed(7, "train", 0, 0, 0, 1)
    assert {seed for seed, _ in engine.drawn} == {
        derive_seed(7, "train", 0, sample, 0, 1) for sample in (0, 1)
    }
    assert [len(request.prompt_ids) for request in engine.requests[0]] == [5, 5]
    assert engine.requests[0][0].sampling.max_new_tokens == task.sampling.max_new_tokens - 2


async def test_what_was_never_drawn_keeps_its_first_noise():
    prefixes = await begin(make_task(0), stops_at={1: 0})
    assert [one.sample for one in prefixes] == [0]
    engine = PatientEngine("hello")
    await play([make_task(0, prefixes=prefixes)], stage(engine))
    assert derive_seed(7, "train", 0, 1) in {seed for seed, _ in engine.drawn}


async def test_a_sample_that_had_ended_is_not_drawn_again():
    prefixes = await begin(make_task(0), stops_at={0: 99})
    assert prefixes[0].ending == "stop"
    engine = PatientEngine("hello")
    (played,) = await play([make_task(0, prefixes=prefixes)], stage(engine))
    assert [one.reply for one in played.episodes] == ["hello", "hello"]
    assert len(engine.drawn) == 1


async def test_a_group_whose_samples_have_all_ended_is_kept():
    engine = PatientEngine("hello", {0: 99, 1: 99})
    played, returned = await interrupt_once(
        engine, [make_task(0)], stage(engine), HeldTasks.return_all
    )
    assert [len(one.episodes) for one in played] == [2]
    assert returned == []


async def test_only_what_is_wanted_elsewhere_is_let_go_and_the_rest_goes_on():
    engine = PatientEngine("hello")
    played, returned = await interrupt_once(
        engine, [make_task(0), make_task(1)], stage(engine), lambda hand: hand.give_back(["t1"])
    )
    assert [one.task.task_id for one in returned] == ["t1"]
    (kept,) = played
    assert [one.token_ids for one in kept.episodes] == [(*map(ord, "hello"), END)] * 2
    assert kept.episodes[0].segment == 1


async def test_what_is_somebody_elses_is_dropped_without_a_word():
    engine = PatientEngine("hello")
    played, returned = await interrupt_once(
        engine, [make_task(0), make_task(1)], stage(engine), lambda hand: hand.drop(["t0"])
    )
    assert returned == []
    assert [one.task.task_id for one in played] == ["t1"]


async def test_an_order_about_something_else_interrupts_nobody():
    engine = PatientEngine("hello")

    def order(hand):
        hand.give_back(["t9"])
        assert not engine.interrupted
        engine.go_on.set()

    played, _ = await interrupt_once(engine, [make_task(0)], stage(engine), order)
    assert len(played) == 1
    assert len(engine.requests) == 1


async def test_in_exact_nothing_of_a_sample_is_kept():
    assert await begin(make_task(0), keeps_prefixes=False) == ()


async def test_a_conversation_goes_on_where_it_was():
    builder = CountingBuilder(turns=2)
    engine = PatientEngine("ab")
    hand, returned = HeldTasks(engine.interrupt), []

    async def hand_back(given_up):
        returned.extend(given_up)

    async def second_turn(requests):
        if len(engine.requests) == 1:
            hand.return_all()
        return await PatientEngine.generate(engine, requests)

    engine.generate = second_turn
    await play([make_task(0, samples=1)], stage(engine, builder), hand, hand_back)
    (prefix,) = returned[0].prefixes
    whole = (*map(ord, "ab"), END)
    assert prefix.turn_ends == (3,)
    assert prefix.token_ids[:3] == whole
    assert prefix.loss_mask[-2:] == (1, 1)

    other = PatientEngine("ab")
    task = make_task(0, samples=1, prefixes=(prefix,))
    (played,) = await play([task], stage(other, builder))
    (undisturbed,) = await play(
        [make_task(0, samples=1)], stage(PatientEngine("ab"), CountingBuilder(turns=2))
    )
    assert played.episodes[0].token_ids == undisturbed.episodes[0].token_ids
    assert played.episodes[0].loss_mask == undisturbed.episodes[0].loss_mask
    assert played.episodes[0].messages == undisturbed.episodes[0].messages
    assert len(other.drawn) == 1


async def test_an_environment_that_answers_otherwise_makes_the_sample_start_over():
    class Moody(CountingBuilder):
        mood = "not"

        def build(self, row):
            mood, made = self.mood, CountingEnv(row["prompt"], 2)

            async def step(action):
                return State(messages=(Message(role="user", content=f"{mood} {action.text}"),))

            made.step = step
            return made

    builder = Moody()
    engine = PatientEngine("ab")
    hand, returned = HeldTasks(engine.interrupt), []

    async def hand_back(given_up):
        returned.extend(given_up)

    async def second_turn(requests):
        if len(engine.requests) == 1:
            hand.return_all()
        return await PatientEngine.generate(engine, requests)

    engine.generate = second_turn
    await play([make_task(0, samples=1)], stage(engine, builder), hand, hand_back)

    builder.mood = "never"
    other = PatientEngine("ab")

    async def end(requests):
        hand_2.return_all()
        return await PatientEngine.generate(other, requests)

    hand_2 = HeldTasks(other.interrupt)
    other.generate = end
    task = make_task(0, samples=1, prefixes=returned[0].prefixes)
    await play([task], stage(other, builder), hand_2, hand_back)
    assert other.drawn[0][0] == derive_seed(7, "train", 0, 0)


class Client:
    """One claim, then nothing; answers heartbeats as it is told."""

    def __init__(self, tasks, answer=None) -> None:
        self.tasks, self.answer = tuple(tasks), answer or HeartbeatAnswer()
        self.results, self.beats = [], []

    def as_worker(self, worker, incarnation=0):
        return RoutedCalls(self, incarnation)

    def register(self, ask):
        return Registered(incarnation=1, lease_seconds=30.0, heartbeat_seconds=0.01)

    def claim(self, ask):
        tasks, self.tasks = self.tasks, ()
        return Claimed(tasks=tasks, stop=not tasks, reason="over")

    def heartbeat(self, ask):
        self.beats.append(ask)
        return self.answer if ask.progress else HeartbeatAnswer()

    def submit(self, ask):
        self.results += ask.results
        return Submitted(accepted=(True,) * len(ask.results), reasons=("",) * len(ask.results))

    def activation(self, ask): ...


class Scorer:
    async def score(self, played):
        return [tuple(Score(rewards={}, reward=1.0) for _ in one.episodes) for one in played]


class Weights:
    def path(self, name):
        return Path(name)

    def changes(self, since, name):
        return None

    num_rebuilt = 0

    def forget(self): ...


def actor(client, engine, **more):
    return Actor(
        ActorParts(
            worker="actor-0",
            client=client,
            weights=Weights(),
            stage=stage(engine, **more),
            scorer=Scorer(),
            tasks_max=8,
            grace_seconds=5.0,
        )
    )


async def run_until_drawing(one, engine):
    engine.holds = True
    running = asyncio.create_task(one.run())
    await asyncio.wait_for(engine.begun.wait(), 60)
    return running


async def test_told_to_leave_it_returns_everything_and_ends():
    engine, client = PatientEngine("hello"), Client([make_task(0), make_task(1, version=NEWER)])
    one = actor(client, engine)
    running = await run_until_drawing(one, engine)
    one.leave()
    await asyncio.wait_for(running, 60)

    assert [(result.task_id, result.failure.kind) for result in client.results] == [
        ("t0", "returned"),
        ("t1", "returned"),
    ]
    assert [len(result.prefixes) for result in client.results] == [2, 0]


async def test_in_exact_a_leaving_actor_finishes_unless_its_time_is_up():
    engine, client = PatientEngine("hello"), Client([make_task(0)])
    one = actor(client, engine, keeps_prefixes=False)
    running = await run_until_drawing(one, engine)
    one.leave()
    await asyncio.wait_for(running, 60)  # the grace of 5 s, less what parting takes: at once
    (result,) = client.results
    assert (result.failure.kind, result.prefixes) == ("returned", ())


async def test_a_heartbeat_says_how_far_it_is_and_may_take_work_away():
    engine = PatientEngine("hello")
    client = Client([make_task(0), make_task(1)], HeartbeatAnswer(give_back=("t1",)))
    one = actor(client, engine)
    await asyncio.wait_for(await run_until_drawing(one, engine), 60)

    told = next(beat.progress for beat in client.beats if beat.progress)
    assert told[0] == TaskProgress(task_id="t0", running=(2, 2), prompt_tokens=3)
    kinds = {result.task_id: result.failure for result in client.results}
    assert kinds["t1"].kind == "returned"
    assert kinds["t0"] is None
    assert client.results[0].task_id == "t1", "what is wanted elsewhere does not wait for the rest"
    assert VERSION.step == client.results[1].trajectories[0].spans[0].step


def test_the_pace_is_of_samples_seen_twice():
    pace = Pace()
    pace.see([TaskProgress(task_id="a", running=(10, 20))], 1.0)
    assert pace.tokens_per_second == 0.0
    pace.see([TaskProgress(task_id="a", running=(30, 40))], 3.0)
    assert pace.tokens_per_second == 10.0
    pace.see([TaskProgress(task_id="a", running=(5,))], 4.0)
    assert pace.tokens_per_second == 10.0
