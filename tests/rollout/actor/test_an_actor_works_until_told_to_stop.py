import asyncio
import threading
from pathlib import Path

import pytest
from actor_fakes import VERSION, CountingBuilder, LetterRenderer, SayingEngine, make_task
from routed_calls import RoutedCalls

from rollout.actor.episodes import Score
from rollout.actor.loop import Actor, ActorParts, split_by_version
from rollout.actor.runner import RunnerParts
from rollout.common.duties import keep_going
from rollout.errors import CoordinatorError, EngineError, Fenced
from rollout.protocol.messages import (
    Claimed,
    Failure,
    HeartbeatAnswer,
    Registered,
    Submitted,
)
from rollout.types import WeightVersion


class ScriptedClient:
    """Hands out ``batches`` one claim at a time, then says stop; remembers what it was told."""

    def __init__(self, *batches, heartbeat_seconds: float = 60.0) -> None:
        self.batches = list(batches)
        self.heartbeat_seconds = heartbeat_seconds
        self.claims, self.results, self.activations, self.beats = [], [], [], []
        self.lost = ()

    def as_worker(self, worker, incarnation=0):
        return RoutedCalls(self, incarnation)

    def register(self, ask):
        return Registered(
            incarnation=4, lease_seconds=30.0, heartbeat_seconds=self.heartbeat_seconds
        )

    def claim(self, ask):
        self.claims.append(ask)
        if not self.batches:
            return Claimed(stop=True, reason="the run has ended")
        return Claimed(tasks=tuple(self.batches.pop(0)))

    def heartbeat(self, ask):
        self.beats.append(ask)
        return HeartbeatAnswer(lost=self.lost)

    def submit(self, ask):
        self.results += ask.results
        return Submitted(accepted=(True,) * len(ask.results), reasons=("",) * len(ask.results))

    def activation(self, ask):
        self.activations.append(ask)


class LengthScorer:
    async def score(self, played):
        return [
            tuple(Score(rewards={"length": 1.0}, reward=len(e.reply) * 1.0) for e in one.episodes)
            for one in played
        ]


class AnyWeights:
    forgotten = 0
    num_rebuilt = 0

    def path(self, name):
        return Path(name)

    def forget(self):
        self.forgotten += 1


def actor(client, engine=None, scorer=None, **more) -> Actor:
    engine = engine or SayingEngine(lambda prompt, seed: "ok")
    stage = RunnerParts(
        engine=engine, renderer=LetterRenderer(), builders=lambda task: CountingBuilder(), seed=7
    )
    return Actor(
        ActorParts(
            worker="actor-0",
            client=client,
            weights=AnyWeights(),
            stage=stage,
            scorer=scorer or LengthScorer(),
            tasks_max=8,
            **more,
        )
    )


async def test_it_claims_plays_scores_submits_and_leaves():
    client = ScriptedClient([make_task(0), make_task(1)], [], [make_task(2)])

    await actor(client).run()

    assert [result.task_id for result in client.results] == ["t0", "t1", "t2"]
    first = client.results[0].trajectories
    assert [one.sample for one in first] == [0, 1]
    assert first[0].reward == 2.0
    assert (first[0].text, first[0].prompt_text, first[0].answer) == ("ok", "q0", "a0")
    assert first[0].ending == "stop"


class LentDevice:
    """Says when it is held, and that others wait for it then."""

    def __init__(self, client) -> None:
        self.yields, self.seen, self._client = False, [], client

    async def enter(self) -> None:
        if not self.yields:
            self.seen.append("enter")
        self.yields = True

    async def leave(self) -> None:
        if self.yields:
            self.seen.append(f"leave after {len(self._client.results)} results")
        self.yields = False


async def test_it_holds_a_shared_device_while_there_is_something_to_sample_and_not_longer():
    client = ScriptedClient([make_task(0)], [make_task(1)], [], [], [make_task(2)], [])
    device = LentDevice(client)

    await actor(client, device=device).run()

    assert [result.task_id for result in client.results] == ["t0", "t1", "t2"]
    assert device.seen == [
        *("enter", "leave after 2 results"),
        *("enter", "leave after 3 results"),
    ]
    waited = [claim.wait_seconds > 0 for claim in client.claims]
    # Held: asked at once, until there is nothing; then waited for.
    assert waited == [False, False, False, True, True, False, True]


async def test_it_loads_a_version_once_and_says_so():
    engine = SayingEngine(lambda p, s: "ok")
    client = ScriptedClient([make_task(0)], [make_task(1)])

    await actor(client, engine).run()

    assert engine.loads == [VERSION]
    assert [(one.version, one.ok) for one in client.activations] == [(VERSION, True)]
    assert [claim.loaded for claim in client.claims] == [None, (0, 3), (0, 3)]


async def test_wrong_weights_are_never_sampled_from():
    engine = SayingEngine(lambda p, s: "ok", digests=["blake3:00", VERSION.digest])
    client = ScriptedClient([make_task(0)])

    await actor(client, engine).run()

    assert [one.ok for one in client.activations] == [False, True]
    assert "expected blake3:ab" in client.activations[0].message
    assert len(engine.calls) == 1


async def test_an_actor_that_cannot_load_faithfully_gives_its_tasks_back_and_ends():
    engine = SayingEngine(lambda p, s: "ok", digests=["blake3:00"] * 99)
    client = ScriptedClient([make_task(0)], [make_task(0)], [make_task(0)], [make_task(0)])

    with pytest.raises(EngineError, match="could not be loaded"):
        await actor(client, engine).run()

    assert engine.calls == []
    # Not "infrastructure": that would spend a try of tasks which nobody has tried.
    assert {result.failure.kind for result in client.results} == {"returned"}


