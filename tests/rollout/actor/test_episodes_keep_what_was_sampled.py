from dataclasses import replace

import pytest
from actor_fakes import (
    END,
    VERSION,
    CountingBuilder,
    CountingEnv,
    LetterRenderer,
    SayingEngine,
    make_task,
)

from rollout.actor import episodes
from rollout.actor.episodes import Episode
from rollout.actor.runner import RunnerParts, play
from rollout.actor.turns import environment_turns, group
from rollout.errors import DataError, EngineError, InfrastructureError
from rollout.seeds import derive_seed
from rollout.types import Completion, Message, SamplingParams, VersionSpan


def stage(engine, builder=None) -> RunnerParts:
    return RunnerParts(
        engine=engine,
        renderer=LetterRenderer(),
        builders=lambda task: builder or CountingBuilder(),
        seed=7,
    )


def spell(ids) -> str:
    return "".join("." if token == END else chr(token) for token in ids)


async def test_a_group_is_one_request_with_a_seed_per_sample():
    engine = SayingEngine(lambda prompt, seed: "x")

    await play([make_task(5, samples=3)], stage(engine))

    (request,) = engine.calls[0]
    assert spell(request.prompt_ids) == "q5\n"
    assert request.seeds == tuple(derive_seed(7, "train", 5, sample) for sample in range(3))


async def test_all_claimed_groups_share_one_call():
    engine = SayingEngine(lambda prompt, seed: "x")

    played = await play([make_task(n) for n in range(4)], stage(engine))

    assert [len(call) for call in engine.calls] == [4]
    assert [one.task.ordinal for one in played] == [0, 1, 2, 3]


async def test_an_evaluation_has_noise_of_its_own():
    engine = SayingEngine(lambda prompt, seed: "x")

    await play([make_task(5, samples=1, noise_domain="eval/sums/3")], stage(engine))

    assert engine.calls[0][0].seeds == (derive_seed(7, "eval/sums/3", 5, 0),)


async def test_a_retry_keeps_its_noise():
    engine = SayingEngine(lambda prompt, seed: "x")

    for attempt in (1, 2):
        await play([make_task(5, attempt=attempt, epoch=attempt)], stage(engine))

    assert engine.calls[0][0].seeds == engine.calls[1][0].seeds


async def test_later_turns_are_groups_of_one_and_go_on_from_the_sampled_tokens():
    engine = SayingEngine(lambda prompt, seed: "ab"[seed % 2] if prompt.count("\n") == 1 else "z")

    (played,) = await play([make_task(1, samples=2)], stage(engine, CountingBuilder(turns=2)))

    assert [len(request.seeds) for request in engine.calls[1]] == [1, 1]
    for episode in played.episodes:
        first = spell(episode.token_ids)[0]
        assert spell(episode.token_ids) == f"{first}.not {first}\nz."
        assert episode.loss_mask == (1, 1, 0, 0, 0, 0, 0, 0, 1, 1)
        assert episode.logprobs == (-0.5, -0.5, 0, 0, 0, 0, 0, 0, -0.5, -0.5)
        assert episode.spans == (
            VersionSpan(start=0, end=2, lineage=0, step=3),
            VersionSpan(start=8, end=10, lineage=0, step=3),
        )
        assert engine.calls[1][episode.sample].seeds == (
            derive_seed(7, "train", 1, episode.sample, 1),
        )


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_an_episode_is_copied_once_for_each_thing_that_is_said(turns, monkeypatch):
    copied: list[int] = []

    def count(one, **changes):
        if isinstance(one, Episode):
            copied.append(one.sample)
        return replace(one, **changes)

    for module in (episodes, environment_turns, group):
        monkeypatch.setattr(module, "replace", count)
    engine = SayingEngine(lambda prompt, seed: "x")

    await play([make_task(1, samples=3)], stage(engine, CountingBuilder(turns=turns)))

    assert len(engine.calls) == turns
    assert len(copied) == 3 * 2 * turns


async def test_a_reply_cut_off_ends_its_episode():
    engine = SayingEngine(lambda prompt, seed: "much too long")

    (played,) = await play(
        [make_task(1, sampling=SamplingParams(max_new_tokens=3))],
        stage(engine, CountingBuilder(turns=2)),
    )

    assert {episode.ending for episode in played.episodes} == {"length"}
    assert len(engine.calls) == 1


async def test_an_environment_that_raises_fails_its_task_and_no_other():
    class Touchy(CountingBuilder):
        def build(self, row):
            if row["prompt"] == "q1":
                raise KeyError("no such sandbox")
            return super().build(row)

    played = await play(
        [make_task(n) for n in range(3)], stage(SayingEngine(lambda p, s: "x"), Touchy())
    )

    assert [one.failure is None for one in played] == [True, False, True]
    assert played[1].failure.kind == "data"
    assert "no such sandbox" in played[1].failure.message
    assert "prompt='q1'" in played[1].failure.message


async def test_an_engine_that_gives_up_is_not_the_policys_fault():
    class GivingUp(SayingEngine):
        def _complete(self, request, seed):
            return Completion(token_ids=(), logprobs=(), finish="aborted")

    with pytest.raises(EngineError, match="gave up on every sample"):
        await play([make_task(0)], stage(GivingUp(lambda p, s: "x")))


