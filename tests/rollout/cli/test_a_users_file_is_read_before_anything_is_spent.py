"""``rollout validate`` reads the Python files that a manifest names, and runs none of them."""

import json

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.runs.manifest import load_documents
from rollout.runs.validation import validate_documents

MANIFEST = """\
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: arithmetic}}
spec:
  model: {{uri: "rollout://tiny-adder"}}
  code: {{path: code}}
  train:
    algorithm: {{grpo: {{promptsPerStep: 2, groupSize: 2}}}}
    environment: {environment}
    rewards:
      - python: {python}
    maxSteps: 1
{rest}"""
ARITHMETIC = "{builtin: {name: arithmetic}}"
GOOD = "def brevity(prompts, completions, rows):\n    return [0.0] * len(rows)\n"
RAN = "raise SystemExit('this file was run')\n"


@pytest.fixture
def validate(tmp_path):
    (tmp_path / "code").mkdir()

    def called(python, text=GOOD, environment=ARITHMETIC, rest=""):
        (tmp_path / "my_rewards.py").write_text(text)
        (tmp_path / "code" / "judges.py").write_text(text)
        file = tmp_path / "run.yaml"
        file.write_text(MANIFEST.format(python=python, environment=environment, rest=rest))
        done = CliRunner().invoke(app, ["validate", "-f", str(file), "--output", "json"])
        found = json.loads(done.stdout)["problems"]
        problems = [(one["line"], one["problem"]) for one in found]
        assert done.exit_code == (2 if problems else 0), done.output
        return [
            (
                line,
                one["field"],
                one["reason"],
                one["message"].replace(f"{tmp_path}/", ""),
                one["fix"],
            )
            for line, one in problems
        ]

    return called


FIELD = "spec.train.rewards[0].python"


def test_a_file_that_is_not_there_is_named_with_those_that_are(validate):
    [found] = validate("{path: my_reward.py, function: brevity}")
    assert found == (
        11,
        f"{FIELD}.path",
        "FileNotFound",
        "there is no file my_reward.py",
        "write a path from the manifest's folder; the folder has my_rewards.py",
    )


def test_a_file_that_python_cannot_read_is_named_with_its_line(validate):
    [found] = validate("{path: my_rewards.py, function: brevity}", "x = 1\ndef brevity(:\n")
    assert found[1:4] == (FIELD, "CodeNotParsed", "my_rewards.py:2: invalid syntax")


def test_a_function_that_is_not_there_is_named_with_the_nearest(validate):
    [found] = validate("{path: my_rewards.py, function: brevety}")
    assert found[1:] == (
        FIELD,
        "NameNotFound",
        "my_rewards.py has no 'brevety'",
        "it has brevity",
    )


@pytest.mark.parametrize(
    ("head", "python", "why"),
    [
        ("def brevity(completions):", "", "too many positional arguments"),
        (
            "def brevity(prompts, completions, rows, more):",
            "",
            "missing a required argument: 'more'",
        ),
        (
            "def brevity(prompts, completions, rows):",
            ", parameters: [{name: limit, value: '3'}]",
            "got an unexpected keyword argument 'limit'",
        ),
    ],
)
def test_a_function_that_no_batch_can_be_given_to_is_refused(validate, head, python, why):
    text = f"{head}\n    return []\n"
    [found] = validate(f"{{path: my_rewards.py, function: brevity{python}}}", text)
    assert found[2] == "WrongArguments"
    assert found[3].startswith(
        "my_rewards.py:1: brevity is called with (prompts, completions, rows"
    )
    assert found[3].endswith(why)


@pytest.mark.parametrize(
    "text",
    [
        GOOD + RAN,
        "def brevity(*batch, **parameters): return []\n",
        "def brevity(prompts, completions, rows, *, scale='1'): return []\n",
        "import functools\n@functools.cache\ndef brevity(one): return []\n",
        "from judges import *\n",
        "def __getattr__(name): return print\n",
        "globals()['brevity'] = print\n",
        "try:\n    from fast import brevity\nexcept ImportError:\n    brevity = None\n",
        "class brevity:\n    def score(self, *batch): return []\n",
        "first, brevity = 1, 2\n",
    ],
)
def test_what_is_right_or_only_running_could_tell_is_let_pass_and_nothing_is_run(validate, text):
    assert validate("{path: my_rewards.py, function: brevity}", text) == []


def test_a_module_in_the_folder_of_code_is_read_and_another_is_left_open(validate):
    [found] = validate("{module: judges, function: brevety}")
    assert (found[2], found[4]) == ("NameNotFound", "it has brevity")
    assert validate("{module: installed_elsewhere, function: judge}") == []


def test_an_environment_is_a_class_with_the_methods_of_one(validate):
    reward = "{path: my_rewards.py, function: brevity}"
    world = "{python: {module: judges, className: World}}"
    [found] = validate(reward, environment=world)
    assert found[1:3] == ("spec.train.environment.python", "NameNotFound")
    [found] = validate(reward, f"{GOOD}class World:\n    def begin(self): ...\n", world)
    assert found[2:4] == (
        "WrongMethods",
        "code/judges.py:3: expected a class with build, or with start and step; World has begin",
    )
    episode = "class World:\n    def start(self): ...\n    def step(self, reply): ...\n"
    assert validate(reward, GOOD + episode, world) == []
    assert validate(reward, f"{GOOD}class World(dict): ...\n", world) == []


def test_a_suite_and_its_rewards_are_read_too(validate):
    reward = "{path: my_rewards.py, function: brevity}"
    suite = (
        "  evaluations:\n    - {name: quiz, suite: {python: {module: judges, className: Quiz}}}\n"
    )
    [found] = validate(reward, f"{GOOD}class Quiz:\n    def rows(self, split): ...\n", rest=suite)
    assert found[1] == "spec.evaluations[0].suite.python"
    assert found[3].endswith("expected a class with rows and score; Quiz has rows")


def test_files_of_rewards_that_functions_replace_are_not_asked_for(tmp_path):
    file = tmp_path / "run.yaml"
    python = "{path: nowhere.py, function: judge}"
    file.write_text(MANIFEST.format(python=python, environment=ARITHMETIC, rest=""))
    documents = load_documents(file)
    assert len(validate_documents(documents)) == 1
    assert validate_documents(documents, replaces_rewards=True) == []
