"""Tasksets of verifiers through the adapter, with a host that plays by itself; the package in the slow tier.

The endpoint is the real one: what stands for a harness asks it over HTTP.
"""

import asyncio
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.environments.adapters import verifiers, verifiers_host
from rollout.environments.adapters.verifiers import Verifiers, build_config, merge, split_of
from rollout.environments.adapters.verifiers_host import OUTSIDE, HarnessOutcome, read_episode
from rollout.environments.plugin import wrap_class
from rollout.errors import DataError, InfrastructureError, SpecError
from rollout.turns import Action
from rollout.types import Message


def task(number):
    data = SimpleNamespace(prompt_text=f"{number}+1=", name=None, answer=number + 1)
    return SimpleNamespace(key=f"key {number}", data=data)


class Host:
    """Asks ``turns`` times over HTTP in a thread, then says ``played``."""

    def __init__(self, turns=1, played=None, keys=None):
        self.turns, self.played = (
            turns,
            played or HarnessOutcome(kind="agent-completed", reward=1.0),
        )
        self.tasks = [task(n) for n in range(60)]
        self.pool = ThreadPoolExecutor(2)
        self.statuses = []

    def load(self, config):
        return self.tasks

    def play(self, config, task, endpoint) -> Future[HarnessOutcome]:
        return self.pool.submit(self._chat, task.data.prompt_text, endpoint)

    def _chat(self, prompt, endpoint):
        said = [{"role": "user", "content": prompt}]
        for _ in range(self.turns):
            reply = httpx.post(
                endpoint.url + "/chat/completions",
                json={"model": "policy", "messages": said},
                headers={"x-api-key": endpoint.key},
                timeout=20,
            )
            self.statuses.append(reply.status_code)
            if reply.status_code != 200:
                break
            said.append(reply.json()["choices"][0]["message"])
            said.append({"role": "user", "content": "and now?"})
        return self.played


@pytest.fixture
def host(monkeypatch):
    def use(**options):
        made = Host(**options)
        monkeypatch.setattr(verifiers, "HOST", made)
        return made

    return use


def say(text):
    return Action(message=Message(role="assistant", content=text), text=text)


def begun(number=3):
    builder = wrap_class(Verifiers, {"taskset": "sums"}, "env")
    return builder.build({"task": number, "key": f"key {number}"})


async def test_each_request_of_a_harness_is_a_turn(host):
    host(turns=2)
    env = begun()
    first = await env.start()
    second = await env.step(say("four"))
    end = await env.step(say("five"))
    await env.close()

    assert [one.text for one in first.messages] == ["3+1="]
    assert [one.text for one in second.messages] == ["and now?"]
    assert second.after is None
    assert (end.kind, end.turn_reward, end.signals["turns"]) == ("agent-completed", 1.0, 2.0)


@pytest.mark.parametrize(
    ("owner", "error"), [("infrastructure", InfrastructureError), ("task", DataError)]
)
async def test_an_end_that_is_not_the_policys_is_raised_as_its_owners(host, owner, error):
    host(played=HarnessOutcome(kind="failed", owner=owner, detail="SandboxError: gone"))
    env = begun()
    await env.start()

    with pytest.raises(error, match="verifiers: SandboxError: gone"):
        await env.step(say("x"))
    await env.close()


async def test_a_harness_that_asks_nothing_is_its_tasks(host):
    host(turns=0)
    env = begun()
    with pytest.raises(DataError, match="asked for no reply: agent-completed"):
        await env.start()
    await env.close()


async def test_an_episode_that_is_given_up_leaves_no_harness_that_waits(host):
    made = host(turns=5)
    env = begun()
    await env.start()
    await env.close()
    await env.close()

    await asyncio.to_thread(made.pool.shutdown)
    assert made.statuses == [503]


async def test_a_taskset_that_gives_other_tasks_is_named(host):
    host()
    env = wrap_class(Verifiers, {"taskset": "sums"}, "env").build({"task": 3, "key": "old"})
    with pytest.raises(DataError, match="task 3 of the taskset is another one"):
        await env.start()
    await env.close()


