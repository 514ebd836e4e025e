"""What a stop text does to an episode: its tokens are trained on, its text is not what rewards and environments see."""

from __future__ import annotations

from dataclasses import replace

import pytest
from actor_fakes import END, CountingBuilder, LetterRenderer, SayingEngine, make_task

from rollout.actor.continuation import build_prefix
from rollout.actor.runner import RunnerParts, play
from rollout.actor.scoring import completion_of
from rollout.engines.stops import cut_completion
from rollout.types import Completion, SamplingParams
from rollout_vllm.stops import StopScanner


class StoppingEngine(SayingEngine):
    """Ends at stop texts; ``gives`` is how many tokens there are when it is interrupted, the first time."""

    gives: int | None = None

    def _complete(self, request, seed) -> Completion:
        whole = super()._complete(request, seed)
        sampling = request.sampling
        scanner = StopScanner(
            LetterRenderer().decode,
            sampling.stop,
            least=sampling.min_new_tokens,
            begun=request.prompt_ids[len(request.prompt_ids) - request.begun :],
        )
        ends = (place for place, token in enumerate(whole.token_ids) if scanner.push(token))
        end = next(ends, None)
        whole = whole if end is None else cut_completion(whole, end + 1)
        if self.gives is None:
            return whole
        gives, self.gives = self.gives, None
        part = cut_completion(whole, gives)
        return replace(part, finish="interrupted")


def stage(engine, turns=1):
    return RunnerParts(
        engine=engine,
        renderer=LetterRenderer(),
        builders=lambda task: CountingBuilder(turns),
        seed=7,
        keeps_prefixes=True,
    )


def task(**sampling):
    params = SamplingParams(**({"max_new_tokens": 12, "stop": ("</a>",)} | sampling))
    return make_task(1, samples=1, sampling=params)


def spell(ids):
    return "".join("." if token == END else chr(token) for token in ids)


@pytest.mark.parametrize(("include", "text"), [(False, "42"), (True, "42</a>")])
async def test_its_tokens_are_all_trained_on_and_its_text_is_cut(include, text):
    engine = StoppingEngine(lambda prompt, seed: "42</a> and")

    [played] = await play([task(include_stop=include)], stage(engine))

    [episode] = played.episodes
    assert spell(episode.token_ids) == "42</a>"
    assert episode.loss_mask == (1,) * 6
    assert (episode.ending, episode.reply, episode.messages[-1].content) == ("stop", text, text)
    seen = completion_of(episode)
    assert (seen.finish, seen.text, seen.token_ids) == ("stop", text, episode.token_ids)


async def test_the_next_turn_begins_behind_a_whole_turn():
    engine = StoppingEngine(lambda prompt, seed: "b" if "not" in prompt else "a</a> and")

    [played] = await play([task()], stage(engine, turns=2))

    [episode] = played.episodes
    assert spell(episode.token_ids) == "a</a>.not a\nb."
    assert "".join(map(str, episode.loss_mask)) == "111110000000" + "11"
    assert episode.logprobs[5:12] == (0.0,) * 7


async def test_a_token_that_was_asked_for_ends_a_turn_alike():
    class Ending(SayingEngine):
        def _complete(self, request, seed):
            whole = super()._complete(request, seed)
            return (
                cut_completion(whole, whole.token_ids.index(ord(";")) + 1)
                if len(self.calls) < 2
                else whole
            )

    engine = Ending(lambda prompt, seed: "b" if "not" in prompt else "a; and")

    [played] = await play([task(stop=(), stop_token_ids=(END, ord(";")))], stage(engine, turns=2))

    [episode] = played.episodes
    assert spell(episode.token_ids) == "a;.not a\nb."
    assert episode.reply == "b"


@pytest.mark.parametrize("gives", [1, 3, 5])
async def test_a_stop_text_that_an_interruption_cuts_in_two_still_ends_it(gives):
    engine = StoppingEngine(lambda prompt, seed: "42</a> and"[len(prompt.partition("\n")[2]) :])
    engine.gives = gives

    [played] = await play([task()], stage(engine))

    [episode] = played.episodes
    assert [request.begun for (request,) in engine.calls] == [0, gives]
    assert (spell(episode.token_ids), episode.reply, episode.segment) == ("42</a>", "42", 1)


@pytest.mark.parametrize("least", [0, 2])
async def test_another_actor_goes_on_in_the_middle_of_a_stop_text(least):
    first = StoppingEngine(lambda prompt, seed: "42</a> and")
    [half] = await play([task(min_new_tokens=least)], stage(first))
    prefix = build_prefix(half.episodes[0])
    begun = replace(
        prefix,
        token_ids=prefix.token_ids[:4],
        logprobs=prefix.logprobs[:4],
        loss_mask=(1,) * 4,
        spans=(replace(prefix.spans[0], end=4),),
        turn_ends=(),
        ending=None,
        segment=1,
    )
    other = StoppingEngine(lambda prompt, seed: "a> and")

    [played] = await play([replace_prefixes(task(min_new_tokens=least), (begun,))], stage(other))

    assert [request.begun for (request,) in other.calls] == [4]
    [episode] = played.episodes
    assert (spell(episode.token_ids), episode.reply) == ("42</a>", "42")


async def test_turns_that_a_stop_text_ended_are_heard_alike_by_another_actors_environment():
    engine = StoppingEngine(lambda prompt, seed: "b" if "not" in prompt else "a</a> and")
    [whole] = await play([task()], stage(engine, turns=3))
    prefix = build_prefix(whole.episodes[0])
    one_turn = prefix.turn_ends[0]
    answer = len("." + "not a\n")
    begun = replace(
        prefix,
        token_ids=prefix.token_ids[: one_turn + answer],
        logprobs=prefix.logprobs[: one_turn + answer],
        loss_mask=prefix.loss_mask[: one_turn + answer],
        spans=prefix.spans[:1],
        turn_ends=(one_turn,),
        ending=None,
    )

    [again] = await play([replace_prefixes(task(), (begun,))], stage(engine, turns=3))

    assert again.episodes[0].token_ids == whole.episodes[0].token_ids
    assert again.episodes[0].messages == whole.episodes[0].messages
    assert len(engine.calls) == 3 + 2


def replace_prefixes(one, prefixes):
    return make_task(1, samples=1, sampling=one.sampling, prefixes=prefixes)
