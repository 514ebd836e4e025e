import textwrap
import uuid

import pytest

from rollout.environments.build import build_environment
from rollout.errors import DataError, SpecError
from rollout.turns import Action, Ending, State
from rollout.types import Message
from rollout_api.v1alpha1.environment import Environment

CODE = """
    class Guess:
        '''One episode: guess the number.'''

        def __init__(self, row, most="10"):
            self.row, self.most = row, int(most)

        @classmethod
        def rows(cls, split):
            return [{"prompt": f"{split} {i}", "answer": i} for i in range(3)]

        def start(self):
            return [{"role": "system", "content": "Guess."}, f"0..{self.most}?"]

        def step(self, reply):
            if reply == self.row["answer"]:
                return True
            return "again", False

    class Builder:
        def __init__(self, word="x"):
            self.word = word

        def build(self, row):
            return Guess(row, most=self.word)

    class Odd:
        def __init__(self, row):
            pass

        def start(self):
            return 3

        def step(self, reply):
            return None

    class Empty(Guess):
        @classmethod
        def rows(cls, split):
            return []

    class Nameless(Guess):
        @classmethod
        def rows(cls, split):
            return [{"question": "x"}]

    class Nothing:
        pass

    class Explodes:
        def __init__(self):
            raise RuntimeError("no key")

        def build(self, row):
            pass

    class Leaves(Explodes):
        def __init__(self):
            raise SystemExit("no key")
"""


@pytest.fixture
def build(tmp_path):
    module = f"my_env_{uuid.uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(CODE))

    def build_class(name, **parameters):
        listed = [{"name": key, "value": value} for key, value in parameters.items()]
        python = {"module": module, "className": name, "parameters": listed}
        return build_environment(Environment.model_validate({"python": python}), folders=[tmp_path])

    return build_class


def action(text):
    return Action(message=Message(role="assistant", content=text), text=text)


async def test_an_episodes_class_is_enough(build):
    builder = build("Guess", most="5")
    source = builder.source("train", 0)
    row = source.rows([2])[0]
    episode = builder.build(row)

    assert [r["prompt"] for r in source.rows(range(len(source)))] == [
        "train 0",
        "train 1",
        "train 2",
    ]
    assert (await episode.start()).messages == (
        Message(role="system", content="Guess."),
        Message(role="user", content="0..5?"),
    )
    said = await episode.step(action("1"))
    assert said == State(messages=(Message(role="user", content="again"),))
    assert await episode.step(action("2")) == Ending()


async def test_a_builder_takes_the_parameters(build):
    builder = build("Builder", word="7")

    assert builder.source("train", 0) is None
    state = await builder.build({"answer": "1"}).start()
    assert state.messages[1].text == "0..7?"


async def test_what_is_not_messages_is_named(build):
    episode = build("Odd").build({})

    with pytest.raises(TypeError, match="Odd: expected messages, got int"):
        await episode.start()
    with pytest.raises(TypeError, match=r"Odd: step\(\) must return \(messages, done\), got None"):
        await episode.step(action("x"))


def test_an_environment_without_rows_or_with_broken_ones_is_refused(build):
    with pytest.raises(DataError, match=r"Empty\.rows\('train'\) gave no rows"):
        build("Empty").source("train", 0)
    with pytest.raises(DataError, match=r"Nameless.*row 0: field 'prompt' is missing"):
        build("Nameless").source("train", 0)


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("Nothing", {}, r"expected a class with build\(row\), or with start\(\) and step\(reply\)"),
        ("Missing", {}, "has no 'Missing'; it has Guess, Builder"),
        ("Explodes", {}, r"cannot be built: RuntimeError: no key \(my_env_"),
        ("Leaves", {}, r"cannot be built: SystemExit: no key \(my_env_"),
        ("Builder", {"wrod": "x"}, "cannot be built: TypeError"),
    ],
)
def test_a_class_that_is_no_environment_is_refused(build, name, parameters, says):
    with pytest.raises(SpecError, match=says):
        build(name, **parameters)
