"""Agents that own their loop, servers of tools and hidden tests in real pods: what each does there, and where an agent goes that must not."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from agent_programs import agent, play_agent
from brokered import Brokered, Desk, build_brokered, in_pods, wait_for_policy
from servers import asked, served, tool_of

from cluster.errors import BuildError
from cluster.nodes import containers
from cluster.providers import Cluster
from cluster.skips import or_skip
from namespaces import in_namespace
from rollout.errors import InfrastructureError
from rollout.protocol import messages as m
from rollout.rewards.code_tests.running import ProgramBounds, run_tests
from rollout.rewards.code_tests.tasks import read_task
from rollout.tools.mcp.source import McpSource
from rollout.tools.sandbox.contract import SandboxLimits
from rollout.tools.sandbox.pods.sandbox import PodSandboxes, program_memory

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]
ENVIRONMENT = {"agent": {"command": ["python", "agent.py"]}}
LIMITS = SandboxLimits(seconds=60, memory_bytes=256 << 20)
PYTHON = ("/usr/bin/env", "python3", "-I", "-c")
VERIFIER = """
import json, os
said = open("/app/said").read()
row = json.load(open("/tests/row.json"))
assert os.listdir("/logs/verifier") == [".keep"], os.listdir("/logs/verifier")
open("/logs/verifier/reward.txt", "w").write("0.75" if said == "r" and row["answer"] == "a" else "0")
"""


@pytest.fixture(scope="module")
def brokered(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokered]:
    with or_skip(BuildError):
        real_cluster.import_image(containers.ensure_worker())
    with in_namespace(real_cluster.kubectl) as mine:
        small = {"memoryRequest": "64Mi", "cpuRequest": "50m", "warmPods": 1}
        made = build_brokered(mine, tmp_path_factory.mktemp("broker"), ENVIRONMENT, **small)
        wait_for_policy(made)
        yield made


async def play(text: str, verifier: str | None = None, **settings: Any) -> Any:
    return (await play_agent(agent(text, verifier, **settings), lambda prompt, seed: "r"))[0]


def test_an_agent_talks_to_its_endpoint_and_is_judged(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
):
    text = """
os.makedirs("/logs/verifier"); open("/logs/verifier/reward.txt", "w").write("1")
open("said", "w").write(chat([user("q")])["content"])
"""

    async def live() -> Any:
        async with in_pods(brokered, monkeypatch):
            return await play(text, VERIFIER)

    played = asyncio.run(live())
    assert [one.turn_rewards for one in played.episodes] == [(0.75,)], played.failure


def test_an_agent_reaches_no_other_episode_no_coordinator_no_metadata_and_no_api_server(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
):
    kubectl = brokered.kubectl
    coordinator = kubectl.get("pod", brokered.owner.name)["status"]["podIP"]
    api = urlsplit(brokered.api.api_url)
    service = kubectl.get("service", "kubernetes", "-n", "default")["spec"]["clusterIP"]
    with socket.create_connection((api.hostname, api.port), 10):
        pass  # it is there for whoever has a socket

    async def live() -> Any:
        async with in_pods(brokered, monkeypatch) as maker:
            other = await maker.open(LIMITS)
            targets = [
                *((other.grant.address, port) for port in (8000, brokered.order.port)),
                *((coordinator, port) for port in (8443, 8000)),
                *(("169.254.169.254", 80), (service, 443), (api.hostname, api.port)),
                *(("8.8.8.8", 53), ("127.0.0.1", brokered.order.port)),
            ]
            text = f"""
import errno, socket
for target in {targets!r}:
    with socket.socket() as one:
        said = one.connect_ex(target)
        assert said == errno.ECONNREFUSED, (target, said)
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    try: socket.socket(socket.AF_INET, kind)
    except OSError: pass
    else: sys.exit("made a socket")
