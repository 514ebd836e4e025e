"""The attacker's wish: a package index, or what stands in its place, hands out other files than were meant."""

import importlib.metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = re.compile(
    r"[a-z0-9][a-z0-9.-]*==[0-9][A-Za-z0-9.!+]* \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
)
OURS = ("rollout-api", "rollout-operator", "rollout-rl")


def pins(name):
    """``name==version`` of every package, and how many digests it has."""
    entries = re.split(r"\n(?=\S)", (ROOT / name).read_text())
    return {one.split()[0]: one.count("--hash=") for one in entries}


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_pinned_package_has_its_digests_and_nothing_else_has():
    hashed = pins("constraints.hashes.txt")
    assert list(hashed) == (ROOT / "constraints.txt").read_text().splitlines()
    assert all(hashed.values())
    assert all(pins("bootstrap.hashes.txt").values())


def test_the_tool_that_installs_is_pinned_as_the_makefile_says():
    version = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert list(pins("bootstrap.hashes.txt")) == [f"uv=={version[1]}"]


@pytest.mark.parametrize("name", ["constraints.hashes.txt", "bootstrap.hashes.txt"])
def test_the_files_hold_names_versions_and_digests_only(name):
    lines = (ROOT / name).read_text().splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []


def test_everything_that_we_ask_for_is_pinned():
    pinned = {plain(pin.partition("==")[0]) for pin in pins("constraints.hashes.txt")}
    asked = {
        plain(re.match(r"[\w.-]+", requirement)[0])
        for name in OURS
        for requirement in importlib.metadata.requires(name) or ()
    }
    assert asked - pinned - set(OURS) == set()


def test_whatever_installs_compares_digests():
    for name, least in (("Makefile", 2), ("Containerfile", 4)):
        lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
        installs = [one for line in lines for one in line.split("&&") if "pip install" in one]
        installs = [one for one in installs if "echo" not in one and "build/virtualenv" not in one]
        assert len(installs) >= least
        for one in installs:
            assert "--require-hashes" in one or "-b constraints.hashes.txt" in one, one
