"""``treasure-hunt``: every world can be won, no world is in two splits, and what a hunt is worth."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.environments.build import build_environment
from rollout.environments.treasure_hunt import MOVES_MAX, read_command
from rollout.environments.treasure_world import NAMES, beside, draw_world
from rollout.errors import DataError, SpecError
from rollout.evaluations.build import build_suite
from rollout.turns import Action, Ending, State
from rollout.types import Message
from rollout_api.v1alpha1.environment import Environment
from rollout_api.v1alpha1.evaluation import Evaluation


def build(**parameters):
    listed = [{"name": name, "value": str(value)} for name, value in parameters.items()]
    named = {"builtin": {"name": "treasure-hunt", "parameters": listed}}
    return build_environment(Environment.model_validate(named))


def row_of(builder, position=0, split="train"):
    (row,) = builder.source(split, 0).rows([position])
    return row


def play(builder, row, replies):
    async def episode():
        made = builder.build(row)
        heard = [await made.start()]
        for turn, text in enumerate(replies):
            message = Message(role="assistant", content=text)
            heard.append(await made.step(Action(message=message, text=text, turn=turn)))
            if isinstance(heard[-1], Ending):
                break
        await made.close()
        return heard

    return asyncio.run(episode())


def hunt(row):
    return row["answer"].split(", ")


@given(number=st.integers(0, 2**62), rooms=st.integers(3, len(NAMES)))
@settings(max_examples=200, deadline=None)
def test_every_world_can_be_won(number, rooms):
    world = draw_world(number, rooms)

    assert len(set(world.rooms.values())) == rooms
    assert len({world.start, world.key, world.chest}) == 3
    for place, way in world.doors:
        assert beside(place, way) in world.rooms
    assert all(world.way(world.start, place) is not None for place in world.rooms)
    assert world == draw_world(number, rooms)


@pytest.mark.parametrize("rooms", [3, 6, len(NAMES)])
@pytest.mark.parametrize("position", range(8))
def test_the_shortest_hunt_wins(rooms, position):
    builder = build(rooms=rooms)
    row = row_of(builder, position)
    *states, ending = play(builder, row, hunt(row))

    assert all(isinstance(state, State) for state in states)
    assert (ending.kind, ending.turn_reward) == ("found", 1.0)
    assert ending.signals == {"key": 1, "mistakes": 0, "moves": row["level"], "won": 1}
    assert row["level"] <= MOVES_MAX


def test_a_chest_needs_its_key():
    builder = build()
    row = row_of(builder)
    world = draw_world(row["world"], 6)
    walk = [f"go {way}" for way in world.way(world.start, world.chest)]
    heard = play(builder, row, [*walk, "open chest"])

    assert heard[-1].messages[0].text == "The chest is locked: you need the key."


def test_a_hunt_is_lost_after_its_moves():
    builder = build(maxMoves=3)
    *_, ending = play(builder, row_of(builder), ["look"] * 9)

    assert (ending.kind, ending.owner, ending.turn_reward) == ("lost", "policy", 0)
    assert ending.signals["moves"] == 3


def test_moves_beyond_the_shortest_hunt_cost_at_most_half():
    builder = build(moveCost="0.1")
    row = row_of(builder)
    first, *others = hunt(row)
    *_, ending = play(builder, row, ["look", "look", first, *others])
    *_, slow = play(builder, row, ["look"] * 12 + [first, *others])

    assert ending.turn_reward == pytest.approx(0.8)
    assert slow.turn_reward == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("I think.\n\n  Go North.  \n", "go north"),
        ("take the key!", "take key"),
        ("", ""),
        ("\n \n", ""),
        ("\x00 <|im_end|>", "\x00 <|im_end|>"),
    ],
)
def test_the_last_line_is_the_command(reply, command):
    assert read_command(reply) == command


def test_what_is_no_command_is_told_and_counted():
    builder = build()
    _, told = play(builder, row_of(builder), ["fly"])

    assert told.messages[0].text.startswith("No such command.")
    assert told.signals["mistakes"] == 1


@pytest.mark.parametrize("rooms", [3, 6])
def test_no_world_is_in_two_splits(rooms):
    builder = build(rooms=rooms, worlds=400, heldOut=200)
    seen = {
        split: {
            draw_world(row["world"], rooms).digest
            for row in builder.source(split, 0).rows(range(len(builder.source(split, 0))))
        }
        for split in ("train", "selection", "report")
    }

    assert not seen["train"] & seen["report"]
    assert not seen["train"] & seen["selection"]
    assert not seen["report"] & seen["selection"]


def test_a_suite_plays_held_out_worlds_of_the_training():
    suite = build_suite(
        Evaluation.model_validate(
            {"suite": {"builtin": {"name": "treasure-hunt"}}, "maxPrompts": 5}
        )
    )
    rows = suite.source().rows(range(5))
    *_, ending = play(suite.environment(), rows[0], hunt(rows[0]))

    assert rows[0] == row_of(build(), split="report")
    assert ending.kind == "found"


def test_a_row_of_other_data_is_named():
    with pytest.raises(DataError, match="no number 'world'"):
        build().build({"messages": []})


@pytest.mark.parametrize(
    "bad",
    [{"rooms": 2}, {"maxMoves": 65}, {"moveCost": 1}, {"worlds": 0}, {"heldOut": 9}, {"size": 1}],
)
def test_a_bad_parameter_is_named(bad):
    with pytest.raises(SpecError, match=f"environment treasure-hunt: .*{next(iter(bad))}"):
        build(**bad)
