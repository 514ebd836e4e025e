"""Follows a page as a person does: its commands one after the other, each block held to the output that the page shows.

A shown output is a `text` block right behind its commands. `...` stands for anything within what is printed, and as a line of
its own for any number of lines; spaces, and where a table folds its lines, do not count. Who types the commands, and where, is the
caller's: `typed_here.py` does on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
ANYTHING = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A block of commands, and what they print; None: the page does not say."""

    commands: tuple[str, ...]
    output: str | None


def shown(page: Path) -> list[Shown]:
    """What a page shows, in its order; a command that a backslash continues is one."""
    return [
        Shown(commands=tuple(commands.replace("\\\n", "").splitlines()), output=output or None)
        for commands, output in _BLOCK.findall(page.read_text(encoding="utf-8"))
    ]


def follow(page: Path, type_in: Callable[[str], str]) -> None:
    """Type all of a page's commands; fails where one prints something else than the page shows.

    ``type_in`` takes a command with its comment and returns what it printed; it fails where the command does.
    """
    for block in shown(page):
        said = "".join(type_in(command) for command in block.commands)
        if block.output is not None and not is_as_shown(block.output, said):
            raise AssertionError(
                f"{page.name} shows\n{block.output}\nand its commands print\n{said}"
            )


def is_as_shown(output: str, said: str) -> bool:
    """Whether a page may show ``output`` of what was printed."""
    words = "".join(f"{word} " for word in said.split())
    return re.fullmatch("".join(_patterns(output)), words) is not None


def _patterns(output: str) -> Iterator[str]:
    for line in output.splitlines():
        if line.strip() == ANYTHING:
            yield "(?:.* )?"
        else:
            yield from (
                re.escape(word).replace(re.escape(ANYTHING), ".*?") + " " for word in line.split()
            )
