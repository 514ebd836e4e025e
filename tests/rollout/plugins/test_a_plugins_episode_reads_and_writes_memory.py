"""Episodes of a plugin with memory: what one process would read and write is read and written through the contract, and nothing past it."""

import asyncio
import json
import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.environments.memory import EpisodeMemory, build_episode
from rollout.environments.plugin import wrap_class
from rollout.errors import InfrastructureError, MemoryRefused, PluginError
from rollout.memory import (
    ENTRIES_MAX,
    WRITES_MAX,
    MemoryWrite,
    encode_vector,
    find_wrong_writes,
)
from rollout.plugins.served import memory as served
from rollout.plugins.served.environments import EnvironmentService
from rollout.plugins.sidecar import memory as desks
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.kinds.environment import SidecarEpisode
from rollout.turns import Action, Ending, State
from rollout.types import Message

ROW = {"prompt": "q"}


def write(key, value="1", vector=()):
    return MemoryWrite(key=key, value=value, vector=encode_vector(vector) if vector else b"")


ENTRIES = {
    "known": write("known", '{"n":[1,"ä"]}'.replace("ä", "\\u00e4")),
    "near": write("near", '"near"', (1.0, 0.25)),
    "far": write("far", '"far"', (-1.0, 0.0)),
}


class Diary:
    """Plain functions, which may block."""

    uses_memory = True

    def __init__(self, row, memory):
        self.row, self.memory = row, memory

    def start(self):
        told = [self.memory.get("known"), self.memory.get("none"), self.memory.get("a\0b")]
        self.memory.put("mine", (1, None), [1.0, 0.0])
        self.memory.put("far", None)
        found = [(hit.key, hit.value, hit.score) for hit in self.memory.search([2, 0], k=5000)]
        return json.dumps([told, self.memory.get("mine"), self.memory.get("far"), found])

    def step(self, reply):
        self.memory.put("mine", reply)
        self.memory.put("said", reply, [0.5])
        return "again?", reply == "end"


class SoonDiary(Diary):
    """The same in an event loop."""

    async def start(self):
        await asyncio.sleep(0)
        return State(messages=(Message(role="user", content=Diary.start(self)),))

    async def step(self, action):
        done = Diary.step(self, action.text)[1]
        return Ending() if done else State(messages=(Message(role="user", content="again?"),))


class Wire:
    """What stands between an episode and the service: nothing but the bytes of the contract."""

    def __init__(self, made):
        self.service = EnvironmentService(made)
        self.service.configure({})
        self.plugin = SimpleNamespace(uses_memory=self.service.uses_memory)
        self.num_asked = 0

    uses_memory = property(lambda self: self.plugin.uses_memory)

    async def ask_soon(self, call, request, seconds, goes_on=None):
        answer = await self.ask(call, request)
        while goes_on is not None and (further := await goes_on(answer)) is not None:
            answer = await self.ask(*further)
        return answer

    async def ask(self, call, request):
        handler, form = self.service.methods[call.path.rpartition("/")[2]]
        self.num_asked += 1
        answer = await handler(form.FromString(request.SerializeToString()))
        return call.answer.FromString(answer.SerializeToString())


class Scripted:
    """A plugin that answers as it was told to, whatever it is asked."""

    def __init__(self, *turns, uses_memory=True):
        self.turns, self.uses_memory, self.heard = list(turns), uses_memory, []

    async def ask_soon(self, call, request, seconds, goes_on):
        further = call, request
        while further is not None:
            self.heard.append(further[1])
            answer = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
            further = await goes_on(answer)
        return answer


def said(text, turn=0):
    return Action(message=Message(role="assistant", content=text), text=text, turn=turn)


async def played(episode):
    first = (await episode.start()).messages[0].text
    again = await episode.step(said("one"))
    ending = await episode.step(said("end", 1))
    await episode.close()
    assert (again.messages[0].text, ending) == ("again?", Ending())
    return first


@pytest.mark.parametrize("made", [Diary, SoonDiary])
async def test_a_plugin_reads_and_writes_what_it_would_in_the_actors_process(made):
    here, there = EpisodeMemory(ENTRIES), EpisodeMemory(ENTRIES)
    builder = wrap_class(made, {}, "environment")
    wire = Wire(made)

    in_process = await played(build_episode(builder, ROW, here))
    by_contract = await played(SidecarEpisode(wire, ROW, there))

    assert by_contract == in_process
    assert "near" in by_contract
    assert there.finish() == here.finish() != ()
    assert wire.num_asked == 1 + 3 + 2 + 1, "what it knows itself was asked"


