"""vLLM asleep: nobody samples before its weights are proven, whatever became of them; the server is played by vLLM's rules."""

from __future__ import annotations

import ast
import asyncio
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sleeping_server import SleepingServer

from rollout.engines.device_turns import Clock, DeviceTurn
from rollout.engines.shared_device import SharedDevice
from rollout.engines.vllm import engine as engines
from rollout.engines.vllm.command import build_arguments
from rollout.engines.vllm.engine import VllmEngine
from rollout.engines.vllm.server import VllmServer
from rollout.errors import EngineError, VersionRefused
from rollout.types import GenerateRequest, SamplingParams, WeightVersion

from .played_servers import SETTINGS

FIRST = WeightVersion(lineage=0, step=1, digest="first", object="o1")
SECOND = WeightVersion(lineage=0, step=2, digest="second", object="o2")
REQUEST = GenerateRequest(
    prompt_ids=(1, 2), seeds=(1, 2), sampling=SamplingParams(max_new_tokens=4)
)


@pytest.fixture
def folder():
    """Short, as a socket's place must be."""
    with tempfile.TemporaryDirectory(prefix="vllm-") as name:
        yield Path(name)


class Process:
    pid, log_path = 0, Path("/dev/null")

    def __init__(self) -> None:
        self.exit_code = None

    def log_tail(self) -> str:
        return ""

    def stop(self) -> None:
        self.exit_code = 0


@pytest.fixture
def started(folder, monkeypatch):
    """Engines whose servers are played; every one that was started."""

    def start(level: int, harm: str = "") -> tuple[VllmEngine, list[SleepingServer]]:
        played: list[SleepingServer] = []

        async def start_server(chosen, *, fresh):
            del fresh
            played.append(SleepingServer(harm if not played else ""))
            server = VllmServer(chosen, folder, Process())
            transport = httpx.ASGITransport(app=played[-1].app)
            server._client = httpx.AsyncClient(transport=transport, base_url="http://vllm")
            return server

        monkeypatch.setattr(engines, "start_server", start_server)
        engine = VllmEngine(replace(SETTINGS, sleep_level=level))
        monkeypatch.setattr(engine, "_require_whole", lambda weights: None)
        return engine, played

    return start


async def load(engine, version, played, changed=None) -> None:
    assert await engine.load(version, Path(version.digest), changed) == version.digest
    played[-1].label = engines.label_version(version)


async def sample(engine) -> list[int]:
    [group] = await engine.generate([REQUEST])
    return [one.token_ids[0] for one in group]


@pytest.mark.parametrize("level", [1, 2])
async def test_an_engine_that_slept_samples_the_version_that_is_loaded_then(started, level):
    engine, played = started(level)
    await engine.start()
    await load(engine, FIRST, played)
    await engine.rest()
    assert not played[0].holds_device
    assert engine.version is None
    with pytest.raises(EngineError, match="no weights loaded"):
        await sample(engine)
    with pytest.raises(EngineError, match="call wake before load"):
        await engine.load(SECOND, Path("second"))

    await engine.wake()
    assert engine.version == (FIRST if level == 1 else None)
    await load(engine, SECOND, played)

    assert await sample(engine) == [5, 5]
    assert played[0].weights == "second"
    assert played[0].updates[-1].keys() == {"path"}
    assert len(played) == 1


async def test_level_1_has_its_version_again_and_loads_what_changed(started):
    engine, played = started(1)
    await engine.start()
    await load(engine, FIRST, played)
    await engine.rest()
    await engine.wake()
    assert await sample(engine) == [5, 5]
    await load(engine, SECOND, played, frozenset({"w"}))
    assert played[0].updates[-1]["base"] == "first"
    assert played[0].weights == "second"


async def test_weights_that_come_back_as_others_are_never_sampled_from(started):
    engine, played = started(1, harm="host copy damaged")
    await engine.start()
    await load(engine, FIRST, played)
    await engine.rest()
    await engine.wake()
    assert engine.version is None
    with pytest.raises(EngineError, match="no weights loaded"):
        await sample(engine)
    await load(engine, SECOND, played, frozenset({"w"}))
    assert played[0].updates[-1].keys() == {"path"}
    assert await sample(engine) == [5, 5]


@pytest.mark.parametrize("level", [1, 2])
async def test_the_servers_gate_is_closed_from_sleep_to_proof_to_whoever_asks(started, level):
    engine, played = started(level)
    await engine.start()
    await load(engine, FIRST, played)
    server, label = engine._server, engines.label_version(FIRST)
    await engine.rest()
    for path, parameters in (("/wake_up", None), ("/resume", None)):
        await server.call(path, parameters=parameters, seconds_max=5)
        with pytest.raises(VersionRefused):
            await server.call("/inference/v1/generate", body={}, seconds_max=5, version=label)
    assert played[0].asked.count("/inference/v1/generate") == 0


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("harm", ["wake fails", "sleeps on"])
async def test_a_server_that_does_not_wake_is_replaced(started, harm, level):
    engine, played = started(level, harm)
    await engine.start()
    await load(engine, FIRST, played)
    await engine.rest()
    with pytest.raises(EngineError):
        await engine.wake()
        await load(engine, SECOND, played)
    assert engine.version is None
    await engine.wake()
    await load(engine, SECOND, played)
    assert await sample(engine) == [5, 5]
    assert len(played) == 2


