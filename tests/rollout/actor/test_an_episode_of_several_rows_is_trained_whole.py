"""An environment may leave its conversation and begin, or take up, another: each sampled token is in one row, as it was sampled."""

from dataclasses import replace

import pytest
from actor_fakes import VERSION, CountingBuilder, LetterRenderer, SayingEngine, make_task
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from rollout.actor.continuation import build_prefix
from rollout.actor.episodes import Score
from rollout.actor.runner import RunnerParts, play
from rollout.actor.submitting import finish_trajectory, fit_result
from rollout.protocol.messages import TaskResult
from rollout.turns import Budgets, Ending, State
from rollout.types import Message, Prefix, VersionSpan


class Leaping(CountingBuilder):
    """Answers the replies with what ``states`` says, in turn, then ends; ``made`` counts environments."""

    def __init__(self, *states: State | Ending) -> None:
        self.states, self.made = states, 0

    def build(self, row):
        self.made += 1
        states = iter(self.states)

        class One:
            async def start(self):
                return State(messages=(Message(role="user", content=row["prompt"]),))

            async def step(self, action):
                return next(states, Ending(turn_reward=1.0))

            async def close(self): ...

        return One()


def say(text: str, after: int | None = None, **more) -> State:
    return State(messages=(Message(role="user", content=text),), after=after, **more)


async def played(builder, reply=lambda prompt, seed: "r", task=None, **more):
    engine = SayingEngine(reply)
    stage = RunnerParts(
        engine=engine, renderer=LetterRenderer(), builders=lambda _: builder, seed=7, **more
    )
    (one,) = await play([task or make_task(0, samples=1)], stage)
    return one, engine


def made_of(played):
    (episode,) = played.episodes
    return finish_trajectory(episode, {}, Score(rewards={}, reward=1.0), {})


def written(row) -> tuple[str, str]:
    """A row's prompt and its own tokens; the end of a reply is a dot, what was sampled is in upper case."""
    own = zip(row.token_ids, row.loss_mask, strict=True)
    prompt = "".join("." if token == 0 else chr(token) for token in row.prompt_ids)
    said = [
        "." if token == 0 else chr(token).upper() if mask else chr(token) for token, mask in own
    ]
    return prompt, "".join(said)


async def test_a_conversation_that_only_grows_has_the_bytes_that_it_had():
    one, _ = await played(Leaping(say("on"), say("more")))
    made = made_of(one)

    assert (made.branches, made.rows) == (UNSET, (made,))
    assert written(made) == ("q0\n", "R.on\nR.more\nR.")
    assert one.episodes[0].signals == {}


async def test_a_compacted_history_and_a_question_on_the_side_are_rows_of_their_own():
    script = say("on"), say("in short", -1), say("title?", -1), say("go", 2), say("back", 0)
    one, engine = await played(Leaping(*script))
    made = made_of(one)

    assert [written(row) for row in made.rows] == [
        ("q0\n", "R.on\nR."),
        ("in short\n", "R.go\nR."),
        ("title?\n", "R."),
        ("q0\nr.", "back\nR."),
    ]
    assert (made.num_sampled, made.num_tokens) == (12, 23)
    assert one.episodes[0].signals == {"forks": 4.0, "rows": 4.0}
    assert [len(call) for call in engine.calls] == [1] * 6


async def test_a_row_taken_up_again_at_its_end_is_the_same_row():
    one, _ = await played(Leaping(say("aside", -1), say("on", 0)))
    assert [written(row) for row in made_of(one).rows] == [
        ("q0\n", "R.on\nR."),
        ("aside\n", "R."),
    ]


SCRIPTS = st.lists(
    st.tuples(st.integers(-1, 7), st.booleans(), st.text("ab", min_size=1, max_size=3))
)


@settings(max_examples=40, deadline=None)
@given(SCRIPTS, st.integers(1, 5))
async def test_every_sampled_token_is_in_one_row_behind_what_the_engine_saw(script, rows_max):
    states = [
        say(text, None if goes_on else min(after, turn))
        for turn, (after, goes_on, text) in enumerate(script)
    ]
    replies = iter(f"{chr(0x100 + number)}x" for number in range(99))
    builder = Leaping(*states)
    one, engine = await played(
        builder, lambda prompt, seed: next(replies), budgets=Budgets(rows=rows_max)
    )
    made = made_of(one)

    seen = {}
    for row in made.rows:
        whole = row.prompt_ids + row.token_ids
        for place, token in enumerate(whole[len(row.prompt_ids) :], start=len(row.prompt_ids)):
            if token >= 0x100 and row.loss_mask[place - len(row.prompt_ids)]:
                assert token not in seen, "sampled once, trained on twice"
                seen[token] = whole[:place]
    requests = [request.prompt_ids for call in engine.calls for request in call]
    assert seen == {0x100 + number: ids for number, ids in enumerate(requests)}
    assert made.num_sampled == 3 * len(requests)
    assert len(made.rows) <= rows_max
    firsts = [min(token for token in row.token_ids if token in seen) for row in made.rows]
    assert firsts == sorted(firsts)
    for row in made.rows:
        covered = {at for span in row.spans for at in range(span.start, span.end)}
        assert covered == {at for at, mask in enumerate(row.loss_mask) if mask}
        logprobs = tuple(-0.5 if mask else 0.0 for mask in row.loss_mask)
        assert row.actor_logprobs == logprobs


