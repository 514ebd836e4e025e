"""Schemathesis, unchanged, over ``/openapi.json`` of a gateway with files before simulated engines: what is described is taken, all else is refused.

Its own checks: answers have described statuses, types, headers and schemas, nothing is a server's error, a good body is taken, a bad one
refused, a key is asked for. It is installed, pinned, into the user's cache.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from gateway_kit import TASKS, until, write_tasks
from pinned_packages import installed

pytestmark = [pytest.mark.slow, pytest.mark.process]
SCHEMATHESIS = (
    "schemathesis==4.32.5",
    "graphql-core==3.3.2",
    "harfile==0.6.0",
    "hypothesis-graphql==0.13.5",
    "jsonschema-rs==0.60.3",
    "pyrate-limiter==4.5.1",
)
"""And what it needs beside the environment of the tests."""
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
EXAMPLES = 40
"""Of each operation and phase."""
SECONDS = 540


@pytest.fixture(scope="module")
def schemathesis():
    folder, why = installed(SCHEMATHESIS)
    if folder is None:
        pytest.skip(why)
    return folder


async def fuzz(schemathesis, served, place):
    """Its exit code and words."""
    path = [str(schemathesis), str(HOOKS.parent), os.environ.get("PYTHONPATH", "")]
    words = [
        *("-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
        *("-H", f"Authorization: Bearer {served.key}"),
        *("--checks", "all", "--mode", "all", "--phases", "examples,coverage,fuzzing"),
        *("-n", str(EXAMPLES), "--seed", "19", "--generation-deterministic"),
        *("--no-color", "--request-timeout", "60"),
        *("--suppress-health-check", "all", "--warnings", "off", "--continue-on-failure"),
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "SCHEMATHESIS_HOOKS": HOOKS.stem},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            said, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process.returncode, said.decode()


async def test_schemathesis_finds_nothing(gateway, schemathesis, tmp_path):
    served = await gateway(settings={"files": str(tmp_path / "files")})
    write_tasks(served.table, served.folder / "a.sock")
    await until(lambda: {one.version.name for one in served.state.pools if one.ready} == set(TASKS))
    code, said = await fuzz(schemathesis, served, tmp_path)
    assert code == 0, said[-20_000:]
    assert "passed" in said
