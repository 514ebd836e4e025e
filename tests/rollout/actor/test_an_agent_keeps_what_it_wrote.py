"""An agent reads and writes its run's memory by its episode's endpoint: with its key, within the limits, and told what is wrong."""

import json

import pytest
from agent_programs import agent, play_agent
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.environments.agents.asks import AskRefused
from rollout.environments.agents.environment import AgentBuilder
from rollout.environments.agents.memory import answer_memory
from rollout.environments.memory import EpisodeMemory, wants_memory
from rollout.memory import ENTRIES_MAX, MemoryWrite, encode_vector, find_wrong_writes

ENTRIES = {
    "known": MemoryWrite(key="known", value='{"n":[1,"\\u00e4"]}'),
    "near": MemoryWrite(key="near", value='"near"', vector=encode_vector([1.0, 0.5])),
}


class Kept:
    """What is kept, whatever the version."""

    def __init__(self):
        self.asked = []

    async def entries_of(self, version):
        self.asked.append(version)
        return ENTRIES


def ask(memory, what, body):
    given = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads(answer_memory(memory, what, given))


def test_what_was_there_and_what_it_wrote_is_read():
    memory = EpisodeMemory(ENTRIES)
    assert ask(memory, "get", {"key": "known"}) == {"value": {"n": [1, "ä"]}}
    assert ask(memory, "get", {"key": "none"}) == {"value": None}
    assert ask(memory, "put", {"key": "mine", "value": [1, None], "vector": [1, 0]}) == {}
    assert ask(memory, "put", {"key": "known", "value": None}) == {}
    found = ask(memory, "search", {"vector": [2, 0]})["hits"]
    assert [(hit["key"], hit["value"]) for hit in found] == [("mine", [1, None]), ("near", "near")]
    assert [one.key for one in memory.finish()] == ["known", "mine"]


@pytest.mark.parametrize(
    ("what", "body", "status", "word"),
    [
        ("list", {}, 404, "get, put, search"),
        ("get", b"{", 400, "memory/get"),
        ("get", b"\xff", 400, "memory/get"),
        ("get", [], 400, "memory/get"),
        ("get", {"key": 1}, 400, "key"),
        ("get", {"key": "a", "run": "other"}, 400, "unknown field"),
        ("put", {"key": "k" * 257, "value": 1}, 400, "256 bytes"),
        ("put", {"key": "a\u001b[2J", "value": 1}, 400, "printable"),
        ("put", {"key": "a"}, 400, "value"),
        ("put", {"key": "a", "value": "x" * 4096}, 400, "4096 at most"),
        ("put", b'{"key": "a", "value": NaN}', 400, "memory/put"),
        ("put", b'{"key": "a", "value": ' + b"[" * 3000 + b"]" * 3000 + b"}", 400, "memory/put"),
        ("put", b'{"key": "a", "value": ' + b"9" * 3000 + b"}", 400, "memory/put"),
        ("put", {"key": "a", "value": 1, "vector": [1.0] * 257}, 400, "256"),
        ("put", {"key": "a", "value": 1, "vector": []}, 400, "0 numbers"),
        ("put", {"key": "a", "value": 1, "vector": ["1"]}, 400, "memory/put"),
        ("search", {"vector": [0.0]}, 400, "no direction"),
        ("search", {"vector": [1.0], "k": 0}, 400, "k"),
        ("search", {"vector": [1.0], "k": ENTRIES_MAX + 1}, 400, "k"),
    ],
)
def test_what_memory_does_not_take_is_told_to_the_agent(what, body, status, word):
    memory = EpisodeMemory(ENTRIES)
    with pytest.raises(AskRefused, match=word) as refused:
        ask(memory, what, body)
    assert refused.value.status == status
    assert memory.finish() == ()


BODIES = st.binary(max_size=60) | st.dictionaries(
    st.sampled_from(["key", "value", "vector", "k", "run"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    ),
).map(lambda body: json.dumps(body).encode())


@given(
    asked=st.lists(st.tuples(st.sampled_from(["get", "put", "search", "x"]), BODIES), max_size=6)
)
@settings(max_examples=60, deadline=None)
def test_whatever_an_agent_asks_of_memory_is_answered_or_refused(asked):
    memory = EpisodeMemory(ENTRIES)
    for what, body in asked:
        try:
            json.loads(answer_memory(memory, what, body))
        except AskRefused as refused:
            assert refused.status in (400, 404)
    written = memory.finish()
    assert not written or find_wrong_writes(written) == ""


async def test_who_does_not_ask_for_memory_has_none():
    assert not await wants_memory(AgentBuilder(program=agent("")))
    assert await wants_memory(AgentBuilder(program=agent("", memory=True)))


REMEMBERS = """
assert post("/v1/memory/get", {"key": "known"}, key="guessed")[0] == 401
status, found = post("/v1/memory/get", {"key": "known"})
value = json.loads(found)["value"]
reply = chat([user("%s %s" % (status, value["n"][0]))])
post("/v1/memory/put", {"key": "said", "value": reply["content"]})
status, refused = post("/v1/memory/put", {"key": "", "value": 1})
assert status == 400 and json.loads(refused)["error"]["type"] == "invalid_request_error", refused
hits = json.loads(post("/v1/memory/search", {"vector": [1, 0.5], "k": 1})[1])["hits"]
sys.exit(len(hits) - 1)
"""
HAS_NONE = """
status, _ = post("/v1/memory/get", {"key": "known"})
chat([user(str(status))])
"""


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("sandbox_host")
async def test_an_agents_episode_is_given_memory_and_its_writes_go_with_its_sample():
    kept = Kept()
    played, _ = await play_agent(
        agent(REMEMBERS, memory=True), lambda prompt, seed: "well", memory=kept
    )
    (episode,) = played.episodes
    assert (episode.ending, episode.signals["exit_code"]) == ("stop", 0)
    assert episode.messages[0].text == "200 1"
    assert episode.writes == (MemoryWrite(key="said", value='"well"'),)
    assert len(kept.asked) == 1

    played, _ = await play_agent(agent(HAS_NONE), lambda prompt, seed: "x", memory=kept)
    assert played.episodes[0].messages[0].text == "404"
    assert played.episodes[0].writes == ()
    assert len(kept.asked) == 1
