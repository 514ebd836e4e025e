"""What the vLLM engine does with a server that refuses or breaks, whoever interrupts it; the server is played."""

import asyncio
import tempfile
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from rollout.engines.vllm.engine import VllmEngine
from rollout.engines.vllm.server import VllmServer
from rollout.errors import EngineError, VersionRefused
from rollout.types import GenerateRequest, SamplingParams, WeightVersion

from .played_servers import SETTINGS

VERSION = WeightVersion(lineage=0, step=1, digest="d", object="o")
REQUEST = GenerateRequest(
    prompt_ids=(1, 2), seeds=(1, 2), sampling=SamplingParams(max_new_tokens=4)
)
ENDS_WITHIN_SECONDS = 60.0


@pytest.fixture
def folder():
    """Short, as a socket's place must be."""
    with tempfile.TemporaryDirectory(prefix="vllm-") as name:
        yield Path(name)


def serve(answer, folder) -> VllmServer:
    process = SimpleNamespace(
        pid=0, exit_code=None, log_path=Path("/dev/null"), log_tail=lambda: "", stop=lambda: None
    )
    server = VllmServer(SETTINGS, folder, process)
    server._client = httpx.AsyncClient(
        transport=httpx.MockTransport(answer), base_url="http://vllm"
    )
    return server


def start_engine(server: VllmServer) -> VllmEngine:
    engine = VllmEngine(SETTINGS)
    engine._server, engine._version = server, VERSION
    return engine


class Refusing:
    """Takes the samples, and refuses them once it was paused."""

    def __init__(self, status: int = 409, pause: int = 200) -> None:
        self.status, self.pause = status, pause
        self.asked, self.paused = asyncio.Event(), asyncio.Event()
        self.paths: list[str] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        if request.url.path.endswith("generate"):
            self.asked.set()
            await self.paused.wait()
            return httpx.Response(self.status, text="refused")
        if request.url.path == "/pause":
            self.paused.set()
            return httpx.Response(self.pause, json={})
        return httpx.Response(200, json={})


async def interrupt(answer: Refusing, folder) -> VllmServer:
    server = serve(answer, folder)
    engine = start_engine(server)
    sampling = asyncio.create_task(engine.generate([REQUEST]))
    await answer.asked.wait()
    engine.interrupt()
    with pytest.raises(EngineError):
        await asyncio.wait_for(sampling, ENDS_WITHIN_SECONDS)
    return server


async def test_an_interrupted_generation_whose_samples_are_refused_ends(folder):
    answer = Refusing()
    server = await interrupt(answer, folder)
    assert answer.paths[-1] == "/resume"
    assert server.healthy


async def test_a_server_that_cannot_be_paused_is_not_used_again(folder):
    server = await interrupt(Refusing(pause=404), folder)
    assert not server.healthy


@pytest.mark.parametrize("later", [400, 409])
async def test_a_broken_server_stays_broken_whatever_it_answers_later(folder, later):
    server = serve(
        lambda request: httpx.Response(500 if request.url.path == "/a" else later), folder
    )
    for path, error in (
        ("/a", EngineError),
        ("/b", VersionRefused if later == 409 else EngineError),
    ):
        with pytest.raises(error):
            await server.call(path, seconds_max=1)
        assert not server.healthy
