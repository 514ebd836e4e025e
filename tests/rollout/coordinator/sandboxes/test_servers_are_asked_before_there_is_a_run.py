"""The coordinator's pod asks servers for their tools in sandbox pods that it makes itself, and leaves none."""

import contextlib
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "security"))
sys.path.append(str(Path(__file__).parents[2] / "tools"))

from boxed_pods import LOOPBACK, begin, free_port
from servers import served

from rollout.coordinator.sandboxes import own
from rollout.coordinator.sandboxes.broker import PodBroker, PodOwner
from rollout.coordinator.sandboxes.pod_api import PodRefused
from rollout.coordinator.sandboxes.pool import PodSeen, Pool, PoolBounds
from rollout.errors import SpecError
from rollout.tools.mcp import source
from rollout.tools.mcp.source import McpSource
from rollout.tools.sandbox.pods.sandbox import PodSandboxes
from rollout_api.worker import SandboxOrder

pytestmark = pytest.mark.process
PREFIX = "ROLLOUT_SANDBOX_"
TEMPLATE = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "sandbox"}]}}


@pytest.fixture(autouse=True)
def _nobody_has_asked(monkeypatch):
    """A process asks a server once: here no other test has."""
    monkeypatch.setattr(source, "_listed", {})


class Processes:
    """An API server whose pods are processes: those that are ready are listed so."""

    def __init__(self, host, refusal=""):
        self._host, self._refusal = host, refusal
        self.pods, self.made = {}, 0

    def keeping(self):
        return contextlib.nullcontext()

    async def create(self, manifest):
        if self._refusal:
            raise PodRefused(self._refusal)
        [container] = manifest["spec"]["containers"]
        given = {one["name"].removeprefix(PREFIX): one["value"] for one in container["env"]}
        self.made += 1
        name = manifest["metadata"]["name"]
        self.pods[name] = await begin(self._host, given)

    async def list(self):
        return {name: PodSeen(name=name, uid=name, address=LOOPBACK) for name in self.pods}

    async def delete(self, name, uid):
        process = self.pods.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def maker(api):
    order = SandboxOrder(
        template=TEMPLATE,
        port=free_port(),
        memory="640Mi",
        user_namespaces=True,
        pods_max=2,
        warm=2,
        age_seconds=3600,
    )
    bounds = PoolBounds(pods_max=2, warm=2, age_seconds=3600.0)
    owner = PodOwner(name="run-coordinator-0", uid="uid")
    broker = PodBroker(run_name="run", order=order, owner=owner, api=api, pool=Pool(bounds=bounds))
    return PodSandboxes(own.OwnSandboxes(broker), 512 << 20)


def test_a_server_lists_its_tools_in_a_pod_that_is_gone_afterwards(sandbox_host):
    api = Processes(sandbox_host)
    specs = McpSource(served(sandbox_host).program, lambda: maker(api)).specs

    assert "shelf__area" in {one.name for one in specs}
    assert (api.made, api.pods) == (1, {}), "one pod, none kept ready"


def test_why_there_is_no_pod_is_said_of_the_server(sandbox_host, monkeypatch):
    monkeypatch.setattr(own, "CLAIM_SECONDS_MAX", 0.5)
    api = Processes(sandbox_host, "HTTP 403: exceeded quota: few")
    with pytest.raises(SpecError, match=r"mcpServers: no sandbox pod within 0.5 s.*exceeded quota"):
        _ = McpSource(served(sandbox_host, "answers").program, lambda: maker(api)).specs
