"""Tools of a plugin: listed for the plan, called by the policy within bounds, and what goes wrong has its owner."""

import asyncio
import json

import pytest
from plugin_kit import write
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import InfrastructureError, PluginError, SpecError
from rollout.plugins.sidecar.conformance.running import check_plugin
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.kinds import tool as kind
from rollout.plugins.sidecar.kinds.tool import PluginToolSource, heard_answer, heard_tools
from rollout.plugins.sidecar.manifest import read_plugin
from rollout.tools.sources import build_sources
from rollout.tools.toolbox import Toolbox
from rollout.types import ToolCall
from rollout_api.checks import check_spec
from rollout_api.checks.facts import Facts
from rollout_api.v1alpha1.environment import ToolPlugin
from rollout_api.v1alpha1.run import RolloutRunSpec

pytestmark = pytest.mark.process

SHELF = """
    import os
    class Shelf:
        def __init__(self, row, unit="pieces"):
            self.row, self.unit, self.asked = row, unit, 0
        def count(self, word: str) -> str:
            "How often a word stands in the question."
            self.asked += 1
            return f"{self.row['prompt'].count(word)} {self.unit}, asked {self.asked}"
        def fail(self) -> str:
            raise ValueError("nobody is in")
        def die(self) -> str:
            os._exit(3)
    serve(tool=Shelf)
"""
ROW = {"prompt": "tea, tea and tea"}


def call(name, call_id="c", **arguments):
    text = json.dumps(arguments)
    return ToolCall(
        call_id=call_id, name=f"tried__{name}", arguments_text=text, arguments=arguments
    )


def source_of(folder, **parameters):
    return PluginToolSource(read_plugin(folder), parameters)


def played(source, *rounds):
    """What the policy reads of each round of calls, in one episode."""

    async def play():
        box = Toolbox([source], ROW)
        try:
            return [(await box.answer(calls)).results for calls in rounds]
        finally:
            await box.close()

    return [[(one.text, one.is_error) for one in results] for results in asyncio.run(play())]


@pytest.fixture
def shelf(tmp_path):
    folder = write(
        tmp_path / "shelf", SHELF, kind="tool", parameters=[{"name": "unit", "default": "pieces"}]
    )
    source = source_of(folder, unit="cups")
    yield source
    source.client.close()


def test_tools_are_listed_with_the_plugins_name_before_theirs(shelf):
    assert [one.name for one in shelf.specs] == ["tried__count", "tried__die", "tried__fail"]
    count = shelf.specs[0]
    assert count.description == "How often a word stands in the question."
    assert count.parameters["required"] == ["word"]


def test_an_episode_has_an_object_of_its_own_and_a_call_is_done_once(shelf):
    twice = call("count", word="tea")
    first, again = played(shelf, [twice, call("count", "d", word="and")], [twice])
    (other,) = played(shelf, [call("count", word="and")])

    assert [text for text, _ in first] == ["3 cups, asked 1", "1 cups, asked 2"]
    assert again == [("3 cups, asked 1", False)]
    assert other == [("1 cups, asked 1", False)]


def test_what_the_policy_did_wrong_and_what_a_tool_raises_is_told_to_it(shelf):
    ((wrong, raised),) = played(shelf, [call("count", words="tea"), call("fail", "d")])

    assert wrong[1]
    assert "wrong arguments: word: field required" in wrong[0]
    assert raised == ("error: ValueError: nobody is in", True)


def test_a_plugin_that_dies_in_a_call_is_infrastructure_and_the_next_episode_has_a_fresh_one(shelf):
    with pytest.raises(InfrastructureError, match="exit code 3"):
        played(shelf, [call("die")])

    assert played(shelf, [call("count", word="tea")]) == [[("3 cups, asked 1", False)]]


def test_a_call_that_hangs_is_told_to_the_policy_and_costs_nobody_else_anything(
    tmp_path, monkeypatch
):
    body = """
        import time
        def wait() -> str:
            "Wait."
            time.sleep(600)
        def greet() -> str:
            "Greet."
            return "hello"
        serve(tool=[wait, greet])
    """
    source = source_of(write(tmp_path / "shelf", body, kind="tool"))
    assert source.specs
    monkeypatch.setattr(kind, "CALL_SECONDS", 0.2)
    (((hung, _),),) = played(source, [call("wait")])
    monkeypatch.setattr(kind, "CALL_SECONDS", 30.0)

    assert hung == "error: no answer within 0.2 s"
    assert played(source, [call("greet")]) == [[("hello", False)]]
    source.client.close()


def test_a_flood_is_cut_and_never_reaches_the_conversation_whole(tmp_path):
    body = """
        def flood() -> str:
            "Say much."
            return "x" * (32 << 20) + "\\x1b[2J"
        serve(tool=flood)
    """
    source = source_of(write(tmp_path / "shelf", body, kind="tool"))
    (((text, _),),) = played(source, [call("flood")])

    assert len(text) < 9000
    assert "characters left out" in text
    assert "\x1b" not in text
    source.client.close()