@pytest.mark.parametrize(
    ("budgets", "ending", "num_rows"),
    [
        (Budgets(rows=3), "row-limit", 3),
        (Budgets(turns=5), "turn-limit", 5),
        (Budgets(tokens=4), "token-limit", 2),
        (Budgets(turns=3, rows=3), "turn-limit", 3),
    ],
)
async def test_who_begins_rows_without_end_meets_a_budget_as_the_policys(budgets, ending, num_rows):
    builder = Leaping(*[say("again", -1, turn_reward=0.5)] * 99)
    one, _ = await played(builder, budgets=budgets)

    (episode,) = one.episodes
    assert (one.failure, episode.ending, len(episode.rows)) == (None, ending, num_rows)
    assert len(made_of(one).rows) == num_rows
    assert episode.turn_rewards == (0.5,) * num_rows


async def test_rows_are_counted_by_the_trained_ones_and_taking_one_up_is_free():
    script = [say("aside", -1), say("on", 0)] + [say("on", turn) for turn in (1, 2, 3, 4)]
    one, _ = await played(Leaping(*script), budgets=Budgets(rows=2))
    (episode,) = one.episodes
    assert (episode.ending, episode.turn, len(episode.rows)) == ("stop", 7, 2)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (say("x", -1, turn_reward=float("nan")), "finite numbers"),
        (say("x", -1, signals={f"n{i}": 1.0 for i in range(33)}), "33 names"),
        (say("x", 5), "behind turn 5, which was not had"),
        (say("x", -2), "behind turn -2, which was not had"),
    ],
)
async def test_what_no_row_can_begin_with_is_the_tasks_failure_by_name(said, wrong):
    one, _ = await played(Leaping(said))
    assert (one.failure.kind, one.episodes) == ("data", ())
    assert wrong in one.failure.message


async def test_an_algorithm_that_learns_from_one_row_refuses_another_and_measures_all():
    script = Leaping(say("in short", -1))
    trained, _ = await played(script, single_row="ppo")
    measured, _ = await played(script, task=make_task(0, samples=1, kind="eval"), single_row="ppo")

    assert trained.failure.kind == "data"
    assert "ppo learns from one" in trained.failure.message
    assert len(made_of(measured).rows) == 2


async def test_a_sample_that_another_actor_began_goes_back_to_a_turn_of_the_first():
    """Its first row begins with what was handed over, as it was; what comes is the second actor's."""
    older = VersionSpan(start=0, end=2, lineage=0, step=VERSION.step - 1)
    prefix = Prefix(
        sample=0,
        segment=1,
        prompt_ids=tuple(map(ord, "q0\n")),
        token_ids=(ord("a"), 0, *map(ord, "on\n"), ord("b")),
        logprobs=(-0.1, -0.2, 0.0, 0.0, 0.0, -0.3),
        loss_mask=(1, 1, 0, 0, 0, 1),
        spans=(older, replace(older, start=5, end=6)),
        turn_ends=(2,),
    )
    builder = Leaping(say("on"), say("back", 0))
    task = make_task(0, samples=1, prefixes=(prefix,))
    one, engine = await played(builder, task=task, keeps_prefixes=True)
    made = made_of(one)

    assert [written(row) for row in made.rows] == [("q0\n", "A.on\nBR."), ("q0\na.", "back\nR.")]
    assert made.actor_logprobs[:6] == prefix.logprobs
    assert made.spans[:2] == prefix.spans
    assert [(one.start, one.end, one.step) for one in made.rows[1].spans] == [(5, 7, VERSION.step)]
    assert (made.num_sampled, one.episodes[0].num_sampled, len(engine.calls)) == (7, 7, 2)


async def test_an_episode_of_several_rows_that_is_handed_back_starts_over():
    """A prefix is of one row: an environment that leaves it while it hears its replies again begins afresh."""
    prefix = Prefix(
        sample=0,
        segment=1,
        prompt_ids=tuple(map(ord, "q0\n")),
        token_ids=(ord("a"), 0),
        logprobs=(-0.1, -0.2),
        loss_mask=(1, 1),
        spans=(VersionSpan(start=0, end=2, lineage=0, step=VERSION.step),),
        turn_ends=(2,),
    )
    task = make_task(0, samples=1, prefixes=(prefix,))
    builder = Leaping(say("in short", -1))
    one, engine = await played(builder, task=task, keeps_prefixes=True)

    assert [written(row) for row in made_of(one).rows] == [("q0\n", "R."), ("in short\n", "R.")]
    assert (builder.made, len(engine.calls)) == (2, 2)
    assert build_prefix(one.episodes[0]) is None


async def test_a_group_that_no_call_carries_names_its_longest_sample_by_all_its_rows():
    one, _ = await played(Leaping(say("aside " * 40, -1)))
    result = TaskResult(task_id="t0", epoch=1, trajectories=(made_of(one),))
    fitted, _ = fit_result(result, bytes_max=200)
    assert "sample 0 with 4 tokens" in fitted.failure.message
