"""The attacker writes a server of tools: it looks out of its sandbox, fills the actor, hangs, or says something else later."""

import json

import pytest
from servers import asked, served, tool_of

from rollout.errors import InfrastructureError, SpecError
from rollout.tools.contract import ToolMistake
from rollout.tools.mcp import session, source
from rollout.tools.mcp.source import McpSource
from rollout.tools.sandbox.chosen import program_maker

pytestmark = pytest.mark.process


@pytest.fixture(params=["bubblewrap", "pod"])
def shelf(request, sandbox_host):
    """In each kind of sandbox."""
    if request.param == "bubblewrap":
        return served(sandbox_host)
    request.getfixturevalue("sandbox_pods")
    return McpSource(served(sandbox_host).program, program_maker)


async def test_it_sees_the_files_that_were_named_and_nothing_else(shelf, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "secret")
    [answer] = await asked(tool_of(shelf, "look"))
    seen = json.loads(answer.text)

    assert seen["files"] == ["server.py"]
    assert "A_TOKEN" not in seen["env"]
    assert seen["net"] in {"OSError", "PermissionError"}
    assert seen["etc"] == "FileNotFoundError"
    assert (seen["uid"], seen["left"]) == (65534, [])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("line", "the server said more than is taken"),
        ("chatter", "the server said more than is taken"),
        ("errors", "the server said more than is taken"),
        ("die", "the server has ended"),
        ("eat", "the server used more memory than its sandbox has"),
        ("litter", "the server made more files than its sandbox has"),
    ],
)
async def test_one_that_is_past_its_bounds_is_told_and_made_afresh(shelf, name, why):
    tools = {tool.spec.name: tool for tool in shelf.open({})}
    await tools["shelf__keep"].call({"text": "a"}, "1")
    answer = await tools[f"shelf__{name}"].call({}, "2")
    [again] = await asked(tools["shelf__keep"], text="b")

    assert answer.is_error
    assert answer.text.startswith(f"error: {why}; the next call gets a fresh server")
    assert again.text == "b"


async def test_one_that_hangs_costs_its_seconds_and_is_made_afresh(shelf, monkeypatch):
    monkeypatch.setattr(source, "CALL_SECONDS_MAX", 0.5)
    tools = {tool.spec.name: tool for tool in shelf.open({})}
    answer = await tools["shelf__hang"].call({}, "1")
    monkeypatch.setattr(source, "CALL_SECONDS_MAX", 30.0)
    [again] = await asked(tools["shelf__area"], width=4)

    assert answer.signals == {"tool_timeouts": 1}
    assert "no answer within 0.5 s" in answer.text
    assert again.text == "8"


async def test_one_that_ends_again_and_again_is_not_started_for_ever(shelf):
    answers = await asked(tool_of(shelf, "die"), *[{}] * 6)

    assert [one.text for one in answers[4:]] == [
        "error: the server was started 4 times and is not started again"
    ] * 2


async def test_a_pod_that_dies_under_its_server_is_nobodys_doing(sandbox_host, sandbox_pods):
    shelf = McpSource(served(sandbox_host).program, program_maker)
    tool = tool_of(shelf, "keep")
    await tool.call({"text": "a"}, "1")
    sandbox_pods.kill()
    with pytest.raises(InfrastructureError, match="sandbox of MCP server shelf has ended"):
        await tool.call({"text": "b"}, "2")
    again = await tool.call({"text": "c"}, "3")
    await tool.close()

    assert again.text == "c"


async def test_one_that_says_otherwise_of_its_tools_is_refused(sandbox_host):
    with pytest.raises(SpecError, match="shelf__area is not what the run was planned with"):
        await asked(tool_of(served(sandbox_host, "changes"), "area"), width=1)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("ends", "the server has ended: cannot find my books"),
        ("pages", "more than 16 pages"),
        ("odd-name", "expected a name of letters"),
        ("twice", "two of its tools have one name"),
        ("list", "it does not keep to the protocol: tools.0.inputSchema.type"),
        ("no-schema", "its schema is none"),
        ("long", "its description has 100000 characters"),
        ("none", "it has 0 tools"),
    ],
)
def test_a_list_that_no_prompt_could_have_is_refused_by_name(sandbox_host, mode, why):
    with pytest.raises(SpecError, match=r"environment.mcpServers: .*shelf.*") as refused:
        _ = served(sandbox_host, mode).specs

    assert why in str(refused.value)
    assert "\x1b" not in str(refused.value)


def test_one_that_never_lists_its_tools_is_refused(sandbox_host, monkeypatch):
    monkeypatch.setattr(session, "START_SECONDS_MAX", 1.0)
    with pytest.raises(SpecError, match="it did not list its tools in"):
        _ = served(sandbox_host, "silent").specs


async def test_no_schema_of_its_is_fetched_from_elsewhere(sandbox_host):
    with pytest.raises(ToolMistake, match="refers to what is not in it"):
        await asked(tool_of(served(sandbox_host, "elsewhere"), "area"), width=1)


async def test_its_answers_are_held_against_no_schema_here(sandbox_host):
    [answer] = await asked(tool_of(served(sandbox_host, "answers"), "area"), width=1)

    assert (answer.text, answer.is_error) == ("2", False)
