"""Every `rollout ...` that a page, a remedy, a field's description, a chart or a sample names can be typed."""

import re
import subprocess
from pathlib import Path

import pytest
import typer

from rollout.cli.main import app

ROOT = Path(__file__).parents[2]
ENDINGS = (".md", ".py", ".yaml", ".txt", ".tpl", ".ipynb", ".toml", ".json")
NOT_READ_BY_USERS = ("tests/", "e2e/", "constraints.txt")
START = r"(?:^|[;&|(] ?|\$ |then |or )"
COMMAND = re.compile(
    START + r"rollout (?P<first>[a-z][a-z-]*)(?: (?P<second>[a-z][a-z-]*))?(?P<rest>[^`\n]*)"
)
SPANS = re.compile(r"`([^`\n]+)`")
BLOCKS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def named_files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    names = [name for name in listed.split() if name.endswith(ENDINGS)]
    return [name for name in names if not name.startswith(NOT_READ_BY_USERS)]


def commands_of(text):
    lines = [line for block in BLOCKS.findall(text) for line in block.splitlines()]
    for span in (*SPANS.findall(text), *lines):
        yield from COMMAND.finditer(span.strip())


def options_of(command):
    return {name for parameter in command.params for name in parameter.opts} | {"--help"}


def problem_of(found, top):
    command = top.commands.get(found["first"])
    if command is None:
        return f"there is no command {found['first']!r}"
    if hasattr(command, "commands"):
        if found["second"] is None:
            return None
        command = command.commands.get(found["second"])
        if command is None:
            return f"{found['first']} has no command {found['second']!r}"
    nested = re.match(r"\s*([a-z-]+)", found["rest"]) if hasattr(command, "commands") else None
    if nested:
        command = command.commands.get(nested[1])
        if command is None:
            return f"{found['first']} {found['second']} has no command {nested[1]!r}"
    used = re.findall(r"(?<=\s)--[a-z][a-z-]+", re.split(r"[|;&#]", found["rest"])[0])
    unknown = set(used) - options_of(command) - options_of(top)
    return f"no options {sorted(unknown)}" if unknown else None


@pytest.fixture(scope="module")
def top():
    return typer.main.get_command(app)


def test_every_named_command_and_option_exists(top):
    texts = {name: (ROOT / name).read_text() for name in named_files()}
    found = [(name, one) for name, text in texts.items() for one in commands_of(text)]

    problems = [f"{name}: {one[0].strip()}: {problem_of(one, top)}" for name, one in found]

    assert len(found) > 50
    assert [line for line in problems if not line.endswith(": None")] == []


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("see `rollout plugins reload`", False),
        ("`rollout runs shows first`", False),
        ("`rollout plan -f a.yaml --offlin`", False),
        ("`rollout plan -f a.yaml --offline`", True),
        ("`kubectl rollout restart`", True),
    ],
)
def test_a_command_that_does_not_exist_is_found(top, text, known):
    assert all(problem_of(one, top) is None for one in commands_of(text)) == known
