"""Variables, metrics, conditions, chart values, builtins and images that a text names are there."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from rollout_api.checks.catalog import ENVIRONMENTS, REWARDS, SUITES, TINY_MODELS
from rollout_api.conditions import ConditionType, Reason
from rollout_api.generate.docstrings import describe_fields
from rollout_api.generate.tree import Object, build_tree
from rollout_api.v1alpha1.environment import Environment, Reward
from rollout_api.v1alpha1.evaluation import Suite
from rollout_api.v1alpha1.runtime import RuntimeSpec

ROOT = Path(__file__).parents[2]
TEXTS = (".md", ".txt", ".tpl", ".yaml", ".json", ".toml", ".ipynb")
PACKAGES = {"rollout_api", "rollout_operator", "rollout_vllm", "rollout_rl"}
SPANS = re.compile(r"`([^`\n]+)`")
HISTORY = ("CHANGELOG.md", "docs/decisions/")
"""What was there once may be named there."""


@cache
def read(endings: tuple[str, ...], without: tuple[str, ...] = ("tests/", "e2e/")) -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    names = [name for name in listed.split() if name.endswith(endings)]
    kept = [name for name in names if not name.startswith(without)]
    return {name: (ROOT / name).read_text() for name in kept}


@cache
def literals() -> frozenset[str]:
    """Every text in quotes of the sources, scripts and build files."""
    sources = (*read((".py",), ("docs/", "tests/docs/")).values(), (ROOT / "Makefile").read_text())
    scripts = read((".sh", "Containerfile"), ()).values()
    found = set()
    for text in (*sources, *scripts):
        found |= set(re.findall(r"\b(?:ROLLOUT|rollout)_[A-Za-z0-9_]+", text))
    return frozenset(found)


def find(pattern: str, without: tuple[str, ...] = ()) -> set[tuple[str, str]]:
    return {
        (name, found)
        for name, text in read(TEXTS).items()
        if not name.startswith(without)
        for found in re.findall(pattern, text)
    }


def spans(without: tuple[str, ...] = HISTORY) -> set[tuple[str, str]]:
    return {
        (name, found)
        for name, text in read((".md",)).items()
        if not name.startswith(without)
        for found in SPANS.findall(text)
    }


def unread_variables(named):
    return sorted(one for one in named if one[1] not in literals())


def test_every_variable_that_a_text_names_is_read_somewhere():
    named = find(r"\bROLLOUT_[A-Z][A-Z_]+[A-Z]\b")
    assert len(named) > 20
    assert unread_variables(named) == []
    assert unread_variables({("a.md", "ROLLOUT_LEGDER_DSN")}) == [("a.md", "ROLLOUT_LEGDER_DSN")]


def test_every_metric_that_a_text_names_is_counted_somewhere():
    named = {one for one in find(r"\brollout_[a-z0-9_]+[a-z0-9]\b") if one[1] not in PACKAGES}
    assert len(named) > 8
    stems = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in literals()}
    missing = [
        one for one in named if re.sub(r"_(total|bucket|sum|count)$", "", one[1]) not in stems
    ]
    assert sorted(missing) == []


def wrong_conditions(named):
    kinds = {one.value for one in ConditionType}
    reasons = {one.value for one in Reason} | {"True", "False", "Unknown"}
    found = [(name, re.match(r"([A-Z][A-Za-z]+)=([A-Z][A-Za-z]+)", text)) for name, text in named]
    return sorted(
        f"{name}: {one[0]}"
        for name, one in found
        if one and one[1] in kinds and one[2] not in reasons
    )


def test_every_reason_that_a_page_gives_a_condition_is_one():
    assert wrong_conditions(spans()) == []
    assert wrong_conditions({("a.md", "Stalled=NodeGone")}) == ["a.md: Stalled=NodeGone"]


def chart_paths() -> set[str]:
    def walk(value, path):
        yield path
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from walk(inner, f"{path}.{key}" if path else key)

    def fields(node, path):
        yield path
        for member in node.members if isinstance(node, Object) else ():
            yield from fields(member.node, f"{path}.{member.name}")

    values = yaml.safe_load((ROOT / "charts/rollout/values.yaml").read_text())
    return {*walk(values, ""), *fields(build_tree(RuntimeSpec), "runtime.spec")}


def test_every_chart_value_that_a_page_names_is_a_value():
    known = chart_paths()
    tops = {path for path in known if path and "." not in path}
    named = {
        (name, text)
        for name, text in spans()
        if re.fullmatch(r"[a-z][A-Za-z]*(\.[a-z][A-Za-z]*)+", text) and text.split(".")[0] in tops
    }
    page = {one for one in named if one[0].startswith(("docs/how-to/install", "charts/rollout/"))}
    assert len(page) > 5
    assert sorted(one for one in page if one[1] not in known) == []


@pytest.mark.parametrize(
    ("model", "known"), [(Environment, ENVIRONMENTS), (Reward, REWARDS), (Suite, SUITES)]
)
def test_every_builtin_that_a_fields_text_names_is_shipped(model, known):
    named = set(SPANS.findall(describe_fields(model)["builtin"]))
    assert named and named <= known


def test_every_model_of_ours_that_a_text_names_can_be_built():
    named = {one for one in find(r"rollout://([a-z][a-z0-9-]*)\b") if one[1] != "tiny"}
    assert len(named) > 5
    assert sorted(one for one in named if one[1] not in TINY_MODELS) == []


def test_every_image_of_ours_that_a_text_names_is_a_target_of_the_build():
    targets = set(
        re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    )
    named = find(r"\brollout-(operator|worker|vllm)[:\"`]", HISTORY)
    assert len(named) > 1
    assert sorted(one for one in named if one[1] not in targets) == []