async def test_what_memory_does_not_take_is_raised_in_the_authors_code():
    class Bold(Diary):
        def start(self):
            for key, value, vector in (("k" * 257, 1, None), ("a", math.nan, None), ("a", 1, ())):
                with pytest.raises(MemoryRefused):
                    self.memory.put(key, value, vector)
            for number in range(WRITES_MAX):
                self.memory.put(f"k{number}", number)
            with pytest.raises(MemoryRefused, match="16 keys"):
                self.memory.put("another", 1)
            for vector, k in (((0.0,), 1), ((1.0,), 0)):
                with pytest.raises(MemoryRefused):
                    self.memory.search(vector, k)
            return "held"

        def step(self, reply):
            self.memory.put("one more", reply)

    memory = EpisodeMemory()
    episode = SidecarEpisode(Wire(Bold), ROW, memory)
    assert (await episode.start()).messages[0].text == "held"
    with pytest.raises(PluginError, match="16 keys"):
        await episode.step(said("x"))
    assert len(memory.finish()) == WRITES_MAX


async def test_who_waits_for_memory_ends_with_its_episode():
    heard = []

    class Waits(Diary):
        def start(self):
            try:
                return self.memory.get("known")
            finally:
                heard.append(True)

    wire = Wire(Waits)
    start, form = wire.service.methods["Start"]
    turn = await start(form(episode="e", row_json="{}"))
    assert turn.reads.reads[0].key == "known"
    close, form = wire.service.methods["Close"]
    await close(form(episode="e"))
    go_on, form = wire.service.methods["Continue"]
    answer = await go_on(form(episode="e", found=[contract.MemoryFound()]))
    assert (answer.failure.code, answer.failure.owner) == ("unknown-episode", 3)
    while not heard:
        await asyncio.sleep(0.01)


async def test_a_step_beside_an_unanswered_read_and_an_answer_to_nothing_are_refused():
    wire = Wire(Diary)
    handlers = {name: handler for name, (handler, _) in wire.service.methods.items()}
    await handlers["Start"](contract.StartRequest(episode="e", row_json=json.dumps(ROW)))
    step = contract.StepRequest(episode="e", message=contract.Message(role="assistant"))
    assert "still answers" in (await handlers["Step"](step)).failure.message
    found = [contract.MemoryFound()] * 2
    both = await handlers["Continue"](contract.ContinueRequest(episode="e", found=found))
    assert "2 reads were answered" in both.failure.message

    asked = served.AskedMemory(lambda read: None)
    with pytest.raises(InfrastructureError, match="waits for"):
        asked.answer(contract.MemoryFound())


def reads(*asked):
    return contract.Turn(reads=contract.MemoryReads(reads=asked))


def by_key(key="known"):
    return contract.MemoryRead(key=key)


def search(vector=(1.0,), k=1):
    return contract.MemoryRead(search=contract.MemorySearch(vector=vector, k=k))


def writes(*given):
    turn = contract.Turn(state=contract.State())
    turn.writes.extend(contract.MemoryWrite(**{"value_json": "1", **one}) for one in given)
    return turn


