"""``environment.tools``: which names are taken, where, and for what."""

import pytest
from pydantic import ValidationError

from rollout_api.checks import check_spec
from rollout_api.checks.environment.tools import actors_max, find_in_pods, pods_of_a_group
from rollout_api.checks.facts import Facts
from rollout_api.v1alpha1.run import RolloutRunSpec

FIELD = "spec.train.environment.tools"
SERVERS = "spec.train.environment.mcpServers"


HTTP = "spec.train.environment.http"


def problems(tools, *, platform="any", servers=(), http=None, **train):
    given = [{"name": name, "command": ["python", "server.py"]} for name in servers]
    environment = {"builtin": {"name": "single-turn"}, "tools": tools, "mcpServers": given}
    environment |= {"http": {"hosts": http}} if http else {}
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
    return [
        (one.field, one.reason) for one in found if one.field.startswith((FIELD, SERVERS, HTTP))
    ]


def test_tools_that_are_there_and_functions_of_the_users_are_taken():
    assert not problems(["calculator", "search", "python_exec", "shell", "file", "mine.area"])


@pytest.mark.parametrize("name", ["http", "mcp", "mcp://server", "os.system()", "a..b", "é.x"])
def test_what_is_not_built_is_refused_by_name(name):
    assert problems(["calculator", name]) == [(f"{FIELD}[1]", "NotSupported")]


def test_a_tool_is_named_once():
    assert problems(["calculator", "calculator"]) == [(f"{FIELD}[1]", "DuplicateName")]


def test_tools_that_run_what_the_policy_writes_are_for_one_machine_and_for_clusters():
    for platform in ("local", "cluster"):
        assert not problems(["calculator", "shell", "python_exec", "file"], platform=platform)


def test_what_learns_from_rows_calls_no_tool():
    found = problems(["calculator"], algorithm={"sft": {}}, rewards=[])
    assert (FIELD, "NotUsedByAlgorithm") in found


def checked(platform, **parts):
    """The spec, and what is not taken of it for want of a sandbox."""
    given = {"algorithm": {"grpo": {}}, "data": {"jsonl": {"uri": "a.jsonl"}}, "maxSteps": 1}
    given |= {"rewards": parts.pop("rewards", [{"builtin": {"name": "exact-match"}}])}
    given |= {"environment": parts.pop("environment", {"builtin": {"name": "single-turn"}})}
    spec = RolloutRunSpec.model_validate(
        {"model": {"uri": "rollout://tiny-adder"}, "train": given, **parts}
    )
    found = check_spec(spec, Facts(platform=platform))
    return spec, [one.field for one in found if "cluster" in one.message]


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
def test_in_a_cluster_rewards_and_suites_run_programs_in_sandbox_pods(parts, field):
    spec, found = checked("cluster", **parts)
    assert not found
    assert [one for one, _ in find_in_pods(spec)] == [field]


def test_in_a_cluster_environments_and_servers_of_tools_run_in_sandbox_pods():
    spec, _ = checked("cluster", environment={"builtin": {"name": "code"}})
    assert [one for one, _ in find_in_pods(spec)] == ["spec.train.environment.builtin.name"]
    server = {"name": "shelf", "command": ["a"]}
    spec, _ = checked("cluster", environment={"agent": AGENT, "mcpServers": [server]})
    fields = {one for one, _ in find_in_pods(spec)}
    assert fields == {"spec.train.environment.mcpServers[0]", "spec.train.environment.agent"}


HARBOR = {
    "module": "rollout.environments.adapters.harbor",
    "className": "Harbor",
    "parameters": [{"name": "tasks", "value": "tasks"}, {"name": "image", "value": "python:3.13"}],
}
IMAGED = [
    ({"agent": {"command": ["a"], "image": "python:3.13"}}, "agent.image"),
    ({"python": HARBOR}, "python.parameters[1].value"),
]


def test_tasks_in_harbors_form_run_in_sandbox_pods_and_keep_one_while_a_group_waits():
    spec, _ = checked("cluster", environment={"python": HARBOR})
    assert [one for one, _ in find_in_pods(spec)] == ["spec.train.environment.python"]
    assert pods_of_a_group(spec) == 8
    spec, _ = checked("cluster", environment={"python": {**HARBOR, "className": "Other"}})
    assert not any(find_in_pods(spec))


