"""The files of a tool server: those of the run's code that its manifest names, bounded, and nothing that a link leads to."""

import sys

import pytest

from rollout.errors import SpecError
from rollout.tools import server_files
from rollout.tools.sandbox.served import check_files
from rollout.tools.server_files import read_files
from rollout.tools.sources import build_sources
from rollout_api.v1alpha1.environment import McpServer

WHAT = "environment.mcpServers: shelf"


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code"
    (folder / "books" / "__pycache__").mkdir(parents=True)
    for name in ("server.py", "books/a.txt", "books/.hidden", "books/__pycache__/b.pyc", "other"):
        (folder / name).write_text(name)
    (tmp_path / "secret").write_text("secret")
    (folder / "books" / "link").symlink_to(tmp_path / "secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    return folder


def named(*files, command=("python", "server.py")):
    return McpServer(name="shelf", command=command, files=files)


def test_files_and_what_lies_below_folders_are_found_by_their_paths(code):
    found = dict(read_files(("server.py", "books"), [code.parent / "none", code], WHAT))

    assert found == {"books/a.txt": b"books/a.txt", "server.py": b"server.py"}


def test_without_any_there_are_none(code):
    assert read_files((), [code], WHAT) == ()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/passwd", "expected a path in the run's code"),
        ("../secret", "expected a path in the run's code"),
        ("books/../../secret", "expected a path in the run's code"),
        ("out", "is a link that leads out of the run's code"),
        ("up/secret", "is a link that leads out of the run's code"),
        ("up", "was not found"),
        ("nobody.py", "was not found"),
    ],
)
def test_what_is_not_in_the_code_is_refused_by_name(code, path, why):
    with pytest.raises(SpecError, match=why):
        read_files((path,), [code], WHAT)


def test_files_of_a_run_without_code_are_refused():
    with pytest.raises(SpecError, match=r"set spec\.code"):
        read_files(("server.py",), [], WHAT)


def test_more_than_a_sandbox_takes_is_refused_before_it_is_read(code, monkeypatch):
    monkeypatch.setattr(server_files, "FILES_BYTES_MAX", 10)
    with pytest.raises(SpecError, match="2 files of 20 bytes; a sandbox takes"):
        read_files(("server.py", "books"), [code], WHAT)


@pytest.mark.parametrize("name", ["/a", "../a", "a/../b", "", "a\0b"])
def test_a_name_that_leaves_its_folder_goes_into_no_sandbox(name):
    with pytest.raises(ValueError, match="expected a path below the working folder"):
        check_files({name: b""})


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rollout.tools.mcp.source", None)
    with pytest.raises(SpecError, match=r"pip install 'rollout-rl\[mcp\]'"):
        build_sources([], [], [named()])


def test_a_function_that_is_called_as_a_servers_tool_is_refused(tmp_path):
    (tmp_path / "twins.py").write_text("def shelf__find(title: str) -> str:\n    return title\n")
    with pytest.raises(SpecError, match="is called as a tool of a plugin or MCP server"):
        build_sources(["twins.shelf__find"], [tmp_path], [named()])
