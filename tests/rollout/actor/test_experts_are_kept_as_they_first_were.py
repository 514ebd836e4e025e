"""Each position of a sample has the experts of the engine that computed it first, over turns, rows and actors."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from actor_fakes import CountingBuilder, CountingEnv, LetterRenderer, SayingEngine, make_task
from msgspec import UNSET
from patient_engine import PatientEngine

from rollout.actor.episodes import Score
from rollout.actor.held_tasks import HeldTasks
from rollout.actor.runner import RunnerParts, play
from rollout.actor.submitting import finish_trajectory
from rollout.errors import EngineError
from rollout.turns import State
from rollout.types import ExpertRoutes, Message

FORM = ExpertRoutes(num_layers=2, top_k=1, wide=False)


def telling(engine, tell=None, name: int = 0):
    """The engine, where each position it computes gets (number of the call after ``name``, its token) as experts."""
    generate, calls = engine.generate, [name]

    def told(request, sample):
        computed = (request.prompt_ids + sample.token_ids)[request.routes_from : -1]
        chosen = b"".join(bytes((calls[0], token)) for token in computed)
        return replace(sample, routes=replace(FORM, chosen=chosen))

    async def generate_and_tell(requests):
        calls[0] += 1
        drawn = await generate(requests)
        return [
            [(tell or told)(request, sample) for sample in group]
            if request.routes_from is not None
            else group
            for request, group in zip(requests, drawn, strict=True)
        ]

    engine.generate = generate_and_tell
    return engine


def stage(engine, builder=None, **more) -> RunnerParts:
    builders = builder or CountingBuilder()
    return RunnerParts(
        engine=engine,
        renderer=LetterRenderer(),
        builders=lambda task: builders,
        seed=7,
        **{"routes": FORM, **more},
    )


def of(routes: ExpertRoutes) -> list[tuple[int, str]]:
    """(call, letter) of each position."""
    return [(routes.chosen[i], chr(routes.chosen[i + 1])) for i in range(0, len(routes.chosen), 2)]


async def test_a_reply_has_all_positions_but_its_last():
    (played,) = await play([make_task(3)], stage(telling(SayingEngine(lambda prompt, seed: "ab"))))

    for episode in played.episodes:
        assert of(episode.routes) == [(1, letter) for letter in "q3\nab"]
        made = finish_trajectory(episode, {}, Score(rewards={}, reward=0.0), {})
        assert made.routes == episode.routes


async def test_a_later_turn_adds_what_no_engine_had_computed():
    engine = telling(SayingEngine(lambda prompt, seed: "x"))

    (played,) = await play([make_task(1, samples=1)], stage(engine, CountingBuilder(turns=2)))

    (episode,) = played.episodes
    first, second = "q1\nx", "\0not x\nx"
    assert of(episode.routes) == [(1, one) for one in first] + [(2, one) for one in second]
    assert [call[0].routes_from for call in engine.calls] == [0, len(first)]


async def test_nothing_is_asked_of_evaluations_and_of_models_that_have_none():
    engine = telling(SayingEngine(lambda prompt, seed: "x"))
    evaluation = make_task(1, samples=1, kind="eval")

    (measured,) = await play([evaluation], stage(engine))
    (dense,) = await play([make_task(1, samples=1)], stage(engine, routes=None))

    assert [call[0].routes_from for call in engine.calls] == [None, None]
    for played in (measured, dense):
        made = finish_trajectory(played.episodes[0], {}, Score(rewards={}, reward=0.0), {})
        assert made.routes is UNSET


@pytest.mark.parametrize(
    "tell",
    [
        lambda request, sample: sample,
        lambda request, sample: replace(sample, routes=FORM),
        lambda request, sample: replace(sample, routes=replace(FORM, chosen=b"\0" * 99)),
        lambda request, sample: replace(sample, routes=replace(FORM, top_k=2, chosen=b"\0" * 16)),
    ],
    ids=["none", "of no position", "of too many", "of another model"],
)
async def test_an_engine_that_tells_them_wrongly_is_broken(tell):
    engine = telling(SayingEngine(lambda prompt, seed: "ab"), tell)

    with pytest.raises(EngineError, match="expected the experts of"):
        await play([make_task(3)], stage(engine))


async def begin(task, engine, builder=None):
    """What an actor that is told to hand back leaves of a task."""
    hand, returned = HeldTasks(engine.interrupt), []
    engine.holds = True

    async def hand_back(given_up):
        returned.extend(given_up)

    on = stage(engine, builder, keeps_prefixes=True)
    playing = asyncio.create_task(play([task], on, hand, hand_back))
    await engine.begun.wait()
    await asyncio.sleep(0)
    hand.return_all()
    await asyncio.wait_for(playing, 60)
    return returned[0].prefixes


async def test_the_next_actor_adds_its_own_behind_those_of_the_first():
    task = make_task(0, samples=1)
    (prefix,) = await begin(task, telling(PatientEngine("hello")))
    assert of(prefix.routes) == [(1, letter) for letter in "q0\nh"]

    other = telling(PatientEngine("hello"), name=10)
    (played,) = await play(
        [make_task(0, samples=1, prefixes=(prefix,))], stage(other, keeps_prefixes=True)
    )

    first, second = "q0\nh", "ello"
    whole = [(1, letter) for letter in first] + [(11, letter) for letter in second]
    assert of(played.episodes[0].routes) == whole


async def test_replies_that_are_repeated_to_an_environment_need_no_engine():
    builder, engine = CountingBuilder(turns=2), telling(PatientEngine("ab"))
    hand, returned = HeldTasks(engine.interrupt), []
    generate = engine.generate

    async def hand_back(given_up):
        returned.extend(given_up)

    async def second_turn(requests):
        if len(engine.requests) == 1:
            hand.return_all()
        return await generate(requests)

    engine.generate = second_turn
    await play(
        [make_task(0, samples=1)], stage(engine, builder, keeps_prefixes=True), hand, hand_back
    )
    (prefix,) = returned[0].prefixes

    (played,) = await play(
        [make_task(0, samples=1, prefixes=(prefix,))],
        stage(telling(PatientEngine("ab"), name=10), builder, keeps_prefixes=True),
    )

    (episode,) = played.episodes
    assert of(episode.routes)[: prefix.routes.num_positions] == of(prefix.routes)
    assert {call for call, _ in of(episode.routes)[prefix.routes.num_positions :]} == {11}
    assert episode.routes.num_positions == len(episode.context_ids) - 1


async def test_a_beginning_without_them_is_not_gone_on_with():
    task = make_task(0, samples=1)
    (prefix,) = await begin(task, telling(PatientEngine("hello")))
    engine = telling(PatientEngine("hello"), name=10)
    bare = make_task(0, samples=1, prefixes=(replace(prefix, routes=UNSET),))

    (played,) = await play([bare], stage(engine, keeps_prefixes=True))

    assert of(played.episodes[0].routes) == [(11, letter) for letter in "q0\nhello"]


class Forking(CountingBuilder):
    """After the first reply another row begins; after the second the first is gone on with."""

    def build(self, row):
        made, heard = CountingEnv(row["prompt"], 3), []
        told = made.step

        async def step(action):
            heard.append(action)
            said = await told(action)
            if isinstance(said, State):
                return replace(
                    said,
                    messages=(Message(role="user", content=f"r{len(heard)}"),),
                    after=-1 if len(heard) == 1 else 0,
                )
            return said

        made.step = step
        return made


async def test_a_row_that_is_taken_up_again_has_its_own():
    engine = telling(SayingEngine(lambda prompt, seed: "x"))

    (played,) = await play([make_task(1, samples=1)], stage(engine, Forking()))

    (episode,) = played.episodes
    first, third = "q1\nx", "\0r2\nx"
    assert of(episode.routes) == [(1, one) for one in first] + [(3, one) for one in third]
    assert [call[0].routes_from for call in engine.calls] == [0, 0, len(first)]
