"""What the author of a plugin, an environment, an algorithm or a training loop meets says of each field what it means.

A field is documented below itself, or by its name in double backticks in the docstring of its class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "workers" / "src" / "rollout"
ROOMS = (
    "*.py",
    "algorithms/**/*.py",
    "client/**/*.py",
    "coordinator/plan.py",
    "environments/**/*.py",
    "learner/config/**/*.py",
    "protocol/**/*.py",
    "rewards/**/*.py",
)


def fields(tree: ast.AST) -> Iterator[tuple[str, str, int, str]]:
    """Class, public field, its line, and what stands below it, of every public class."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        for one, after in zip_longest(node.body, node.body[1:]):
            if isinstance(one, ast.AnnAssign) and not (name := ast.unparse(one.target)).startswith(
                "_"
            ):
                yield node.name, name, one.lineno, text_of(after) or said_of(node, name)


def text_of(node: ast.AST | None) -> str:
    """The text that a statement is; empty where it is another statement."""
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def said_of(node: ast.ClassDef, name: str) -> str:
    """The class's docstring where it names the field."""
    told = ast.get_docstring(node) or ""
    return told if f"``{name}``" in told else ""


def undocumented(text: str) -> list[str]:
    """Fields that nothing is said of, or nothing but their name."""
    bare = [
        (kind, name, line)
        for kind, name, line, told in fields(ast.parse(text))
        if told.strip(" .").lower().replace(" ", "_") in ("", name.lower(), f"the_{name.lower()}")
    ]
    return [f"{kind}.{name}:{line}" for kind, name, line in bare]


@pytest.mark.parametrize("room", ROOMS)
def test_every_field_that_a_stranger_reads_is_documented(room):
    files = sorted(ROOT.glob(room))
    assert files, "nothing was looked at"
    bare = {str(file.relative_to(ROOT)): undocumented(file.read_text()) for file in files}
    assert not {file: names for file, names in bare.items() if names}, (
        "say below the field what it means: unit, shape, range, what None is"
    )


@pytest.mark.parametrize(
    "body",
    [
        '    """A step."""\n    seconds: float',
        '    """A step."""\n    seconds: float\n    """Seconds."""',
        '    """A step."""\n    seconds: float\n    """The seconds."""',
        '    """A step takes seconds."""\n    seconds: float = 1.0\n    _hidden: int = 0',
        '    """A step."""\n    seconds: float\n    other: int\n    """Of the other."""',
    ],
)
def test_a_field_without_a_meaning_is_found(body):
    assert undocumented(f"class Step:\n{body}\n") == ["Step.seconds:3"]


@pytest.mark.parametrize(
    "body",
    [
        '    """``seconds`` of one step."""\n    seconds: float',
        '    """A step."""\n    seconds: float\n    """From the first token to the last."""',
    ],
)
def test_a_field_is_documented_below_it_or_by_its_class(body):
    assert undocumented(f"class Step:\n{body}\n") == []