async def test_after_an_engine_crash_the_version_is_loaded_again():
    class Crashing(SayingEngine):
        async def generate(self, requests):
            if len(self.loads) == 1:
                self.version = None
                raise EngineError("the engine's process was killed")
            return await super().generate(requests)

    engine = Crashing(lambda p, s: "ok")
    client = ScriptedClient([make_task(0)], [make_task(0)])

    await actor(client, engine).run()

    assert engine.loads == [VERSION, VERSION]
    assert [result.failure is None for result in client.results] == [False, True]
    assert [claim.loaded for claim in client.claims] == [None, None, (0, 3)]


async def test_a_failed_reward_is_the_tasks_failure():
    class Broken:
        async def score(self, played):
            return [Failure(kind="data", message="reward brevity returned NaN")] * len(played)

    client = ScriptedClient([make_task(0)])

    await actor(client, scorer=Broken()).run()

    (result,) = client.results
    assert result.failure.message == "reward brevity returned NaN"
    assert result.trajectories == ()


async def test_work_that_went_to_another_is_dropped():
    dropped = threading.Event()

    class Slow(LengthScorer):
        async def score(self, played):
            assert await asyncio.to_thread(dropped.wait, 60)
            return await super().score(played)

    class Losing(ScriptedClient):
        def heartbeat(self, ask):
            super().heartbeat(ask)
            if not ask.task_ids:
                return HeartbeatAnswer()
            if len([beat for beat in self.beats if beat.task_ids]) > 1:
                dropped.set()  # whoever beats again has taken the answer before
            return HeartbeatAnswer(lost=("t0",))

    client = Losing([make_task(0), make_task(1)], heartbeat_seconds=0.01)
    await actor(client, scorer=Slow()).run()

    assert [result.task_id for result in client.results] == ["t1"]


async def test_a_heartbeat_that_is_refused_is_not_the_last_one(monkeypatch):
    monkeypatch.setattr(keep_going, "__kwdefaults__", {"pause_seconds": 0.0})
    beaten_again, go = threading.Event(), threading.Event()

    class Refusing(ScriptedClient):
        def heartbeat(self, ask):
            super().heartbeat(ask)
            if len(self.beats) == 2:
                raise CoordinatorError("no answer from the coordinator within 120 s")
            if len(self.beats) == 4:
                beaten_again.set()
            return HeartbeatAnswer()

        def claim(self, ask):
            go.wait(60)
            return super().claim(ask)

    running = asyncio.create_task(actor(Refusing(heartbeat_seconds=0.01)).run())
    assert await asyncio.to_thread(beaten_again.wait, 60)
    go.set()
    await running


async def test_an_actor_whose_heartbeats_are_all_refused_ends(monkeypatch):
    monkeypatch.setattr(keep_going, "__kwdefaults__", {"pause_seconds": 0.0})
    go = threading.Event()

    class Refusing(ScriptedClient):
        def heartbeat(self, ask):
            raise CoordinatorError("422")

        def claim(self, ask):
            go.wait(60)
            return super().claim(ask)

    with pytest.raises(CoordinatorError, match="422"):
        await asyncio.wait_for(actor(Refusing(heartbeat_seconds=0.01)).run(), 60)
    go.set()


async def test_a_fenced_actor_ends_at_once_whatever_it_samples():
    class Fencing(ScriptedClient):
        def heartbeat(self, ask):
            raise Fenced("a newer incarnation exists")

    class Endless(SayingEngine):
        async def generate(self, requests):
            await asyncio.Event().wait()

    client = Fencing([make_task(0)], heartbeat_seconds=0.01)
    with pytest.raises(Fenced):
        await asyncio.wait_for(actor(client, Endless(lambda p, s: "ok")).run(), 60)
    assert client.results == []


async def test_a_leaving_actor_finishes_what_it_has():
    class Leaving(SayingEngine):
        async def generate(self, requests):
            one.leave()
            return await super().generate(requests)

    client = ScriptedClient([make_task(0)], [make_task(1)])
    one = actor(client, Leaving(lambda p, s: "ok"))

    await one.run()

    assert [result.task_id for result in client.results] == ["t0"]


async def test_a_leaving_actor_does_not_wait_for_a_long_claim(monkeypatch):
    monkeypatch.setattr("rollout.actor.loop.LEAVE_SECONDS", 0.01)
    claiming, release = threading.Event(), threading.Event()

    class Waiting(ScriptedClient):
        def claim(self, ask):
            claiming.set()
            assert release.wait(60)
            return Claimed()

    one = actor(Waiting())
    running = asyncio.create_task(one.run())
    assert await asyncio.to_thread(claiming.wait, 60)
    one.leave()
    await running
    assert not release.is_set()
    release.set()


async def test_a_stretch_of_evaluations_is_claimed_in_larger_bites():
    quiz = [make_task(n, kind="eval", evaluation="sums") for n in range(8)]
    client = ScriptedClient(quiz, [*quiz[:7], make_task(9)], [make_task(10)])

    await actor(client).run()

    assert [claim.tasks_max for claim in client.claims] == [8, 256, 8, 8]


def test_evaluations_come_first_and_versions_are_kept_apart():
    newer = WeightVersion(lineage=0, step=4, digest="blake3:ef", object="blake3:01")
    tasks = [
        make_task(0),
        make_task(1, version=newer),
        make_task(2, kind="eval", evaluation="sums"),
        make_task(3),
    ]

    assert [[task.ordinal for task in batch] for batch in split_by_version(tasks)] == [
        [2],
        [0, 3],
        [1],
    ]
