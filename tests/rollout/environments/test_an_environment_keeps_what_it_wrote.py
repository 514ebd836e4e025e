"""The memory of one episode: what was there, its own writes on top, a search in one order; and what it refuses."""

import math
import struct
from dataclasses import replace

import pytest

from rollout.codec import canonical_bytes
from rollout.environments.build import build_environment
from rollout.environments.memory import EpisodeMemory, build_episode, wants_memory
from rollout.environments.plugin import wrap_class
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.errors import MemoryRefused, SpecError
from rollout.memory import (
    DEPTH_MAX,
    DIMENSION_MAX,
    VALUE_BYTES_MAX,
    WRITES_MAX,
    MemoryWrite,
    encode_vector,
    find_wrong_writes,
)
from rollout.types import Trajectory, VersionSpan
from rollout_api.v1alpha1.environment import Environment


def write(key="a", value="1", vector=b""):
    return MemoryWrite(key=key, value=value, vector=vector)


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


class Notes:
    """Says what was noted for its row."""

    uses_memory = True

    def __init__(self, row, memory, **parameters):
        self.row, self.memory, self.parameters = row, memory, parameters

    def start(self):
        return f"{self.memory.get(self.row['prompt'])} {sorted(self.parameters)}"

    def step(self, reply):
        self.memory.put(self.row["prompt"], reply)
        return True


class NotesBuilder:
    """The same by a builder."""

    uses_memory = True

    def build(self, row, memory):
        return Notes(row, memory)


def test_an_episode_reads_what_was_there_and_its_own_writes():
    memory = EpisodeMemory({"a": write("a", '{"n":[1,2]}'), "b": write("b", "2")})
    assert memory.get("a") == {"n": [1, 2]}
    memory.get("a")["n"].append(3)
    memory.put("b", (3, None))
    memory.put("c", "new")
    memory.put("a", None)
    assert [memory.get(key) for key in "abcd"] == [None, [3, None], "new", None]
    assert memory.finish() == (write("a", "null"), write("b", "[3,null]"), write("c", '"new"'))


def test_a_search_gives_the_nearest_first_and_of_equals_by_key():
    entries = {
        key: write(key, f'"{key}"', encode_vector(vector))
        for key, vector in {
            "b": (2.0, 0.0),
            "a": (1e300, 0.0),
            "far": (-1.0, 0.0),
            "side": (0.0, 5e-324),
            "other": (1.0, 0.0, 0.0),
        }.items()
    }
    memory = EpisodeMemory({**entries, "plain": write("plain")})
    memory.put("mine", 1, (1.0, 1.0))
    memory.put("far", None)
    found = memory.search((3.0, 0.0))
    assert [hit.key for hit in found] == ["a", "b", "mine", "side"]
    assert [hit.score for hit in found] == pytest.approx([1.0, 1.0, math.sqrt(0.5), 0.0])
    assert [hit.value for hit in memory.search((3.0, 0.0), k=1)] == ["a"]
    assert EpisodeMemory().search((1.0,)) == ()


@pytest.mark.parametrize(
    ("key", "value", "vector", "word"),
    [
        ("", 1, None, "printable"),
        ("a\0b", 1, None, "printable"),
        ("\ud800", 1, None, "printable"),
        ("k" * 257, 1, None, "256 bytes"),
        (7, 1, None, "printable"),
        ("a", "x" * VALUE_BYTES_MAX, None, "4096 at most"),
        ("a", math.nan, None, "finite numbers"),
        ("a", [math.inf], None, "finite numbers"),
        ("a", 1 << 63, None, "64 bits"),
        ("a", {1: 2}, None, "expected text"),
        ("a", {"x": object()}, None, "object"),
        ("a", nested(DEPTH_MAX + 1), None, "in each other"),
        ("a", 1, (), "0 numbers"),
        ("a", 1, (0.5,) * (DIMENSION_MAX + 1), "257 numbers"),
        ("a", 1, (0.0, 0.0), "no direction"),
        ("a", 1, (math.nan,), "no direction"),
        ("a", 1, ("x",), "no list of numbers"),
    ],
)
def test_what_memory_does_not_take_is_refused_and_changes_nothing(key, value, vector, word):
    memory = EpisodeMemory()
    with pytest.raises(MemoryRefused, match=word):
        memory.put(key, value, vector)
    assert memory.finish() == ()