@pytest.mark.parametrize(("environment", "field"), IMAGED)
def test_an_image_of_an_agents_own_is_for_its_pods(environment, field):
    for platform, refused in (("local", [f"spec.train.environment.{field}"]), ("cluster", [])):
        spec = checked(platform, environment=environment)[0]
        found = [
            one for one in check_spec(spec, Facts(platform=platform)) if "image" in one.message
        ]
        assert [one.field for one in found] == refused
        assert all(one.reason == "NotSupported" and one.fix for one in found)


def test_what_keeps_a_pod_while_a_group_waits_is_counted():
    kept = {"tools": ["python_exec"], "builtin": {"name": "single-turn"}}
    scale = {"replicas": 2, "autoscale": {"min": 1, "max": 3}}
    spec, _ = checked("cluster", environment=kept, actors=scale)
    assert (pods_of_a_group(spec), actors_max(spec)) == (8, 3)
    spec, _ = checked("cluster", environment=kept, numerics={"mode": "Fast"})
    assert pods_of_a_group(spec) == 0
    spec, _ = checked("cluster", environment={"builtin": {"name": "code"}})
    assert pods_of_a_group(spec) == 0, "a program's pod goes before its episode waits"


@pytest.mark.parametrize("platform", ["local", "cluster"])
def test_each_server_of_tools_has_a_name_of_its_own(platform):
    assert not problems([], servers=["shelf", "desk"], platform=platform)
    assert problems([], servers=["shelf", "shelf"]) == [(f"{SERVERS}[1].name", "DuplicateName")]


def test_what_learns_from_rows_asks_no_server():
    found = problems([], servers=["shelf"], algorithm={"sft": {}}, rewards=[])
    assert (SERVERS, "NotUsedByAlgorithm") in found


@pytest.mark.parametrize("name", ["Shelf", "a__b", "shelf-1", "", "x" * 33])
def test_a_servers_name_is_part_of_its_tools_names(name):
    with pytest.raises(ValidationError):
        problems([], servers=[name])


def test_pages_are_got_of_hosts_that_are_named():
    for platform in ("local", "cluster"):
        assert not problems([], http=["docs.example.org", "example.org:8443"], platform=platform)
    found = problems([], http=["example.org"], algorithm={"sft": {}}, rewards=[])
    assert (HTTP, "NotUsedByAlgorithm") in found


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "10.1",
        "https://a.org",
        "a.org/",
        "A.org",
        "*.a.org",
        "a.org.",
    ],
)
def test_what_is_no_name_of_a_public_host_is_refused(host):
    with pytest.raises(ValidationError):
        problems([], http=[host])


AGENT = {"command": ["python", "clerk.py"]}


@pytest.mark.parametrize(
    ("beside", "platform", "field"),
    [
        ({"tools": ["calculator"]}, "local", "tools"),
        ({"mcpServers": [{"name": "shelf", "command": ["a"]}]}, "local", "mcpServers"),
        ({"http": {"hosts": ["example.org"]}}, "local", "http"),
    ],
)
@pytest.mark.parametrize(
    "world", [{"agent": AGENT}, {"python": {**HARBOR, "parameters": []}}], ids=["agent", "harbor"]
)
def test_an_agent_brings_its_own_tools(world, beside, platform, field):
    train = {
        "algorithm": {"grpo": {}},
        "data": {"jsonl": {"uri": "a.jsonl"}},
        "environment": {**world, **beside},
        "rewards": [{"builtin": {"name": "environment"}}],
        "maxSteps": 1,
    }
    spec = RolloutRunSpec.model_validate({"model": {"uri": "rollout://tiny-adder"}, "train": train})

    found = [
        (one.field, one.reason)
        for one in check_spec(spec, Facts(platform=platform))
        if one.field.startswith("spec.train.environment")
    ]

    assert found == [(f"spec.train.environment.{field}", "NotSupported")]
