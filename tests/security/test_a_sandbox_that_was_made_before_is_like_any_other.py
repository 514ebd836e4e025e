"""The attacker's hope: a sandbox that waited, or a command that was begun the short way, is held less than another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rollout.tools.sandbox.bubblewrap import Bubblewrap
from rollout.tools.sandbox.contract import SandboxLimits

pytestmark = pytest.mark.process
LIMITS = SandboxLimits(seconds=60, memory_bytes=256 << 20)
FORKED = replace(LIMITS, memory_bytes=127 << 20)
"""Of less memory than commands are spawned in."""
OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33, which it keeps for its threads, and ignores in what it spawns."""
TELLS = """
import json, os, resource, time
while os.nice(0) != 10 or resource.getrlimit(resource.RLIMIT_CPU)[1] < 0:
    time.sleep(0.001)
names = ("CPU", "FSIZE", "NOFILE", "NPROC", "CORE", "MEMLOCK", "MSGQUEUE", "STACK")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "bounds": {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in names},
    "status": {name: status[name].split() for name in (
        "SigIgn", "SigBlk", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups")},
    "alone": [os.getsid(0) == os.getpid(), os.getcwd(), os.getppid(), sorted(os.environ)],
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    "space": resource.getrlimit(resource.RLIMIT_AS)[0] // (1 << 20),
}))
"""


async def told(sandbox, code):
    result = await sandbox.run(("/usr/bin/env", "python3", "-I", "-c", code))
    assert result.code == 0, result.stderr.head
    return result.stdout.head.decode()


async def test_a_command_stands_the_same_however_it_was_begun(sandbox_host):
    maker = Bubblewrap(sandbox_host)
    stands = []
    for limits in (LIMITS, FORKED):
        sandbox = await maker.open(limits)
        stood = json.loads(await told(sandbox, TELLS))
        (ignored,) = stood["status"].pop("SigIgn")
        stands.append({**stood, "ignored": int(ignored, 16) & ~OF_THE_C_LIBRARY})
        await sandbox.close()

    assert [one.pop("space") for one in stands] == [512, 254]
    assert stands[0] == stands[1]
    assert stands[0]["bounds"]["NPROC"] == [LIMITS.processes] * 2
    assert stands[0]["descriptors"] == [0, 1, 2]


@pytest.mark.parametrize("limits", [LIMITS, FORKED], ids=["spawned", "forked"])
@pytest.mark.parametrize("program", ["/usr/bin/nothing-of-this-name", "/box", "/etc/os-release"])
async def test_what_cannot_be_run_says_so_and_the_next_command_runs(sandbox_host, limits, program):
    sandbox = await Bubblewrap(sandbox_host).open(limits)
    failed = await sandbox.run((program,))
    assert (failed.cause, failed.code) == ("exit", 127)
    assert failed.stderr.head.startswith(f"cannot run ['{program}']: ".encode())
    assert await told(sandbox, "print(1)") == "1\n"
    await sandbox.close()


async def test_a_sandbox_that_may_have_one_process_runs_one(sandbox_host):
    sandbox = await Bubblewrap(sandbox_host).open(replace(LIMITS, processes=1))
    result = await sandbox.run(("/bin/true",))
    assert (result.cause, result.code) == ("exit", 0)
    code = "import os\ntry: os.fork()\nexcept BlockingIOError: print('none')"
    assert await told(sandbox, code) == "none\n"
    await sandbox.close()


async def test_who_asks_again_gets_what_was_made_before_and_others_do_not(sandbox_host):
    maker = Bubblewrap(sandbox_host)
    room = "import os; told = os.statvfs('/box'); print(told.f_blocks * told.f_frsize)"
    for _ in range(2):
        await (await maker.open(LIMITS)).close()
    assert waiting(maker) is not None
    third = await maker.open(LIMITS)
    small = await maker.open(replace(LIMITS, disk_bytes=1 << 20))

    assert await told(third, room) == f"{LIMITS.disk_bytes}\n"
    assert await told(small, room) == f"{1 << 20}\n"
    assert waiting(maker) is None
    await third.close()
    await small.close()


async def test_one_that_died_while_it_waited_is_not_given_to_anybody(sandbox_host):
    maker = Bubblewrap(sandbox_host)
    for _ in range(2):
        await (await maker.open(LIMITS)).close()
    for pid in children_of_the_forking_process(maker):
        os.kill(pid, 9)
        while is_there(pid):
            await asyncio.sleep(0.001)
    sandbox = await maker.open(LIMITS)
    assert await told(sandbox, "print(1)") == "1\n"
    await sandbox.close()


async def test_what_waits_ends_with_whom_it_was_made_for(sandbox_host):
    maker = Bubblewrap(sandbox_host)
    for _ in range(2):
        await (await maker.open(LIMITS)).close()
    left = children_of_the_forking_process(maker)
    assert left
    del maker
    while any(map(is_there, left)):
        await asyncio.sleep(0.001)


def waiting(maker):
    return maker._zygote._spare


def children_of_the_forking_process(maker):
    """Sandboxes that are there; the last that were closed may still be ending."""
    outside = maker._zygote._process.pid
    return [child for forks in children_of(outside) for child in children_of(forks)]


def children_of(pid):
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def is_there(pid):
    return Path(f"/proc/{pid}").exists()
