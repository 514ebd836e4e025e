"""Environments of OpenEnv through the adapter, against a client that misbehaves as it is told to; the package itself in the slow tier."""

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.environments.adapters import openenv
from rollout.environments.adapters.attempts import MISTAKES_MAX
from rollout.environments.adapters.openenv_texts import (
    Mistake,
    Wording,
    read_action,
    read_tools,
    tell_observation,
    tell_result,
)
from rollout.environments.plugin import wrap_class
from rollout.errors import DataError, InfrastructureError, SpecError
from rollout.turns import Action, Ending, State
from rollout.types import Message, ToolCall

TEXT = {"required": ["word"], "properties": {"word": {"type": "string"}}}
PAIR = {
    "required": ["x", "y"],
    "properties": {"x": {"type": "integer"}, "y": {}, "metadata": {}},
}
JSONISH = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


class ClosedError(Exception): ...


def told(observation, reward=None, done=False):
    return types.SimpleNamespace(observation=observation, reward=reward, done=done)


class Client:
    """Three steps of a half each; ``fail`` is raised by the next call."""

    fail = None

    def __init__(self, **options):
        self.options, self.sent, self.closed = options, [], False

    async def connect(self):
        self._fail()

    async def reset(self, **given):
        self.sent.append(given)
        return told({"text": f"world {given}", "done": False})

    async def step(self, action):
        self._fail()
        self.sent.append(action)
        if action == {"type": "list_tools"}:
            return told({"tools": [{"name": "add", "description": "Adds.", "input_schema": {}}]})
        done = len(self.sent) == 4
        if "tool_name" in action:
            return told({"result": {"data": 7}, "error": None}, 0.5, done)
        return told({"text": f"took {action}"}, 0.5, done)

    async def close(self):
        self.closed = True

    def _fail(self):
        error, Client.fail = Client.fail, None
        if error is not None:
            raise error


@pytest.fixture
def made(monkeypatch):
    clients = []

    def make(**options):
        clients.append(Client(**options))
        return clients[-1]

    Client.fail = None
    core = types.SimpleNamespace(GenericEnvClient=make)
    monkeypatch.setitem(sys.modules, "openenv", types.SimpleNamespace(core=core))
    monkeypatch.setitem(sys.modules, "openenv.core", core)
    monkeypatch.setitem(
        sys.modules, "websockets.exceptions", types.SimpleNamespace(ConnectionClosed=ClosedError)
    )
    return clients


def say(text, calls=()):
    content = tuple(calls) or text
    return Action(message=Message(role="assistant", content=content), text=text)


def episode(row=None, **parameters):
    given = {"url": "http://nowhere/", "action": "word", **parameters}
    return wrap_class(openenv.OpenEnv, given, "env").build(row or {"seed": 5})


async def test_replies_are_actions_and_rewards_are_those_of_steps(made):
    env = episode(instruction="Play.")

    begun = await env.start()
    said = [await env.step(say(text)) for text in (" a ", "b", "c")]
    await env.close()

    assert begun.messages[0].text == "Play.\n\nworld {'seed': 5}"
    assert made[0].sent[1:] == [{"word": "a"}, {"word": "b"}, {"word": "c"}]
    assert [one.turn_reward for one in said] == [0.5, 0.5, 0.5]
    assert said[0].messages[0].text == "took {'word': 'a'}"
    assert (said[2].kind, said[2].signals) == ("done", {"steps": 3.0, "mistakes": 0.0})
    assert made[0].closed
    assert made[0].options["websocket_ping_interval_s"] is None


async def test_rows_of_the_run_say_what_an_episode_is_reset_with(made):
    env = episode({"split": "train", "index": 3, "other": 1}, reset="split, index")
    await env.start()

    assert made[0].sent == [{"split": "train", "index": 3}]
    with pytest.raises(DataError, match="the row has no 'index', which reset names"):
        await episode({"split": "train"}, reset="split,index").start()


def test_seeds_are_rows_where_nothing_else_is_named(made):
    seeds = openenv.OpenEnv("http://nowhere").source("train", 0)
    assert seeds.rows([7])[0]["seed"] == 7
    assert openenv.OpenEnv("http://nowhere", reset="index").source("train", 0) is None


