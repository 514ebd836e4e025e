"""Tools of an MCP server: listed once, one server an episode, whose doing is told to the policy."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from servers import SERVER, asked, served, tool_of

from rollout.errors import InfrastructureError
from rollout.tools.contract import ToolMistake
from rollout.tools.mcp.source import McpSource, ServerProgram
from rollout.tools.sandbox.bubblewrap import Bubblewrap
from rollout.tools.sandbox.host import own_python
from rollout.tools.sources import require_planned, tool_digests
from rollout.tools.toolbox import Toolbox
from rollout.types import ToolCall

pytestmark = pytest.mark.process


@pytest.fixture
def shelf(sandbox_host):
    return served(sandbox_host)


def test_its_tools_are_called_behind_its_name(shelf):
    names = [spec.name for spec in shelf.specs]
    area = next(spec for spec in shelf.specs if spec.name == "shelf__area")

    assert names == sorted(names)
    assert area.description == "The area of a box."
    assert area.parameters["required"] == ["width"]
    assert require_planned(tool_digests(shelf.specs), shelf.specs) is None


async def test_it_answers_and_remembers_within_an_episode_only(shelf):
    both = await asked(tool_of(shelf, "keep"), {"text": "a"}, {"text": "b"})
    other = await asked(tool_of(shelf, "keep"), text="c")

    assert [one.text for one in both + other] == ["a", "a,b", "c"]


async def test_the_tools_of_an_episode_share_one_server_which_ends_with_it(shelf):
    tools = {tool.spec.name: tool for tool in shelf.open({})}
    await tools["shelf__keep"].call({"text": "a"}, "1")
    process = tools["shelf__keep"].server._session._program
    answer = await tools["shelf__area"].call({"width": 3}, "2")
    await tools["shelf__area"].close()

    assert answer.text == "6"
    assert tools["shelf__keep"].server is tools["shelf__area"].server
    with pytest.raises(ProcessLookupError):
        os.kill(process.process.pid, 0)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "'width' is a required property"),
        ({"width": "3"}, "width: '3' is not of type 'integer'"),
        ({"width": 3, "depth": 1}, "Additional properties are not allowed"),
    ],
)
async def test_arguments_of_another_form_never_reach_it(shelf, arguments, why):
    with pytest.raises(ToolMistake, match=why):
        await asked(tool_of(shelf, "area"), **arguments)


@pytest.mark.parametrize(
    ("name", "text", "is_error"),
    [
        ("fail", "no such shelf", True),
        ("refuse", "error: I would rather not", True),
        ("picture", "see\n[image left out]", False),
        ("number", '{"n": 3}', False),
    ],
)
async def test_what_it_says_is_told_as_text(shelf, name, text, is_error):
    [answer] = await asked(tool_of(shelf, name))

    assert (answer.text, answer.is_error) == (text, is_error)


async def test_a_sandbox_that_is_killed_from_outside_is_nobodys_doing(shelf):
    tool = tool_of(shelf, "keep")
    await tool.call({"text": "a"}, "1")
    process = tool.server._session._program.process
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()

    with pytest.raises(InfrastructureError, match="sandbox of MCP server shelf has ended"):
        await asked(tool, text="b")


async def test_a_call_that_is_given_up_leaves_nothing_behind(shelf):
    tools = {tool.spec.name: tool for tool in shelf.open({})}
    await tools["shelf__keep"].call({"text": "a"}, "1")
    program = tools["shelf__keep"].server._session._program
    hanging = asyncio.create_task(tools["shelf__hang"].call({}, "2"))
    await asyncio.sleep(0.1)
    hanging.cancel()
    await asyncio.wait({hanging})
    await tools["shelf__hang"].close()

    assert hanging.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(program.process.pid, 0)


async def test_a_reply_with_calls_is_answered_by_the_server(shelf):
    toolbox = Toolbox([shelf], {})
    arguments = {"width": 5}
    call = ToolCall(
        call_id="c1", name="shelf__area", arguments_text=json.dumps(arguments), arguments=arguments
    )
    done = await toolbox.answer([call])
    await toolbox.close()

    assert [one.text for one in done.results] == ["10"]


@pytest.fixture
def own_environment(sandbox_host, monkeypatch):
    """An environment of Python that everybody may read, as that of this process; it has a module of its own."""
    with tempfile.TemporaryDirectory(prefix="rollout-environment-", dir="/var/tmp") as folder:
        subprocess.run([sandbox_host.python, "-m", "venv", "--without-pip", folder], check=True)
        Path(folder).chmod(0o755)
        [packages] = Path(folder).glob("lib/python3*/site-packages")
        (packages / "shelf_books.py").write_text("TITLE = 'Emma'\n")
        monkeypatch.setattr(sys, "prefix", folder)
        monkeypatch.setattr(sys, "base_prefix", "/usr")
        yield Path(folder)


IMPORTS = SERVER.replace(
    'def fail(text=""):',
    'def fail(text=""):\n    import shelf_books\n    return said(shelf_books.TITLE)\n\ndef _():',
)


async def test_one_of_python_has_the_packages_of_this_environment(sandbox_host, own_environment):
    program = ServerProgram(
        name="shelf", command=("python", "server.py"), files=(("server.py", IMPORTS.encode()),)
    )
    tool = tool_of(McpSource(program, lambda: Bubblewrap(sandbox_host)), "fail")

    assert [one.text for one in await asked(tool)] == ["Emma"]


def test_an_environment_that_a_sandbox_may_not_read_is_not_shown_to_it(
    sandbox_host, own_environment
):
    own_environment.chmod(0o700)
    alone = replace(sandbox_host, drops_root=True)

    assert own_python(alone) == (sandbox_host.python, ())