async def test_only_servers_that_may_sleep_are_started_so(folder):
    assert "--enable-sleep-mode" not in build_arguments(SETTINGS, folder)
    assert "--enable-sleep-mode" in build_arguments(replace(SETTINGS, sleep_level=1), folder)
    with pytest.raises(EngineError, match="not started to sleep"):
        await VllmEngine(SETTINGS).rest()


@pytest.mark.parametrize("harm", ["", "sleep fails", "wake fails"])
async def test_a_turn_ends_with_an_engine_that_is_asleep_or_ended(started, tmp_path, harm):
    engine, played = started(2, harm)
    learner = DeviceTurn(tmp_path / "turn", alone=True, seconds_max=0.0)
    device = SharedDevice(engine, DeviceTurn(tmp_path / "turn", alone=False))
    await device.enter()
    await engine.start()
    await load(engine, FIRST, played)
    with pytest.raises(TimeoutError, match="in use by another process"):
        learner.take()
    assert device.yields
    await device.leave()
    learner.take()
    assert not played[0].holds_device or engine._server is None
    learner.give()
    if harm == "wake fails":
        with pytest.raises(EngineError):
            await device.enter()
        assert device.yields
        await device.leave()
        assert engine._server is None
    await device.enter()
    await load(engine, SECOND, played)
    assert await sample(engine) == [5, 5]
    await engine.stop()


async def test_an_engine_that_gets_no_turn_is_not_woken(started, tmp_path):
    engine, played = started(2)
    learner = DeviceTurn(tmp_path / "turn", alone=True)
    learner.take()
    device = SharedDevice(engine, DeviceTurn(tmp_path / "turn", alone=False, seconds_max=0.0))
    with pytest.raises(EngineError, match="no turn on its device"):
        await device.enter()
    assert not played
    await device.leave()


def test_engines_have_turns_together_and_the_learner_alone(tmp_path):
    now = [0.0]
    waits = Clock(now=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))

    def turn(*, alone: bool) -> DeviceTurn:
        return DeviceTurn(tmp_path / "turn", alone=alone, seconds_max=1.0, clock=waits)

    engines_turns, learner = [turn(alone=False), turn(alone=False)], turn(alone=True)
    for one in engines_turns:
        one.take()
        one.take()
        with pytest.raises(TimeoutError):
            learner.take()
    assert now[0] >= 2.0
    for one in engines_turns:
        one.give()
        one.give()
    learner.take()
    with pytest.raises(TimeoutError):
        engines_turns[0].take()
    assert not engines_turns[0].is_held


@pytest.mark.process
async def test_whoever_is_killed_has_no_turn(tmp_path):
    take = (
        "import sys, time; from pathlib import Path; from rollout.engines.device_turns import DeviceTurn;"
        "DeviceTurn(Path(sys.argv[1]), alone=True).take(); print('has it', flush=True); time.sleep(600)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", take, str(tmp_path / "turn"), stdout=asyncio.subprocess.PIPE
    )
    assert await process.stdout.readline() == b"has it\n"
    mine = DeviceTurn(tmp_path / "turn", alone=False, seconds_max=0.0)
    with pytest.raises(TimeoutError):
        mine.take()
    process.kill()
    await process.wait()
    mine.take()
    assert mine.is_held


VLLM = find_spec("vllm")


@pytest.mark.skipif(VLLM is None, reason="reads the source of vLLM, which is not installed")
def test_vllm_has_the_routes_that_are_asked():
    package = Path(VLLM.submodule_search_locations[0])
    routes = ast.parse((package / "entrypoints/serve/dev/sleep/api_router.py").read_text())
    functions = {one.name: one for one in ast.walk(routes) if isinstance(one, ast.AsyncFunctionDef)}
    said = {name: ast.unparse(one) for name, one in functions.items()}
    assert "@router.post('/sleep')" in said["sleep"]
    assert {"level", "mode"} <= {one.arg for one in functions["sleep"].args.args}
    assert "@router.post('/wake_up')" in said["wake_up"]
    assert "getlist('tags')" in said["wake_up"]
    assert "'awake' if fully_awake else 'sleeping'" in said["wake_up"]
    executor = (package / "v1/executor/abstract.py").read_text()
    assert "SLEEP_TAGS" in executor
    assert (
        "def compute_weight_checksums(self) -> dict[str, str]"
        in (package / "v1/worker/gpu_worker.py").read_text()
    )