async def test_tools_of_the_server_are_the_policys(made):
    env = episode(tools="true")
    begun = await env.start()
    good = ToolCall(call_id="c1", name="add", arguments_text="{}", arguments={"a": 1})
    bad = ToolCall(call_id="c2", name="x", arguments_text="{", status="invalid-json")

    said = await env.step(say("", [good, bad]))
    over = await env.step(say("done"))

    assert [tool.name for tool in begun.tools] == ["add"]
    assert made[0].sent[-1] == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}
    first, second = said.messages[0].parts
    assert (first.text, first.is_error, second.is_error) == ("7", False, True)
    assert (over.kind, over.signals) == ("answered", {"steps": 1.0, "mistakes": 1.0})


async def test_an_action_that_the_server_refuses_is_told_and_ends_the_episode_when_it_goes_on(made):
    env = episode()
    await env.start()
    said = []
    for _ in range(MISTAKES_MAX):
        Client.fail = RuntimeError("Server error: no word (code: VALIDATION_ERROR)")
        said.append(await env.step(say("?")))

    assert isinstance(said[0], State)
    assert "no word" in said[0].messages[0].text
    assert isinstance(said[-1], Ending)
    assert (said[-1].kind, said[-1].owner) == ("no-action", "policy")


@pytest.mark.parametrize(
    ("error", "owner"),
    [
        (RuntimeError("Server error: full (code: CAPACITY_REACHED)"), InfrastructureError),
        (RuntimeError("Server error: boom (code: EXECUTION_ERROR)"), DataError),
        (RuntimeError("who knows"), InfrastructureError),
        (ConnectionError("refused"), InfrastructureError),
        (TimeoutError(), InfrastructureError),
        (ClosedError("going away"), InfrastructureError),
    ],
    ids=["full", "its own fault", "unknown", "refused", "silent", "hung up"],
)
async def test_each_failure_has_its_owner(made, error, owner):
    env = episode()
    await env.start()
    Client.fail = error

    with pytest.raises(owner, match="openenv, http://nowhere"):
        await env.step(say("a"))


def test_a_package_that_is_missing_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv", None)
    with pytest.raises(SpecError, match="pip install openenv"):
        openenv.OpenEnv("http://nowhere").source("train", 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "ws://x"}, "url must begin with"),
        ({"url": "http://x", "tools": "yes"}, "tools must be true or false"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(given, said):
    with pytest.raises(SpecError, match=said):
        openenv.OpenEnv(**given)


async def test_a_key_that_is_not_set_is_named(made):
    with pytest.raises(SpecError, match="the variable MY_KEY is not set"):
        await episode(key="MY_KEY").start()


# -- texts ----------------------------------------------------------------------------------------


def test_a_reply_is_the_one_text_that_the_schema_requires_or_json():
    assert read_action(" hi ", TEXT, Wording()) == {"word": "hi"}
    assert read_action('{"x": 1, "y": 2}', PAIR, Wording()) == {"x": 1, "y": 2}
    assert read_action('```json\n{"x": 1}\n```', PAIR, Wording()) == {"x": 1}
    with pytest.raises(Mistake, match="with the fields x, y; got no JSON"):
        read_action("north", PAIR, Wording())
    with pytest.raises(Mistake, match="got list"):
        read_action("[1]", PAIR, Wording())


def test_an_observation_is_its_only_text_or_its_json():
    assert tell_observation({"text": "a", "reward": 1.0, "done": True}, Wording()) == "a"
    assert tell_observation({"text": "a", "lives": 2}, Wording()) == '{"text": "a", "lives": 2}'
    assert tell_observation({"text": "a", "lives": 2}, Wording(observation="lives")) == "2"
    with pytest.raises(DataError, match="has no 'gold'; it has lives"):
        tell_observation({"lives": 2}, Wording(observation="gold"))


@given(JSONISH)
def test_whatever_a_server_sends_is_text_a_tool_or_an_error_by_name(sent):
    assert isinstance(tell_observation(sent, Wording()), str)
    text, is_error = tell_result(sent)
    assert isinstance(text, str)
    assert is_error in (True, False)
    try:
        assert read_tools(sent)
    except DataError as error:
        assert "openenv" in str(error)


@given(st.text(max_size=60), JSONISH.filter(lambda one: isinstance(one, dict)))
def test_whatever_a_policy_says_is_an_action_or_a_mistake(reply, schema):
    try:
        assert isinstance(read_action(reply, schema, Wording()), dict)
    except Mistake as mistake:
        assert "JSON object" in str(mistake)