assert not os.path.exists("/var/run/secrets"), os.listdir("/var/run")
assert not [name for name in os.environ if "KUBERNETES" in name or "SECRET" in name]
try: open("/proc/1/environ").read()
except OSError: pass
else: sys.exit("read process 1")
chat([user("q")])
"""
            played = await play(text)
            await other.close()
            return played

    played = asyncio.run(live())
    assert [one.signals.get("exit_code") for one in played.episodes] == [0], played


def test_a_server_of_tools_answers_and_one_that_floods_or_eats_is_told(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
):
    async def live() -> list[str]:
        async with in_pods(brokered, monkeypatch) as maker:
            host: Any = None
            shelf = McpSource(served(host).program, lambda: maker)
            # asked in this loop: the desk of the test belongs to it
            from rollout.tools.mcp import source

            program = shelf.program
            source._listed[program] = await source._list(program, maker)  # noqa: SLF001
            try:
                both = await asked(tool_of(shelf, "keep"), {"text": "a"}, {"text": "b"})
                bad = [(await asked(tool_of(shelf, name)))[0] for name in ("line", "errors", "eat")]
                look = await asked(tool_of(shelf, "look"))
            finally:
                del source._listed[program]  # noqa: SLF001
            return [one.text for one in (*both, *bad, *look)]

    kept, again, *bad, look = asyncio.run(live())
    assert (kept, again) == ("a", "a,b")
    assert all(one.startswith("error: the server ") for one in bad), bad
    assert '"net": "PermissionError"' in look and "server.py" in look


def test_hidden_tests_decide_on_programs(brokered: Brokered, monkeypatch: pytest.MonkeyPatch):
    task = read_task({"tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]}, "tests")

    async def live() -> list[list[str]]:
        async with in_pods(brokered, monkeypatch) as maker:
            bounds = ProgramBounds(memory_bytes=256 << 20)
            programs = ("def add(a, b): return a + b", "def add(a, b): return 0")
            found = [await run_tests(maker, task, one, bounds) for one in programs]
            return [[case.became for case in one] for one in found]

    assert asyncio.run(live()) == [["passed", "passed"], ["failed", "passed"]]


def test_a_broker_that_is_started_anew_removes_what_was_there_and_goes_on(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
):
    async def live() -> bytes:
        async with in_pods(brokered, monkeypatch) as maker:
            sandbox = await maker.open(LIMITS)
            assert (await sandbox.run((*PYTHON, "print(1)"))).stdout.head == b"1\n"
        async with in_pods(brokered, monkeypatch) as maker:
            fresh = await maker.open(LIMITS)
            with pytest.raises(InfrastructureError, match="sandbox pod"):
                await sandbox.run((*PYTHON, "import time; time.sleep(50)"))
            said = await fresh.run((*PYTHON, "print('fresh')"))
            await fresh.close()
            return said.stdout.head

    assert asyncio.run(live()) == b"fresh\n"


def test_episodes_beyond_the_namespaces_quota_wait_and_are_told_why(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"count/pods": "3"}},
    }

    async def one(maker: PodSandboxes) -> bytes:
        sandbox = await maker.open(LIMITS)
        try:
            return (await sandbox.run((*PYTHON, "print('done')"))).stdout.head
        finally:
            await sandbox.close()

    async def live() -> tuple[str, list[bytes]]:
        broker = brokered.broker()
        desk = Desk(broker)
        async with desk.open():
            maker = PodSandboxes(desk, program_memory(brokered.order.memory))
            held = [await maker.open(LIMITS), await maker.open(LIMITS)]
            given, asked_for = m.SandboxClaimed(), m.ClaimSandbox(claim="third", wait_seconds=5.0)
            for _ in range(12):
                given = await broker.claim(desk._run, asked_for)  # noqa: SLF001
                if "quota" in given.reason:
                    break
            broker.pool.withdraw("third", 0.0)
            for sandbox in held:
                await sandbox.close()
            return given.reason, await asyncio.gather(*(one(maker) for _ in range(6)))

    brokered.kubectl.apply(quota)
    try:
        why, done = asyncio.run(live())
    finally:
        brokered.kubectl("delete", "resourcequota", "few")
    assert "exceeded quota" in why
    assert done == [b"done\n"] * 6
