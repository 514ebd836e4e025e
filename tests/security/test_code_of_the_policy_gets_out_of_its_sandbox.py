"""The attacker's wish: what the policy writes leaves its sandbox, takes the machine's room, or stays when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from escapes import ESCAPES

from rollout.errors import InfrastructureError
from rollout.tools.sandbox import bubblewrap
from rollout.tools.sandbox.arguments import zygote_argv
from rollout.tools.sandbox.bubblewrap import Bubblewrap
from rollout.tools.sandbox.contract import NoSandbox, SandboxLimits

pytestmark = pytest.mark.process
LIMITS = SandboxLimits(seconds=2, memory_bytes=256 << 20)
PATIENT = replace(LIMITS, seconds=60)
AS_SOMEBODY = "ROLLOUT_ESCAPES_AS_SOMEBODY"


@pytest.fixture
def hosts_name():
    """An abstract socket of the host."""
    name = f"\0rollout-escapes-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        yield name


async def opened(host, limits=LIMITS):
    return await Bubblewrap(host).open(limits)


async def run_python(sandbox, code):
    return await sandbox.run(("/usr/bin/env", "python3", "-I", "-c", code))


def inside(pid: int) -> set[int]:
    """Every process that a sandbox has, as the host sees it."""
    found, wanted = set(), [pid]
    while wanted:
        one = wanted.pop()
        found.add(one)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{one}/task").iterdir():
                wanted += [int(word) for word in (task / "children").read_text().split()]
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "forks", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["forked", "spawned"]
)
@pytest.mark.parametrize("escape", ESCAPES, ids=[one.wish.replace(" ", "-") for one in ESCAPES])
async def test_the_attack_is_held(escape, forks, sandbox_host, hosts_name, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "SECRET-of-the-host")
    stray = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(stray, True)
    waited_for = escape.cause in {"time", "any"}
    maker = Bubblewrap(sandbox_host, forks=forks)
    sandbox = await maker.open(LIMITS if waited_for else PATIENT)
    try:
        result = await run_python(sandbox, escape.code.replace("HOSTS_NAME", repr(hosts_name)))
        said = result.stdout.head.decode() + result.stderr.head.decode()
        assert escape.cause in {"any", result.cause}, (result.cause, result.code, said)
        assert escape.says in said, (result, said)
        assert len(result.stdout.head) + len(result.stdout.tail) <= LIMITS.output_bytes
    finally:
        await sandbox.close()
        os.close(stray)


async def test_the_next_command_meets_nothing_that_the_last_one_left_running(sandbox_host):
    sandbox = await opened(sandbox_host, PATIENT)
    outlives = next(one for one in ESCAPES if "outlives" in one.wish)
    first = await run_python(sandbox, outlives.code)
    second = await run_python(
        sandbox,
        "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit())[1:] == [os.getpid()])",
    )
    await sandbox.close()
    assert first.num_left == 3
    assert second.stdout.head == b"True\n"


async def test_no_episode_finds_anothers_files(sandbox_host):
    one, other = await opened(sandbox_host, PATIENT), await opened(sandbox_host, PATIENT)
    await run_python(one, "open('/box/mine', 'w').write('x'); open('/tmp/mine', 'w').write('x')")
    seen = await run_python(other, "import os; print(os.listdir('/box'), os.listdir('/tmp'))")
    await one.close()
    await other.close()
    assert seen.stdout.head == b"[] []\n"


async def test_sandboxes_of_one_maker_share_neither_terminals_nor_processes_nor_sockets(
    sandbox_host,
):
    maker = Bubblewrap(sandbox_host)
    one, other = await maker.open(PATIENT), await maker.open(PATIENT)
    opens = """
import os, socket, sys, time
os.open('/dev/ptmx', os.O_RDWR)
held = socket.socket(socket.AF_UNIX); held.bind('\\0here'); held.listen()
open('/dev/shm/mine', 'w').close()
time.sleep(600)
"""
    running = asyncio.ensure_future(run_python(one, opens))
    while len(inside(one.pid)) < 2 or not Path(f"/proc/{one.pid}/root/dev/shm/mine").exists():
        await asyncio.sleep(0.01)
    seen = await run_python(
        other,
        "import os, socket\n"
        "print(os.listdir('/dev/pts'), os.listdir('/dev/shm'), sum(n.isdigit() for n in os.listdir('/proc')))\n"
        "print(socket.socket(socket.AF_UNIX).connect_ex('\\0here'))",
    )
    await one.close()
    await other.close()
    with pytest.raises(InfrastructureError):
        await running
    assert seen.stdout.head == b"['ptmx'] [] 2\n111\n"


async def test_the_end_of_what_sandboxes_are_forked_from_is_infrastructure_and_the_next_gets_another(
    sandbox_host,
):
    maker = Bubblewrap(sandbox_host)
    first = await maker.open(PATIENT)
    outside = maker._zygote._process
    (forks,) = inside(outside.pid) - {outside.pid} - inside(first.pid)
    os.kill(forks, 9)
    outside.wait()
    with pytest.raises(InfrastructureError, match="has ended"):
        await run_python(first, "print(1)")
    second = await maker.open(PATIENT)
    assert (await run_python(second, "print(1)")).stdout.head == b"1\n"
    await second.close()
    await first.close()


async def test_where_no_sandbox_can_be_forked_one_is_started(sandbox_host, monkeypatch):
    def without_places(host, programs):
        argv = list(zygote_argv(host, programs))
        at = argv.index("/box")
        return (*argv[: at - 1], *argv[at + 1 :])

    monkeypatch.setattr(bubblewrap, "zygote_argv", without_places)
    maker = Bubblewrap(sandbox_host)
    sandbox = await maker.open(PATIENT)
    assert not maker._forks
    assert (await run_python(sandbox, "print(1)")).stdout.head == b"1\n"
    await sandbox.close()


async def test_everything_ends_with_the_sandbox(sandbox_host):
    sandbox = await opened(sandbox_host, PATIENT)
    running = asyncio.ensure_future(run_python(sandbox, "import time; time.sleep(600)"))
    pids: set[int] = set()
    while len(pids) < 2:
        pids = inside(sandbox.pid)
        await asyncio.sleep(0.01)
    await sandbox.close()
    with pytest.raises(InfrastructureError):
        await running
    while any(map(is_alive, pids)):
        await asyncio.sleep(0.01)
    with pytest.raises(InfrastructureError, match="has ended"):
        await run_python(sandbox, "print(1)")


def test_everything_ends_when_whoever_started_it_is_killed(sandbox_host):
    program = """
