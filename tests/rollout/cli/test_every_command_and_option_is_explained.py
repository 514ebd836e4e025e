"""``--help`` says of every command and every option what it is for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer

from rollout.cli.main import app

NUM_COMMANDS_MIN = 40


def commands(one=None, path=("rollout",)) -> Iterator[tuple[str, object]]:
    one = typer.main.get_command(app) if one is None else one
    yield " ".join(path), one
    for name, below in getattr(one, "commands", {}).items():
        yield from commands(below, (*path, name))


ALL = dict(commands())


def test_all_of_them_are_looked_at():
    assert len(ALL) > NUM_COMMANDS_MIN


@pytest.mark.parametrize("name", ALL)
def test_it_says_what_it_is_for_and_so_does_each_option(name):
    command = ALL[name]
    unsaid = [one.opts for one in command.params if not (getattr(one, "help", None) or "").strip()]

    assert (command.help or "").strip()
    assert unsaid == []