HOSTILE = {
    "a key too long": (writes({"key": "k" * 257}), "256 bytes"),
    "no key": (writes({}), "printable"),
    "a key to confuse": (writes({"key": "a\x1b[2J"}), "printable"),
    "a value too long": (
        writes({"key": "a", "value_json": json.dumps("x" * 4096)}),
        "4096 at most",
    ),
    "a value far too long": (writes({"key": "a", "value_json": " " * 20_000}), "20000 characters"),
    "a value that is none": (writes({"key": "a", "value_json": "{"}), "no JSON"),
    "a value without end": (writes({"key": "a", "value_json": "[" * 9000}), "no JSON"),
    "a number without end": (writes({"key": "a", "value_json": "9" * 9000}), "no JSON"),
    "no number": (writes({"key": "a", "value_json": "NaN"}), "finite"),
    "a vector too long": (writes({"key": "a", "vector": [1.0] * 257}), "257 numbers"),
    "a vector of no numbers": (writes({"key": "a", "vector": [math.nan]}), "no direction"),
    "a vector of nothing": (writes({"key": "a", "vector": [0.0, 0.0]}), "no direction"),
    "too many writes": (writes(*[{"key": f"k{n}"} for n in range(17)]), "at most 16"),
    "a read of nothing": (reads(contract.MemoryRead()), "no key and no vector"),
    "no read": (reads(), "0 reads"),
    "too many reads": (reads(*[by_key()] * 17), "17 reads"),
    "all, many times": (reads(*[search(k=ENTRIES_MAX)] * 2), "8192 entries"),
    "a number of its own": (reads(search(k=(1 << 32) - 1)), "4294967295 entries"),
    "a search for nothing": (reads(search(k=0)), "1 or more"),
    "a search for no vector": (reads(search(())), "0 numbers"),
    "a search for no number": (reads(search((math.inf,))), "no direction"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_no_plugin_may_say_of_memory_is_the_plugins_fault_and_kept_out(name):
    turn, word = HOSTILE[name]
    memory = EpisodeMemory(ENTRIES)
    with pytest.raises(PluginError, match=word):
        await SidecarEpisode(Scripted(turn), ROW, memory).start()
    assert {one.key for one in memory.finish()} <= {f"k{n}" for n in range(WRITES_MAX)}


async def test_seventeen_keys_in_two_answers_are_one_too_many():
    some = writes(*[{"key": f"a{n}"} for n in range(9)])
    more = writes(*[{"key": f"b{n}"} for n in range(8)])
    memory = EpisodeMemory()
    episode = SidecarEpisode(Scripted(some, more), ROW, memory)
    await episode.start()
    with pytest.raises(PluginError, match="16 keys at most"):
        await episode.step(said("x"))


async def test_who_did_not_say_that_it_uses_memory_has_none():
    for turn in (reads(by_key()), writes({"key": "a"})):
        memory = EpisodeMemory(ENTRIES)
        with pytest.raises(PluginError, match="did not say that it uses it"):
            await SidecarEpisode(Scripted(turn, uses_memory=False), ROW, memory).start()
        assert memory.finish() == ()


async def test_a_read_finds_what_its_own_episode_was_given_and_nothing_of_others():
    over = contract.Turn(state=contract.State())
    plugin = Scripted(reads(by_key("theirs"), by_key(), search((1.0, 0.0), k=9)), over)
    other = EpisodeMemory({"theirs": write("theirs", '"secret"', (1.0, 0.0))})
    await SidecarEpisode(plugin, ROW, EpisodeMemory(ENTRIES)).start()
    found = plugin.heard[1].found
    assert [[hit.key for hit in one.hits] for one in found] == [[], ["known"], ["near", "far"]]
    assert other.get("theirs") == "secret"


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
KEYS = st.text(max_size=300)
WRITES = st.builds(
    contract.MemoryWrite,
    key=KEYS | st.just("known"),
    value_json=st.text(max_size=60) | st.sampled_from(["null", "[1, 2]", "1e999", '{"a":1,"a":2}']),
    vector=st.lists(NUMBERS, max_size=4),
)
READS = st.builds(contract.MemoryRead, key=KEYS) | st.builds(
    contract.MemoryRead,
    search=st.builds(
        contract.MemorySearch,
        vector=st.lists(NUMBERS, max_size=4),
        k=st.integers(0, (1 << 32) - 1),
    ),
)
TURNS = st.builds(
    contract.Turn,
    reads=st.builds(contract.MemoryReads, reads=st.lists(READS, max_size=18)),
    writes=st.lists(WRITES, max_size=18),
)


@given(turns=st.lists(TURNS, max_size=4))
@settings(max_examples=60, deadline=None)
def test_whatever_a_plugin_says_of_memory_is_taken_within_the_limits_or_refused(turns):
    memory = EpisodeMemory(ENTRIES)
    desk = desks.MemoryDesk(memory)
    try:
        for turn in turns:
            if desk.take(turn, uses_memory=True):
                found = desk.find(turn.reads)
                assert len(found) == len(turn.reads.reads)
                assert sum(len(one.hits) for one in found) <= desks.FOUND_MAX
    except PluginError:
        pass
    written = memory.finish()
    assert not written or find_wrong_writes(written) == ""


async def test_reading_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(desks, "ASKS_MAX", 5)
    plugin = Scripted(reads(by_key()))
    with pytest.raises(PluginError, match="more than 5 times"):
        await SidecarEpisode(plugin, ROW, EpisodeMemory()).start()
    assert len(plugin.heard) == 6


async def test_what_is_written_beside_a_failure_counts_for_nothing():
    turn = writes({"key": "a"})
    turn.failure.message = "no"
    memory = EpisodeMemory()
    with pytest.raises(PluginError, match="no"):
        await SidecarEpisode(Scripted(turn), ROW, memory).start()
    assert memory.finish() == ()
