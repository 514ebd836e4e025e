"""The reference page of attacks; ``python tests/docs/attacks_page.py`` writes it.

The first line of a test file says who attacks and what they want; its name says what comes of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "attacks.md"
HEAD = """# Attacks that are tested

Generated from the tests: each line is one file, in the words of its first line. [Who may do what](../concepts/security.md) says which rule holds
against each, and [known weaknesses](../critiques.md) says what nobody holds back yet.
"""
PLACES = (
    (
        "On a real API server, as an editor of one namespace",
        "The operator, its webhook and the chart's rights and policies are the real ones.",
        "e2e/tenants",
    ),
    (
        "In the processes themselves",
        "The real code is fed with what an attacker controls.",
        "tests/security",
    ),
)


@dataclass(frozen=True, slots=True)
class Attack:
    """One file of attacks."""

    path: str
    """From the root of the repository."""
    wish: str
    """The first line of its docstring."""


def find_attacks(folder: str) -> Iterator[Attack]:
    """The attacks of a folder, by name of their files."""
    for file in sorted((ROOT / folder).glob("test_*.py")):
        said = ast.get_docstring(ast.parse(file.read_text())) or ""
        yield Attack(path=f"{folder}/{file.name}", wish=said.partition("\n")[0])


def render() -> str:
    """The page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterable[str]:
    for title, how, folder in PLACES:
        yield from (f"## {title}", "", how, "", *_table(list(find_attacks(folder))), "")


def _table(attacks: Sequence[Attack]) -> Iterable[str]:
    yield "| attack | tests |"
    yield "| --- | --- |"
    for one in attacks:
        name = Path(one.path).stem.removeprefix("test_").replace("_", " ")
        yield f"| {one.wish} | [{name}](../../{one.path}) |"


if __name__ == "__main__":
    PAGE.write_text(render())