SPEC = contract.ToolSpec(name="a", description="b", parameters_json='{"type": "object"}')
LIES = {
    "no tool": ([], "0 tools, expected 1 to 64"),
    "too many": ([SPEC] * 65, "65 tools"),
    "two of one name": ([SPEC, SPEC], "one name"),
    "a name for a prompt": ([contract.ToolSpec(name="a b")], "letters, digits"),
    "no schema": ([contract.ToolSpec(name="a", parameters_json="[")], "no JSON"),
    "a list": ([contract.ToolSpec(name="a", parameters_json="[]")], "of an object"),
    "a deep one": ([contract.ToolSpec(name="a", parameters_json="[" * 100_000)], "tool 'a'"),
    "a number": ([contract.ToolSpec(name="a", parameters_json='{"type": "number"}')], "number"),
    "a long description": (
        [contract.ToolSpec(name="a", description="x" * 5000, parameters_json='{"type": "object"}')],
        "5000 characters",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_tools_that_no_prompt_could_have_are_refused(name, tmp_path):
    tools, why = LIES[name]
    plugin = read_plugin(write(tmp_path / "shelf", SHELF, kind="tool"))

    with pytest.raises(SpecError, match=r"plugin tried 1\.0\.0") as refused:
        heard_tools(plugin, contract.ListResponse(tools=tools))
    assert why in str(refused.value)


def test_numbers_are_the_plugins_own_and_finite(tmp_path):
    plugin = read_plugin(write(tmp_path / "shelf", SHELF, kind="tool"))
    said = heard_answer(plugin, contract.CallResponse(text="a", signals={"tool_calls": 9.0}))
    assert said.signals == {"tried/tool_calls": 9.0}

    with pytest.raises(PluginError, match="finite"):
        heard_answer(plugin, contract.CallResponse(signals={"a": float("inf")}))


@pytest.mark.parametrize(
    ("owner", "error"),
    [
        (contract.OWNER_INFRASTRUCTURE, InfrastructureError),
        (contract.OWNER_TASK, PluginError),
        (contract.OWNER_UNSPECIFIED, PluginError),
    ],
)
def test_a_failure_has_its_owner(owner, error, tmp_path):
    plugin = read_plugin(write(tmp_path / "shelf", SHELF, kind="tool"))
    failure = contract.Failure(owner=owner, message="the shelf is empty", code="empty")

    with pytest.raises(error, match="the shelf is empty"):
        heard_answer(plugin, contract.CallResponse(failure=failure))


BROKEN = {
    "other tools each time": (
        (
            "import itertools, rollout.plugins.served.tools as t\n"
            "n = itertools.count()\n"
            "def a(x: int = 0) -> str: 'A.'; return 'a'\n"
            "t.told_tool = lambda spec: t.contract.ToolSpec(name=f'a{next(n)}', parameters_json='{\"type\": \"object\"}')\n"
            "serve(tool=a)"
        ),
        "lists the same tools",
        "others",
    ),
    "does it twice": (
        (
            "import itertools, rollout.plugins.served.tools as t\n"
            "n = itertools.count()\n"
            "def a() -> str: 'A.'; return str(next(n))\n"
            "class Lost(dict):\n    def __contains__(self, key): return False\n"
            "made = t._Episode\n"
            "t._Episode = lambda **k: made(answers=Lost(), **k)\n"
            "serve(tool=a)"
        ),
        "does a call once",
        "two ways",
    ),
    "a parameter without a type": ("serve(tool=lambda x: x)", "serves", "has no type"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_contract_is_named(name, tmp_path):
    body, check, why = BROKEN[name]
    folder = write(tmp_path / "shelf", body, kind="tool")
    found = {one.name: one.why for one in check_plugin(folder, {}) if not one.has_passed}

    assert check in found, found
    assert why in found[check]


def test_plugins_and_servers_have_names_of_their_own(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name, SHELF, kind="tool")
    both = [ToolPlugin(path="one"), ToolPlugin(path="two")]

    with pytest.raises(SpecError, match="are called 'tried': rename one"):
        build_sources((), [tmp_path], plugins=both)
    (made,) = build_sources((), [tmp_path], plugins=both[:1])
    assert made.plugin.manifest.kind == "tool"
    assert made.client.pid is None


def run(**train):
    environment = {"builtin": {"name": "single-turn"}, "toolPlugins": [{"path": "shelf"}]}
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "asked"},
        "spec": {
            "model": {"uri": "rollout://tiny-agent"},
            "code": {"path": "code"},
            "train": {
                "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
                "sampling": {"maxNewTokens": 6},
                "data": {"jsonl": {"uri": "rows.jsonl"}},
                "environment": environment,
                "rewards": [{"builtin": {"name": "length"}}],
                "maxSteps": 1,
                **train,
            },
        },
    }


def problems(document, platform="local"):
    spec = RolloutRunSpec.model_validate(document["spec"])
    return {(one.field, one.reason) for one in check_spec(spec, Facts(platform=platform))}


def test_a_cluster_refuses_a_folder_and_an_algorithm_that_samples_nothing_refuses_them_all():
    field = "spec.train.environment.toolPlugins"
    assert (f"{field}[0].path", "NotSupported") in problems(run(), "cluster")
    assert (field, "NotUsedByAlgorithm") in problems(run(algorithm={"sft": {}}, rewards=[]))
    assert not problems(run())


@pytest.mark.usefixtures("warm_starts")
def test_a_run_is_planned_with_the_tools_of_its_plugin_and_held_to_them(tmp_path, monkeypatch):
    write(tmp_path / "code" / "shelf", SHELF, kind="tool")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Ask for tea.", "answer": ""}\n' * 4)
    (tmp_path / "run.yaml").write_text(json.dumps(run()))
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["plan", "-f", "run.yaml", "--output", "json"])
    assert told.exit_code == 0, told.output
    resolved = json.loads(told.stdout)["runs"][0]["resolved"]

    assert set(resolved["toolDigests"]) == {"tried__count", "tried__die", "tried__fail"}
    assert set(resolved["pluginDigests"]) == {"shelf"}
    done = CliRunner().invoke(app, ["run", "-f", "run.yaml"])
    assert done.exit_code == 0, done.output
