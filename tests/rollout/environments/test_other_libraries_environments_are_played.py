"""Environments of Gymnasium, through the adapter: what it takes of spaces, actions and rewards; the package itself in the slow tier."""

import subprocess
import sys
import types

import pytest

from rollout.environments.adapters.attempts import MISTAKES_MAX
from rollout.environments.adapters.gymnasium import GymnasiumText, RememberingGymnasium
from rollout.environments.adapters.seeds import SEEDS
from rollout.environments.memory import EpisodeMemory, build_episode, wants_memory
from rollout.environments.plugin import wrap_class
from rollout.errors import SpecError
from rollout.turns import Action, Ending, State
from rollout.types import Message


class Text:
    min_length, max_length = 1, 8

    def contains(self, said):
        return isinstance(said, str) and 1 <= len(said) <= 8 and said.islower()


class Discrete:
    n, start = 3, 0

    def contains(self, said):
        return 0 <= said < 3


class Box: ...


class Counting:
    """Ends at the third step; a reward of a half each."""

    observation_space, action_space = Text(), Discrete()

    def __init__(self):
        self.given = {}

    def reset(self, *, seed):
        self.steps = 0
        return f"world {seed}", {}

    def step(self, action):
        self.steps += 1
        return f"took {action}", 0.5, self.steps == 3, False, {}

    def close(self):
        self.closed = True


@pytest.fixture
def made(monkeypatch):
    env = Counting()
    module = types.SimpleNamespace(make=lambda name, **given: env.given.update(given) or env)
    monkeypatch.setitem(sys.modules, "gymnasium", module)
    return env


def say(text):
    return Action(message=Message(role="assistant", content=text), text=text)


async def test_replies_are_actions_and_rewards_are_those_of_turns(made):
    builder = wrap_class(GymnasiumText, {"id": "counting", "instruction": "Count."}, "env")
    row = builder.source("train", 0).rows([5])[0]
    env = builder.build(row)

    begun = await env.start()
    said = [await env.step(say(text)) for text in ("1", " 2 ", "0")]
    await env.close()

    assert begun.messages[0].text == "Count.\n\nworld 5"
    assert [one.turn_reward for one in said] == [0.5, 0.5, 0.5]
    assert said[1].messages[0].text == "took 2"
    assert (said[2].kind, said[2].signals) == ("terminated", {"steps": 3.0, "mistakes": 0.0})
    assert made.closed


async def test_a_reply_that_is_no_action_is_told_and_ends_the_episode_when_it_goes_on(made):
    env = GymnasiumText({"seed": 1}, "counting")
    await env.start()

    said = [await env.step(say("north")) for _ in range(MISTAKES_MAX)]

    assert said[0].messages[0].text == "No action. Answer with a whole number from 0 to 2."
    assert isinstance(said[0], State)
    assert isinstance(said[-1], Ending)
    assert (said[-1].kind, said[-1].owner) == ("no-action", "policy")


async def test_spaces_that_are_no_texts_are_refused_by_name(made):
    made.observation_space = Box()
    with pytest.raises(SpecError, match="its observations are Box"):
        await GymnasiumText({"seed": 1}, "counting").start()


async def test_an_environment_that_keeps_something_is_made_with_its_memory(made):
    builder = wrap_class(RememberingGymnasium, {"id": "counting", "instruction": "Count."}, "env")
    assert await wants_memory(builder)
    row, memory = builder.source("train", 0).rows([5])[0], EpisodeMemory()
    env = build_episode(builder, row, memory)

    begun = await env.start()
    await env.close()

    assert begun.messages[0].text == "Count.\n\nworld 5"
    assert made.given == {"memory": memory}
    made.given.clear()
    await wrap_class(GymnasiumText, {"id": "counting"}, "env").build(row).start()
    assert made.given == {}


def test_no_world_is_in_two_splits():
    seen = [set(seeds) for seeds in SEEDS.values()]
    assert len(set.union(*seen)) == sum(map(len, seen))


REAL = """
import asyncio, sys
import gymnasium
from gymnasium import spaces
from rollout.environments.adapters.gymnasium import GymnasiumText, RememberingGymnasium
from rollout.environments.memory import EpisodeMemory
from rollout.turns import Action
from rollout.types import Message

class Guess(gymnasium.Env):
    observation_space = spaces.Text(200)
    action_space = spaces.Discrete(10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(10))
        return "Guess", {}

    def step(self, action):
        right = action == self.number
        return "right" if right else "wrong", float(right), right, False, {}

gymnasium.register("Guess-v0", entry_point=Guess, max_episode_steps=10)

async def play(seed):
    env = GymnasiumText({"seed": seed}, "Guess-v0")
    said = [await env.start()]
    for number in range(10):
        text = str(number)
        said.append(await env.step(Action(message=Message(role="assistant", content=text), text=text)))
        if type(said[-1]).__name__ == "Ending":
            break
    await env.close()
    return [(type(one).__name__, one.turn_reward) for one in said]

class Noted(Guess):
    def __init__(self, memory):
        self.memory = memory

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.memory.put("worlds", (self.memory.get("worlds") or 0) + 1)
        return f"World{self.memory.get('worlds')}", {}

gymnasium.register("Noted-v0", entry_point=Noted, max_episode_steps=10)

async def begin(memory):
    env = RememberingGymnasium("Noted-v0").build({"seed": 7}, memory)
    said = await env.start()
    await env.close()
    return said.messages[0].text

kept = EpisodeMemory()
assert [asyncio.run(begin(kept)) for _ in "ab"] == ["World1", "World2"]
first, again = asyncio.run(play(7)), asyncio.run(play(7))
assert first == again and first[-1] == ("Ending", 1.0), first
print("played", gymnasium.__version__)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_package_itself_is_played_the_same_from_one_seed(packages_beside):
    folder = packages_beside("gymnasium==1.4.0", "python3")
    program = f"import sys; sys.path.append({str(folder)!r})\n{REAL}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "played" in done.stdout