def test_an_episode_writes_so_many_keys_and_none_after_its_end():
    memory = EpisodeMemory()
    for number in range(WRITES_MAX):
        memory.put(f"k{number}", number)
    memory.put("k0", "again")
    with pytest.raises(MemoryRefused, match="16 keys"):
        memory.put("another", 1)
    assert len(memory.finish()) == WRITES_MAX
    with pytest.raises(MemoryRefused, match="after the end"):
        memory.put("k0", 2)


@pytest.mark.parametrize("vector", [(), (0.0,), (math.inf,), (1.0,) * 300])
def test_a_search_for_no_vector_is_refused(vector):
    with pytest.raises(MemoryRefused):
        EpisodeMemory().search(vector)
    with pytest.raises(MemoryRefused, match="1 or more"):
        EpisodeMemory().search((1.0,), k=0)


@pytest.mark.parametrize(
    ("writes", "word"),
    [
        ((), "expected 1 to 16"),
        (tuple(write(f"k{n:02d}") for n in range(17)), "expected 1 to 16"),
        ((write("b"), write("a")), "in order"),
        ((write("a"), write("a")), "in order"),
        ((write("a\n"),), "printable"),
        ((write("a", "NaN"),), "finite"),
        ((write("a", "1e999"),), "finite"),
        ((write("a", "[" * 4000),), "no JSON"),
        ((write("a", "[" * 40 + "]" * 40),), "in each other"),
        ((write("a", '{"b":1,"a":2}'),), "not written"),
        ((write("a", '{"a":1,"a":2}'),), "not written"),
        ((write("a", '"ä"'),), "not written"),
        ((write("a", '"' + "x" * 4096 + '"'),), "4096 at most"),
        ((write("a", "1", b"\0" * 7),), "7 bytes"),
        ((write("a", "1", b"\0" * 8),), "no direction"),
        ((write("a", "1", struct.pack("<d", math.nan)),), "no direction"),
        ((write("a", "1", b"\1" * 8 * 257),), "2056 bytes"),
    ],
)
def test_writes_that_no_environment_could_have_made_are_named(writes, word):
    assert word in find_wrong_writes(writes)


def test_what_an_environment_may_write_is_what_is_taken():
    memory = EpisodeMemory()
    memory.put("ü 漢", {"z": [1.5, -0.0, "ä\0\ud800", True], "a": {}}, (1, 2))
    memory.put("b", None)
    assert find_wrong_writes(memory.finish()) == ""


@pytest.mark.parametrize("made", [Notes, NotesBuilder])
async def test_a_class_that_declares_it_is_given_memory(made):
    builder = wrap_class(made, {}, "environment Notes")
    assert await wants_memory(builder)
    memory = EpisodeMemory({"q": write("q", '"known"')})
    episode = build_episode(builder, {"prompt": "q"}, memory)
    begun = await episode.start()
    assert begun.messages[0].text == "known []"
    alone = await builder.build({"prompt": "q"}).start()
    assert alone.messages[0].text == "None []"


async def test_who_does_not_declare_it_is_given_none():
    builder = SingleTurnBuilder()
    assert not await wants_memory(builder)
    assert not await wants_memory(build_environment(None))
    assert build_episode(builder, {"messages": [], "prompt": ""}, EpisodeMemory())


async def test_tools_around_an_environment_hand_its_memory_through():
    environment = Environment.model_validate(
        {"python": {"module": __name__, "className": "Notes"}, "tools": ["calculator"]}
    )
    builder = build_environment(environment)
    assert await wants_memory(builder)
    memory = EpisodeMemory({"q": write("q", "7")})
    assert (await build_episode(builder, {"prompt": "q"}, memory).start()).messages[
        0
    ].text == "7 []"


def test_a_parameter_of_the_same_name_is_refused():
    with pytest.raises(SpecError, match="another name"):
        wrap_class(Notes, {"memory": "512Mi"}, "environment Notes")


def test_what_was_written_is_part_of_a_trajectorys_name():
    plain = Trajectory(
        ordinal=0,
        sample=0,
        prompt_ids=(1,),
        token_ids=(2,),
        actor_logprobs=(-0.5,),
        loss_mask=(1,),
        spans=(VersionSpan(start=0, end=1, lineage=0, step=0),),
        rewards={},
        reward=0.0,
        ending="stop",
    )
    names = {
        canonical_bytes(plain),
        canonical_bytes(replace(plain, memory=(write(),))),
        canonical_bytes(replace(plain, memory=(write(value="2"),))),
        canonical_bytes(replace(plain, memory=(write(vector=b"\1" * 8),))),
    }
    assert len(names) == 4
