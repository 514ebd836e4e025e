"""The engines of the API and those that an actor can build are the same, and their names stand nowhere else."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import rollout
from rollout.engines.registry import ENGINES
from rollout_api.v1alpha1.pods.roles import CAPABILITIES, Actors, Engine

WORKERS = Path(rollout.__file__).parent


def test_every_engine_of_the_api_can_be_built() -> None:
    assert sorted(ENGINES) == sorted(CAPABILITIES)
    builders = [import_module(module).build for module in ENGINES.values()]
    assert {len(inspect.signature(one).parameters) for one in builders} == {3}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_chosen_engine_says_what_it_can_do(name) -> None:
    chosen = Actors.model_validate({"engine": {name: {}}}).chosen_engine
    assert (chosen.name, chosen.capabilities) == (name, CAPABILITIES[name])


def test_an_engine_that_nobody_chose_computes_the_learners_own_forward() -> None:
    assert Actors().chosen_engine.capabilities.learner_forward
    assert not Engine.model_validate({"vllm": {}}).capabilities.learner_forward


def compared_names(path: Path) -> list[int]:
    """Lines that compare something with an engine's name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(
            isinstance(one, ast.Constant) and one.value in ENGINES
            for one in (node.left, *node.comparators)
        )
    ]


def test_nothing_compares_with_an_engines_name() -> None:
    found = {
        str(path.relative_to(WORKERS)): lines
        for path in WORKERS.rglob("*.py")
        if (lines := compared_names(path))
    }
    assert found == {}
