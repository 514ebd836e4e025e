"""What an episode costs beside its tokens: our loop beside verifiers', a call of a plugin beside bare gRPC, a sandbox beside bare bubblewrap.

Turn by turn in one run, both sides in Python: with the same episodes on one simulated server in a process of its own
(by processor time), with the same messages over a Unix socket, or with the same command.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
from duel import HERE, Side, fight
from episodes_job import EPISODES
from figures import Figure, level, ratio

sys.path.insert(0, str(Path(__file__).parents[1]))
from pinned_packages import VERIFIERS, installed

from rollout.plugins.sidecar.client import CHANNEL, CLOSE, START, STEP, PluginClient
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.manifest import read_plugin
from rollout.tools.sandbox.bubblewrap import Bubblewrap
from rollout.tools.sandbox.contract import SandboxLimits

PAIRS, CALLS, STARTS = 11, 300, 10
SIZES = {"200 B": 200, "16 KiB": 16 << 10}
PLUGIN = """
from rollout.plugins.serving import serve
from rollout.turns import State
from rollout.types import Message


class Echo:
    def __init__(self, row): ...

    async def start(self):
        return State(messages=(Message(role="user", content="hello"),))

    async def step(self, action):
        return State(messages=(Message(role="user", content=action.text),))

    async def close(self): ...


serve(environment=Echo)
"""
BARE = """
import asyncio, sys, grpc
from rollout.plugins.sidecar.client import CHANNEL
from rollout.plugins.sidecar.contract import plugin_pb2 as contract


async def step(request, _):
    part = contract.Part(text=request.text)
    return contract.Turn(state=contract.State(messages=[contract.Message(role="user", parts=[part])]))


async def main():
    server = grpc.aio.server(options=CHANNEL)
    handler = grpc.unary_unary_rpc_method_handler(
        step, contract.StepRequest.FromString, contract.Turn.SerializeToString
    )
    handlers = grpc.method_handlers_generic_handler("rollout.plugin.v1.Environment", {"Step": handler})
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port("unix:" + sys.argv[1])
    await server.start()
    await server.wait_for_termination()


asyncio.run(main())
"""


def measure() -> Iterator[Figure]:
    """Calls of two sizes, then sandboxes, then episodes."""
    with tempfile.TemporaryDirectory() as place:
        yield from _calls(Path(place))
    yield asyncio.run(_sandboxes())
    yield from _episodes()


def _calls(place: Path) -> Iterator[Figure]:
    (place / "plugin.py").write_text(PLUGIN)
    (place / "plugin.yaml").write_text(
        "{contract: 1, name: echo, version: '1', kind: environment, command: [python, plugin.py]}"
    )
    client = PluginClient(read_plugin(place), {})
    client.ask(START, contract.StartRequest(episode="e", row_json="{}"), 30)
    server = subprocess.Popen([sys.executable, "-c", BARE, f"{place}/bare"])
    channel = grpc.insecure_channel(f"unix:{place}/bare", options=CHANNEL)
    grpc.channel_ready_future(channel).result(30)
    bare = channel.unary_unary(
        STEP.path, contract.StepRequest.SerializeToString, contract.Turn.FromString
    )
    for name, size in SIZES.items():
        said = contract.Message(role="assistant", parts=[contract.Part(text="x" * size)])
        request = contract.StepRequest(episode="e", text="x" * size, message=said)
        ours, theirs = [], []
        for _ in range(PAIRS + 1):
            ours.append(_time(lambda: client.ask(STEP, request, 30)))  # noqa: B023 - called at once
            theirs.append(_time(lambda: bare(request, timeout=30)))  # noqa: B023
        yield ratio(f"plugin call {name}, bare grpcio : ours", ours[1:], theirs[1:], ">= 0.667")
    client.ask(CLOSE, contract.CloseRequest(episode="e"), 30)
    client.close()
    channel.close()
    server.kill()
    server.wait()


def _time(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - began


async def _sandboxes() -> Figure:
    """Made, one command, and ended; the other side is the least that bubblewrap does."""
    program = shutil.which("bwrap") or "bwrap"
    least = [
        program,
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
    ]
    ours, theirs = [], []
    maker = Bubblewrap()  # of a process, as in a run
    for _ in range(PAIRS + 1):
        began = time.perf_counter()
        for _ in range(STARTS):
            sandbox = await maker.open(SandboxLimits())
            await sandbox.run(("/bin/true",))
            await sandbox.close()
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(STARTS):
            done = await asyncio.create_subprocess_exec(*least, "/bin/true")
            assert await done.wait() == 0
        theirs.append(time.perf_counter() - began)
    return ratio("sandboxes, ours : bare bubblewrap", ours[1:], theirs[1:], ">= 0.8")


def _episodes() -> Iterator[Figure]:
    """Eight turns each, 64 at a time. Raises RuntimeError where verifiers' packages cannot be had."""
    folder, why = installed(VERIFIERS)
    if folder is None:
        raise RuntimeError(f"no figures beside verifiers: {why}")
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, str(HERE / "episodes_server.py"), place]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            sides = {
                "ours": Side(script="episodes_ours.py", arguments=(place,)),
                "verifiers": Side(script="episodes_theirs.py", arguments=(port, str(folder))),
            }
            found = fight(sides, [PAIRS - PAIRS // 2, PAIRS // 2])
        finally:
            server.kill()
            server.wait()
    for what, bar in (("cpu_seconds", ">= 2"), ("seconds", "info")):
        spent = [found.values(side, what) for side in sides]
        yield ratio(f"8-turn episodes, {what}, verifiers : ours", *spent, bar)
    each = [1000 * seconds / EPISODES for seconds in found.values("ours", "cpu_seconds")]
    yield level("processor time of an 8-turn episode, ours", each, "ms", "info")
