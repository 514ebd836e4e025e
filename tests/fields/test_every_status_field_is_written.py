"""A field of a status is there because something writes it: some part of the operator or the coordinator builds it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from operating import World

from rollout_api.generate.tree import Object, build_tree, walk
from rollout_api.v1alpha1.run_status import RunStatus
from rollout_api.v1alpha1.runtime import RuntimeStatus

ROOT = Path(__file__).parents[2]
WRITERS = (
    "operator/src/rollout_operator/controller/conditions.py",
    "operator/src/rollout_operator/other_kinds.py",
    "operator/src/rollout_operator/run/controller.py",
    "operator/src/rollout_operator/run/plan/*.py",
    "operator/src/rollout_operator/run/plan/saving/*.py",
    "operator/src/rollout_operator/run/plan/status/*.py",
    "workers/src/rollout/coordinator/rules/usage.py",
    "workers/src/rollout/coordinator/status/*.py",
    "workers/src/rollout/pods/serving/training.py",
)
"""Where statuses are built; a writer elsewhere is added here."""
ALL = "**"
"""Given to a call by unpacking: whatever the model has."""


def keys_in(tree: ast.AST) -> Iterator[str]:
    """Keys of dictionaries and of assignments to them: what is written, never what is read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield node.slice.value if isinstance(node.slice, ast.Constant) else ""


def arguments_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Models of the API by name, and what they are built with."""
    models = {
        one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("rollout_api.v1alpha1")
        for one in node.names
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in models
        ):
            yield from ((node.func.id, one.arg or ALL) for one in node.keywords)


def exercised() -> set[str]:
    """What stands in the status of a run that has succeeded."""
    world = World()
    world.settle(4)
    outcome = {"kind": "Succeeded", "reason": "Done", "message": "all steps"}
    world.report(step=3, attempt=1, outcome=outcome)
    world.settle(4)
    return set(world.status)


@pytest.fixture(scope="module")
def trees() -> list[ast.AST]:
    files = [file for place in WRITERS for file in ROOT.glob(place)]
    return [ast.parse(file.read_text()) for file in files]


def find_unwritten(model: type, trees: list[ast.AST]) -> list[str]:
    """Fields of a model's tree that neither a call of its own class nor a dictionary's key gives."""
    keys = {key for tree in trees for key in keys_in(tree)} | exercised()
    given = {one for tree in trees for one in arguments_in(tree)}
    called = {name for name, _ in given}
    found = []
    for node in walk(build_tree(model)):
        if isinstance(node, Object):
            for member in node.members:
                names = (member.name, _snake(member.name), ALL)
                # A key may be another model's: where a model is built by name, its arguments tell.
                known = {_snake(member.name)} if node.name in called else set(names)
                if not known & keys and not any((node.name, name) in given for name in names):
                    found.append(f"{node.name}.{member.name}")
    return sorted(set(found))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])[A-Z]+", lambda found: f"_{found[0].lower()}", name)


@pytest.mark.parametrize("model", [RunStatus, RuntimeStatus])
def test_every_field_of_a_status_is_written_somewhere(model: type, trees: list[ast.AST]) -> None:
    remedy = f"write them, remove them, or add where that is done to {Path(__file__).name}"
    assert find_unwritten(model, trees) == [], remedy


def test_a_field_that_nobody_writes_is_found(trees: list[ast.AST]) -> None:
    silent = [tree for tree in trees if "Progress" not in ast.dump(tree)]
    assert "Progress.rewardMean" in find_unwritten(RunStatus, silent)