import asyncio, sys, time
from rollout.tools.sandbox.bubblewrap import Bubblewrap
from rollout.tools.sandbox.contract import SandboxLimits
async def main():
    sandbox = await Bubblewrap().open(SandboxLimits(seconds=600))
    print(sandbox.pid, flush=True)
    await sandbox.run(("/usr/bin/env", "sleep", "600"))
asyncio.run(main())
"""
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(starter.stdout.readline())
    pids: set[int] = set()
    while len(pids) < 2:
        pids = inside(pid)
    starter.kill()
    starter.wait()
    while any(map(is_alive, pids)):
        pass
    starter.stdout.close()


async def test_a_cancelled_call_ends_the_sandbox(sandbox_host):
    sandbox = await opened(sandbox_host, PATIENT)
    running = asyncio.ensure_future(run_python(sandbox, "import time; time.sleep(600)"))
    while len(inside(sandbox.pid)) < 2:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(sandbox.pid)


async def test_a_sandbox_that_was_killed_from_outside_is_infrastructure(sandbox_host):
    sandbox = await opened(sandbox_host, PATIENT)
    os.kill(sandbox.pid, 9)
    with pytest.raises(InfrastructureError, match="has ended"):
        await run_python(sandbox, "print(1)")
    await sandbox.close()


async def test_what_is_too_large_to_be_run_is_refused_before(sandbox_host):
    sandbox = await opened(sandbox_host, PATIENT)
    with pytest.raises(ValueError, match="arguments of"):
        await run_python(sandbox, "x" * (1 << 20))
    with pytest.raises(ValueError, match="NUL"):
        await run_python(sandbox, "print('\0')")
    with pytest.raises(ValueError, match="the input has"):
        await sandbox.run(("/bin/cat",), stdin=b"x" * ((1 << 20) + 1))
    largest = await sandbox.run(("/usr/bin/wc", "-c"), stdin=b"x" * (1 << 20))
    await sandbox.close()
    assert largest.stdout.head.strip() == b"1048576"


def test_a_machine_that_cannot_keep_code_in_says_what_is_missing(sandbox_host, monkeypatch):
    from rollout.tools.sandbox import host, seccomp

    monkeypatch.setattr(host, "SYSTEM_FOLDERS", ("/nowhere",))
    with pytest.raises(NoSandbox, match=r"NoSandbox: .*need bwrap in /nowhere: install"):
        host.Host.find()
    monkeypatch.setattr(seccomp.platform, "machine", lambda: "riscv64")
    with pytest.raises(NoSandbox, match=r"NoSandbox: .*aarch64 and x86_64.*riscv64"):
        host.Host.find()


async def test_a_machine_that_forbids_namespaces_says_what_bubblewrap_said(sandbox_host):
    refusing = replace(sandbox_host, folders=("/nowhere-at-all",))
    with pytest.raises(InfrastructureError, match=r"did not come up: bwrap: .*nowhere-at-all"):
        await opened(refusing)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="this is somebody already")
@pytest.mark.skipif(AS_SOMEBODY in os.environ, reason="this is that run")
def test_all_of_it_holds_where_somebody_without_rights_starts_it(sandbox_host, tmp_path):
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if not Path(python).exists():
        pytest.skip(f"no {python} that somebody else may run")
    root = Path(__file__).parents[2]
    tmp_path.chmod(0o755)
    work = tmp_path / "theirs"
    work.mkdir()
    shutil.chown(work, 4711, 4711)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    command = [
        *("setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups", "--"),
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", str(Path(__file__))),
        *(
            "--rootdir",
            str(root),
            "-c",
            str(root / "pyproject.toml"),
            "--basetemp",
            str(work / "base"),
        ),
    ]
    packages = Path(sys.prefix, "lib", Path(python).name, "site-packages")
    sources = [str(root / part / "src") for part in ("workers", "crds")]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(work),
        "PYTHONPATH": os.pathsep.join([*sources, str(packages)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        AS_SOMEBODY: "1",
    }
    done = subprocess.run(
        command, env=environment, cwd=work, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > len(ESCAPES), done.stdout[-4000:]
