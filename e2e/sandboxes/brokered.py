"""A run's broker of sandbox pods on this machine, with the account, the rights and the policy that it has in a cluster."""

import asyncio
import base64
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "rollout_operator"))

from worlds import PLATFORM, SPEC, build_inputs

import charts
from cluster.kubectl import Kubectl
from cluster.nodes import containers, images
from rollout.actor.sandboxes import as_grant
from rollout.coordinator.sandboxes.broker import PodBroker, PodOwner
from rollout.coordinator.sandboxes.pod_api import ApiPods
from rollout.coordinator.sandboxes.pool import Pool, PoolBounds
from rollout.protocol import messages as m
from rollout.tools.sandbox import chosen
from rollout.tools.sandbox.pods.sandbox import PodSandboxes, SandboxGrant, program_memory
from rollout_api.names import LABEL_SANDBOX_OF
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.worker import ProgressWriting, SandboxOrder
from rollout_operator.run.render.sandboxes import (
    build_sandbox_binding,
    build_sandbox_order,
    build_sandbox_policy,
)
from rollout_operator.run.render.security import build_role_binding
from waiting import wait_until

RUN, COORDINATOR = "run", "run-coordinator"
NAME = "rollout-coordinator"
POLICY = "rollout-coordinator-sandboxes"
RUNTIME: dict[str, Any] = {
    "images": {"worker": containers.WORKER, "pullPolicy": "Never"},
    "sandbox": {"userNamespaces": True, "maxPods": 6, "warmPods": 3, "memory": "640Mi"},
}
TOOLS = {"builtin": {"name": "arithmetic"}, "tools": ["python_exec"]}
VALUES = {"images": {"worker": containers.WORKER}, "runtime": {"create": False}}
CLAIM_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokered:
    """What a broker is made of. `kubectl`: as the administrator, in the run's namespace."""

    kubectl: Kubectl
    uid: str
    order: SandboxOrder
    owner: PodOwner
    api: ProgressWriting

    def pods(self) -> ApiPods:
        """The API server, as the coordinator's account."""
        return ApiPods(self.api, self.kubectl.namespace, f"{LABEL_SANDBOX_OF}={self.uid}")

    def broker(self) -> PodBroker:
        """A broker; nobody looks after its pool yet."""
        order = self.order
        bounds = PoolBounds(pods_max=order.pods_max, warm=order.warm, age_seconds=order.age_seconds)
        return PodBroker(
            run_name=RUN,
            order=order,
            owner=self.owner,
            api=self.pods(),
            pool=Pool(bounds=bounds),
        )


def build_brokered(
    kubectl: Kubectl, scratch: Path, environment: dict[str, Any] = TOOLS, **sandbox: Any
) -> Brokered:
    """The chart's role and policy, the coordinator's account and pod, and a token that is bound to that pod."""
    uid = f"uid-{secrets.token_hex(4)}"
    runtime = {**RUNTIME, "sandbox": {**RUNTIME["sandbox"], **sandbox}}
    spec = {**SPEC, "train": {**SPEC["train"], "environment": environment}}
    inputs = replace(
        build_inputs(spec, platform=PLATFORM, runtime=RuntimeSpec.model_validate(runtime)),
        name=RUN,
        namespace=kubectl.namespace,
        uid=uid,
    )
    rendered = charts.objects(charts.render(values=VALUES))
    kubectl.apply(*[one for one in rendered if one["metadata"]["name"].startswith(NAME)])
    kubectl("create", "serviceaccount", COORDINATOR)
    ours = [
        build_role_binding(inputs),
        build_sandbox_binding(inputs),
        build_sandbox_policy(inputs),
    ]
    kubectl.apply(*map(_ownerless, ours), _coordinator())
    found = kubectl.get("pod", f"{COORDINATOR}-0")["metadata"]["uid"]
    order = build_sandbox_order(inputs)
    assert order is not None
    return Brokered(
        kubectl=kubectl,
        uid=uid,
        order=order,
        owner=PodOwner(name=f"{COORDINATOR}-0", uid=found),
        api=_api(kubectl, found, scratch),
    )


def _ownerless(manifest: dict[str, Any]) -> dict[str, Any]:
    """There is no run here that could own it."""
    meta = {name: one for name, one in manifest["metadata"].items() if name != "ownerReferences"}
    return {**manifest, "metadata": meta}


def _coordinator() -> dict[str, Any]:
    container = {"name": "pause", "image": images.PAUSE, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{COORDINATOR}-0"},
        "spec": {
            "serviceAccountName": COORDINATOR,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }


def _api(kubectl: Kubectl, pod_uid: str, scratch: Path) -> ProgressWriting:
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={COORDINATOR}-0")
    token = kubectl(
        *("create", "token", COORDINATOR, "--duration=1h"),
        *bound,
        f"--bound-object-uid={pod_uid}",
    )
    (scratch / "token").write_text(token.strip())
    cluster = yaml.safe_load(kubectl.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = scratch / "ca.crt"
    if "certificate-authority-data" in cluster:
        authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    else:
        authority = Path(cluster["certificate-authority"])
    return ProgressWriting(
        api_url=cluster["server"], token_file=str(scratch / "token"), ca_file=str(authority)
    )


class Desk:
    """The broker as an actor has it, without the calls between them."""

    def __init__(self, broker: PodBroker) -> None:
        self._broker = broker
        self._run: Any = SimpleNamespace(clock=time.monotonic, state=SimpleNamespace(outcome=None))

    async def claim(self) -> SandboxGrant:
        ask = m.ClaimSandbox(claim=secrets.token_hex(8), wait_seconds=5.0)
        until, given = time.monotonic() + CLAIM_SECONDS, m.SandboxClaimed()
        while time.monotonic() < until:
            given = await self._broker.claim(self._run, ask)
            if given.name:
                return as_grant(given)
        raise AssertionError(f"no pod: {given.reason}")

    async def release(self, name: str, *, lost: bool) -> bool:
        ask = m.ReleaseSandbox(name=name, lost=lost, wait_seconds=15.0)
        return (await self._broker.release(self._run, ask)).past_memory

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Desk"]:
        """Somebody looks after the pool for a block."""
        keeping = asyncio.create_task(self._broker.keep(self._run))
        try:
            yield self
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping


@asynccontextmanager
async def in_pods(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PodSandboxes]:
    """Sandboxes of this process are pods of the broker."""
    async with Desk(brokered.broker()).open() as desk:
        maker = PodSandboxes(desk, program_memory(brokered.order.memory))
        monkeypatch.setattr(chosen, "_CHOSEN", [maker])
        yield maker


def send(brokered: Brokered, token: str, manifest: dict[str, Any]) -> tuple[int, str]:
    """What the API server says to whoever has this token and wants a pod; nothing is kept."""
    url = f"{brokered.api.api_url}/api/v1/namespaces/{brokered.kubectl.namespace}/pods"
    headers = {"Authorization": f"Bearer {token}"}

    async def post() -> tuple[int, str]:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{url}?dryRun=All", json=manifest, ssl=False) as answer,
        ):
            return answer.status, await answer.text()

    return asyncio.run(post())


def build_stranger(name: str = "stranger") -> dict[str, Any]:
    """A pod that is no sandbox."""
    container = {"name": "x", "image": "x:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


def wait_for_policy(brokered: Brokered) -> None:
    """A policy holds a moment after it was made: until what is no sandbox pod is refused."""
    token = Path(brokered.api.token_file).read_text()
    wait_until(
        lambda: POLICY in send(brokered, token, build_stranger())[1],
        "the policy on coordinators is in force",
    )