async def test_a_sample_that_the_engine_gives_up_costs_its_siblings_nothing():
    task, unlucky = make_task(0, samples=4), derive_seed(7, "train", 0, 2)

    class LosingOne(SayingEngine):
        def _complete(self, request, seed):
            lost = Completion(token_ids=(), logprobs=(), finish="aborted")
            return lost if seed == unlucky else super()._complete(request, seed)

    builder = CountingBuilder(turns=2)
    (played,) = await play([task], stage(LosingOne(lambda p, s: "x"), builder))

    assert [episode.sample for episode in played.episodes] == [0, 1, 3]
    assert played.failure.kind == "infrastructure"
    assert "1 samples lost, first sample 2: the engine gave up" in played.failure.message


async def test_an_environments_infrastructure_trouble_costs_one_sample_and_no_reward():
    class Sandbox(CountingEnv):
        async def step(self, action):
            if action.text == "b":
                raise InfrastructureError("the sandbox's node is gone")
            return await super().step(action)

    class Sandboxes(CountingBuilder):
        def build(self, row):
            return Sandbox(row["prompt"], self.turns)

    seeds = [derive_seed(7, "train", 0, sample) for sample in range(3)]
    engine = SayingEngine(lambda prompt, seed: "abc"[seeds.index(seed)])
    (played,) = await play([make_task(0, samples=3)], stage(engine, Sandboxes()))

    assert [episode.sample for episode in played.episodes] == [0, 2]
    assert "the sandbox's node is gone" in played.failure.message


async def test_a_template_that_has_no_such_turn_is_the_tasks_failure_by_name():
    class Silent(LetterRenderer):
        def render_next(self, reply, added):
            raise DataError("chat template refuses it; this model takes no such turn")

    one = stage(SayingEngine(lambda p, s: "x"), CountingBuilder(turns=2))
    (played,) = await play([make_task(0)], replace(one, renderer=Silent()))

    assert DataError.__name__ in played.failure.message
    assert "chat template" in played.failure.message


async def test_nothing_that_was_said_is_rendered_again():
    class Counting(LetterRenderer):
        rendered = 0

        def render_training(self, messages):
            self.rendered += sum(len(one.text) for one in messages)
            return super().render_training(messages)

    counting = Counting()
    one = stage(SayingEngine(lambda p, s: "x" * 7), CountingBuilder(turns=5))
    (played,) = await play([make_task(0, samples=1)], replace(one, renderer=counting))
    (episode,) = played.episodes
    asked = [message.text for message in episode.messages if message.role == "user"]
    assert counting.rendered == sum(map(len, asked))


async def test_what_was_said_is_kept_for_people():
    (played,) = await play([make_task(4)], stage(SayingEngine(lambda p, s: "hi")))

    assert played.episodes[0].messages == (
        Message(role="user", content="q4"),
        Message(role="assistant", content="hi"),
    )
    assert played.task.version == VERSION


@pytest.mark.parametrize("bounds", [{"context_max": 9}, {"prompt_tokens_max": 2}])
async def test_a_prompt_that_does_not_fit_is_named_and_never_sampled_from(bounds):
    engine = SayingEngine(lambda prompt, seed: "x")

    (played,) = await play([make_task(1)], replace(stage(engine), **bounds))

    assert played.failure.kind == "data"
    assert "the prompt has 3 tokens" in played.failure.message
    assert "prompt='q1'" in played.failure.message
    assert engine.calls == []


async def test_an_episode_that_outgrows_the_context_ends_as_too_long():
    engine = SayingEngine(lambda prompt, seed: "abc")
    bounded = replace(stage(engine, CountingBuilder(turns=3)), context_max=20)

    (played,) = await play([make_task(1)], bounded)

    assert {episode.ending for episode in played.episodes} == {"length"}
    assert [spell(episode.token_ids) for episode in played.episodes] == ["abc."] * 2
    assert len(engine.calls) == 1


class SpellingRenderer(LetterRenderer):
    """Tokens from 1000 on are letters too, which no text is ever encoded to."""

    def decode(self, token_ids):
        return super().decode([token % 1000 for token in token_ids])

    def survives_text(self, token_ids):
        return all(token < 1000 for token in token_ids)


class SpellingEngine(SayingEngine):
    """Says what it is told to in tokens that its text is not encoded to."""

    def _complete(self, request, seed):
        plain = "".join(chr(token % 1000) for token in request.prompt_ids)
        ids = (*(1000 + ord(letter) for letter in self.say(plain, seed)), END)
        return Completion(token_ids=ids, logprobs=(-0.5,) * len(ids), finish="stop")


async def test_a_conversation_goes_on_from_the_sampled_tokens_and_never_encodes_a_reply_again():
    engine = SpellingEngine(lambda prompt, seed: "ok")
    spelling = replace(stage(engine, CountingBuilder(turns=3)), renderer=SpellingRenderer())

    (played,) = await play([make_task(1, samples=1)], spelling)

    said = (1000 + ord("o"), 1000 + ord("k"), END)
    (episode,) = played.episodes
    sampled = tuple(t for t, kept in zip(episode.token_ids, episode.loss_mask, strict=True) if kept)
    assert sampled == said * 3
    second, third = (calls[0].prompt_ids for calls in engine.calls[1:])
    assert said == second[len(episode.prompt_ids) :][:3]
    assert third[: len(second)] == second
    assert ord("o") not in second[len(episode.prompt_ids) :][:2]
    assert episode.reply == "ok"
    assert episode.retokenised


async def test_a_reply_that_its_text_gives_back_is_not_counted_as_retokenised():
    (played,) = await play([make_task(1)], stage(SayingEngine(lambda p, s: "hi")))
    assert not any(episode.retokenised for episode in played.episodes)