def test_every_task_is_a_row_of_one_split(host):
    host()
    builder = Verifiers("sums")
    rows = {split: builder.rows(split) for split in ("train", "selection", "report")}

    places = [row["task"] for found in rows.values() for row in found]
    assert sorted(places) == list(range(60))
    assert rows["train"][0]["answer"] == str(rows["train"][0]["task"] + 1)


@given(st.text(max_size=30))
def test_a_task_stays_in_its_split(key):
    assert split_of(key) == split_of(key)
    assert split_of(key) in ("train", "selection", "report")


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"settings": "{"}, "settings are no JSON"),
        ({"settings": "[]"}, "settings must be a JSON object"),
        ({"turns": "0"}, "turns must be a whole number of 1 or more, got '0'"),
        ({"limit": "ten"}, "limit must be a whole number"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(given_, said):
    with pytest.raises(SpecError, match=said):
        Verifiers("sums", **given_)


def test_settings_are_merged_into_what_verifiers_is_told():
    settings = '{"agent": {"runtime": {"type": "docker"}}, "taskset": {"level": 2}}'
    env = build_config("sums", "own", "4", "", settings)["env"]

    assert env["agent"] == {"runtime": {"type": "docker"}, "max_turns": 4}
    assert env["taskset"] == {"id": "sums", "level": 2}
    assert build_config("s", "null", "4", "9", "{}")["env"]["agent"]["harness"] == {"id": "null"}


PLAIN = st.dictionaries(st.sampled_from("abc"), st.integers() | st.none(), max_size=3)
NESTED = st.dictionaries(st.sampled_from("abc"), st.integers() | PLAIN, max_size=3)


@given(NESTED, NESTED)
def test_what_is_merged_last_wins_and_nothing_else_is_lost(first, second):
    both = merge(first, second)
    assert set(both) == set(first) | set(second)
    assert merge(both, second) == both
    assert merge({}, second) == second


def test_the_package_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(SpecError, match=r"pip install 'verifiers>=0\.4'"):
        verifiers_host.VerifiersHost().load(build_config("s", "null", "4", "", "{}"))


# -- what an episode came to ------------------------------------------------------------------------


def trace(ok=True, errors=(), rewards=None, metrics=None, stop="max_turns"):
    rewards = {} if rewards is None else rewards
    return SimpleNamespace(
        ok=ok,
        errors=list(errors),
        rewards=rewards,
        metrics=metrics or {},
        stop_condition=stop,
        reward=sum(one.score * one.weight for one in rewards.values() if one is not None),
    )


def failed(kind):
    return SimpleNamespace(type=kind, message="why")


def test_rewards_are_weighed_and_told_unweighted_beside_metrics():
    rewards = {
        "right": SimpleNamespace(score=1.0, weight=0.5),
        "unscored": None,
    }
    found = read_episode(
        SimpleNamespace(errors=[], traces=[trace(rewards=rewards, metrics={"len": 3, "no": None})])
    )

    assert (found.kind, found.owner, found.reward) == ("max-turns", "policy", 0.5)
    assert found.signals == {"reward_right": 1.0, "len": 3.0}


@pytest.mark.parametrize("kind", [*sorted(OUTSIDE), "TaskError", "EnvError", "KeyError"])
def test_the_boundary_that_an_error_crossed_says_whose_it_is(kind):
    inside = read_episode(SimpleNamespace(errors=[], traces=[trace(False, [failed(kind)])]))
    outside = read_episode(SimpleNamespace(errors=[failed(kind)], traces=[]))

    assert inside.owner == outside.owner == ("infrastructure" if kind in OUTSIDE else "task")
    assert inside.detail == f"{kind}: why"


def test_errors_that_were_recovered_from_are_forgotten():
    recovered = trace(True, [failed("SandboxError")])
    assert read_episode(SimpleNamespace(errors=[], traces=[recovered])).owner == "policy"


def test_more_numbers_than_an_episode_may_tell_are_cut():
    many = trace(metrics={f"m{n}": n for n in range(99)})
    found = read_episode(SimpleNamespace(errors=[], traces=[many]))
    assert len(found.signals) == verifiers_host.SIGNALS_MAX
