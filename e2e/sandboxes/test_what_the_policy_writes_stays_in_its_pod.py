"""The escape list of sandboxes, in real pods on real nodes, made by the run's broker under the coordinator's own account."""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "security"))

from brokered import Brokered, Desk, build_brokered, wait_for_policy
from escapes import ESCAPES, Escape

from cluster.errors import BuildError
from cluster.nodes import containers
from cluster.providers import Cluster
from cluster.skips import or_skip
from namespaces import in_namespace
from rollout.errors import InfrastructureError
from rollout.tools.sandbox.contract import SandboxLimits
from rollout.tools.sandbox.pods.sandbox import PodSandboxes, program_memory

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]
SHORT = SandboxLimits(seconds=2, memory_bytes=256 << 20)
PATIENT = SandboxLimits(seconds=60, memory_bytes=256 << 20)
PYTHON = ("/usr/bin/env", "python3", "-I", "-c")
AT_ONCE = 4
OF_A_POD = {
    "files of the host, by absolute paths, .. and links": """
for path in ('/work', '/var/run/secrets', '/var/lib/kubelet', '/var/lib/containerd', '/host', '/run/containerd'):
    assert not os.path.exists(path), path
os.symlink('/../../../etc/shadow', '/box/link')
refused(lambda: open('/box/link'))
refused(lambda: os.link('/etc/passwd', '/box/hard'))
refused(lambda: open('/dev/mem'))""",
    "only the loopback device": """
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_PACKET):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        refused(lambda: socket.socket(family, kind))""",
    "settings of the kernel": """
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/sys/net/ipv4/ip_forward',
             '/proc/sysrq-trigger', '/proc/sys/kernel/hostname', '/sys/kernel/mm/ksm/run'):
    if os.path.exists(path):
        refused(lambda: open(path, 'r+b', buffering=0).write(b'1'))
refused(lambda: open('/proc/self/oom_score_adj', 'wb', buffering=0).write(b'-1000'))
refused(lambda: socket.sethostname('mine'))""",
    "secrets of whoever started it, in variables, descriptors and mounts": """
assert not [name for name in os.environ if 'SECRET' in name or 'KUBERNETES' in name], os.environ
refused(lambda: open('/proc/1/environ', 'rb').read())
assert b'SECRET' not in open('/proc/self/environ', 'rb').read()
assert sorted(os.listdir('/proc/self/fd'), key=int) == ['0', '1', '2', '3'], os.listdir('/proc/self/fd')
assert not os.path.exists('/var/run/secrets')""",
}
"""What is asked of a pod in other words: it has an image's files and a network, which its code may not use."""


@pytest.fixture(scope="module")
def brokered(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokered]:
    with or_skip(BuildError):
        real_cluster.import_image(containers.ensure_worker())
    with in_namespace(real_cluster.kubectl) as mine:
        made = build_brokered(mine, tmp_path_factory.mktemp("broker"))
        wait_for_policy(made)
        yield made


def sandboxes(desk: Desk, brokered: Brokered) -> PodSandboxes:
    return PodSandboxes(desk, program_memory(brokered.order.memory))


async def attack(maker: PodSandboxes, escape: Escape) -> str:
    """What came of it, where that is not what must."""
    program = OF_A_POD.get(escape.wish, escape.program).replace("HOSTS_NAME", repr("\0nowhere"))
    code = Escape(wish=escape.wish, program=program).code
    sandbox = await maker.open(SHORT if escape.cause in {"time", "any"} else PATIENT)
    try:
        result = await sandbox.run((*PYTHON, code))
    finally:
        await sandbox.close()
    said = (result.stdout.head + result.stderr.head).decode(errors="replace")
    good = escape.cause in {"any", result.cause} and escape.says in said
    kept = len(result.stdout.head) + len(result.stdout.tail) <= SHORT.output_bytes
    return "" if good and kept else f"{escape.wish}: {result.cause} {result.code}: {said[-500:]}"


def test_the_escape_list_is_held(brokered: Brokered):
    async def live() -> list[str]:
        free = asyncio.Semaphore(AT_ONCE)
        async with Desk(brokered.broker()).open() as desk:
            maker = sandboxes(desk, brokered)

            async def one(escape: Escape) -> str:
                async with free:
                    return await attack(maker, escape)

            return await asyncio.gather(*map(one, ESCAPES))

    assert [one for one in asyncio.run(live()) if one] == []


def test_episodes_share_nothing_and_their_pods_are_gone_afterwards(brokered: Brokered):
    write = "open('/box/mine', 'w').write('x'); open('/tmp/mine', 'w').write('x')"
    look = "import os; print(os.listdir('/box'), os.listdir('/tmp'))"

    async def live() -> tuple[Any, set[str], set[str]]:
        async with Desk(brokered.broker()).open() as desk:
            maker = sandboxes(desk, brokered)
            one, other = await asyncio.gather(maker.open(PATIENT), maker.open(PATIENT))
            await one.run((*PYTHON, write))
            seen = await other.run((*PYTHON, look))
            used = {one.grant.name, other.grant.name}
            await asyncio.gather(one.close(), other.close())
            left = set(await brokered.pods().list())
            until = time.monotonic() + 60.0
            while used & left and time.monotonic() < until:
                await asyncio.sleep(0.5)
                left = set(await brokered.pods().list())
            return seen, used, left

    seen, used, left = asyncio.run(live())
    assert seen.stdout.head == b"[] []\n"
    assert len(used) == 2 and not used & left


def test_a_pod_that_is_killed_is_infrastructure_and_the_next_one_is_fresh(brokered: Brokered):
    async def live() -> bytes:
        async with Desk(brokered.broker()).open() as desk:
            maker = sandboxes(desk, brokered)
            sandbox = await maker.open(PATIENT)
            running = asyncio.ensure_future(sandbox.run((*PYTHON, "import time; time.sleep(50)")))
            await asyncio.sleep(0)
            name = sandbox.grant.name
            await asyncio.to_thread(
                brokered.kubectl, "delete", "pod", name, "--force", "--grace-period=0"
            )
            with pytest.raises(InfrastructureError, match=name):
                await running
            fresh = await maker.open(PATIENT)
            said = await fresh.run((*PYTHON, "print('fresh')"))
            await fresh.close()
            return said.stdout.head

    assert asyncio.run(live()) == b"fresh\n"


def test_pods_end_with_the_coordinators_own_pod(brokered: Brokered):
    async def live() -> None:
        async with Desk(brokered.broker()).open() as desk:
            sandbox = await sandboxes(desk, brokered).open(PATIENT)
            assert (await sandbox.run((*PYTHON, "print(1)"))).stdout.head == b"1\n"
        kubectl = brokered.kubectl
        await asyncio.to_thread(kubectl, "delete", "pod", brokered.owner.name, "--wait=true")
        chosen = ("pods", "-l", f"rollout.dev/sandbox-of={brokered.uid}")
        until = time.monotonic() + 120.0
        while kubectl.get(*chosen)["items"] and time.monotonic() < until:  # noqa: ASYNC110 - the cluster says nothing
            await asyncio.sleep(1.0)
        assert kubectl.get(*chosen)["items"] == []

    asyncio.run(live())
