"""``environment.tools``: which names are taken, where, and for what."""

import pytest

from rollout_api.checks import check_spec
from rollout_api.checks.facts import Facts
from rollout_api.v1alpha1.run import RolloutRunSpec

FIELD = "spec.train.environment.tools"


def problems(tools, *, platform="any", **train):
    environment = {"builtin": {"name": "single-turn"}, "tools": tools}
    given = {
        "algorithm": {"grpo": {}},
        "data": {"jsonl": {"uri": "a.jsonl"}},
        "environment": environment,
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 1,
        **train,
    }
    spec = RolloutRunSpec.model_validate({"model": {"uri": "rollout://tiny-adder"}, "train": given})
    found = check_spec(spec, Facts(platform=platform))
    return [(one.field, one.reason) for one in found if one.field.startswith(FIELD)]


def test_tools_that_are_there_and_functions_of_the_users_are_taken():
    assert not problems(["calculator", "search", "python_exec", "shell", "file", "mine.area"])


@pytest.mark.parametrize("name", ["http", "mcp", "mcp://server", "os.system()", "a..b", "é.x"])
def test_what_is_not_built_is_refused_by_name(name):
    assert problems(["calculator", name]) == [(f"{FIELD}[1]", "NotSupported")]


def test_a_tool_is_named_once():
    assert problems(["calculator", "calculator"]) == [(f"{FIELD}[1]", "DuplicateName")]


def test_a_cluster_without_sandbox_pods_runs_nothing_that_the_policy_writes():
    found = problems(["calculator", "shell", "mine.area"], platform="cluster")
    assert found == [(f"{FIELD}[1]", "NotSupported")]
    assert not problems(["shell"], platform="local")


def test_what_learns_from_rows_calls_no_tool():
    found = problems(["calculator"], algorithm={"sft": {}}, rewards=[])
    assert (FIELD, "NotUsedByAlgorithm") in found


def refused(platform, **parts):
    given = {"algorithm": {"grpo": {}}, "data": {"jsonl": {"uri": "a.jsonl"}}, "maxSteps": 1}
    given |= {"rewards": parts.pop("rewards", [{"builtin": {"name": "exact-match"}}])}
    spec = {"model": {"uri": "rollout://tiny-adder"}, "train": given, **parts}
    found = check_spec(RolloutRunSpec.model_validate(spec), Facts(platform=platform))
    return [one.field for one in found if "no sandbox pods" in one.message]


CODE_TESTS = {"builtin": {"name": "code-tests"}}
RUNS_PROGRAMS = [
    ({"rewards": [CODE_TESTS]}, "spec.train.rewards[0].builtin.name"),
    (
        {"evaluations": [{"suite": {"builtin": {"name": "humaneval"}}}]},
        "spec.evaluations[0].suite.builtin.name",
    ),
    (
        {
            "evaluations": [
                {"suite": {"data": {"jsonl": {"uri": "b.jsonl"}}, "rewards": [CODE_TESTS]}}
            ]
        },
        "spec.evaluations[0].suite.rewards[0].builtin.name",
    ),
]


@pytest.mark.parametrize(("parts", "field"), RUNS_PROGRAMS)
def test_a_cluster_without_sandbox_pods_runs_no_program_that_is_rewarded(parts, field):
    assert refused("cluster", **parts) == [field]
    assert not refused("local", **parts)
