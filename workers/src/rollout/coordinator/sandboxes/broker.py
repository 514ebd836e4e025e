"""Keeps a run's pool of sandbox pods, and answers actors that ask for one.

It knows nothing of what runs in a pod: it makes pods from the template that the operator has rendered, tells an actor
which is its own and by which words they know each other, and removes what is done. Pods belong to the coordinator's
pod, so that nothing outlives it; those of an earlier life of this process are removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout.coordinator.context import Notifier, RunContext, wait_for
from rollout.coordinator.sandboxes.pod_api import ApiPods, PodApi, PodRefused
from rollout.coordinator.sandboxes.pool import PodSeen, Pool, PoolBounds, PooledPod
from rollout.errors import SpecError
from rollout.protocol import messages as m
from rollout.tools.sandbox.pods.program import pod_command
from rollout_api.names import LABEL_SANDBOX_OF, sandbox_name
from rollout_api.worker import SandboxOrder, WorkerOrder

log = logging.getLogger(__name__)

POD_NAME, POD_UID = "ROLLOUT_POD_NAME", "ROLLOUT_POD_UID"
LOOK_SECONDS, QUIET_SECONDS = 0.3, 3.0
"""Between two looks at the pods: while one comes up, and otherwise."""
WAIT_SECONDS_MAX = 20.0
KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOwner:
    """The coordinator's own pod."""

    name: str
    uid: str

    def document(self) -> dict[str, str]:
        """As a reference of a pod that goes with it."""
        return {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid}


def find_owner(environment: Mapping[str, str]) -> PodOwner:
    """Who this pod is. Raises SpecError where its template does not tell it."""
    name, uid = environment.get(POD_NAME, ""), environment.get(POD_UID, "")
    if not name or not uid:
        raise SpecError(f"{POD_NAME} and {POD_UID} are not set: the pod's template must set them")
    return PodOwner(name=name, uid=uid)


def build_pod(order: SandboxOrder, pod: PooledPod, owner: PodOwner) -> dict[str, Any]:
    """The manifest of one pod: the template with its name, its owner, our process 1 and its words."""
    template = order.template
    given = {
        "SECRET": pod.secret.hex(),
        "DIGEST": hashlib.sha256(pod.key).hexdigest(),
        "PORT": str(order.port),
        "USERNS": "true" if order.user_namespaces else "",
    }
    (container,) = template["spec"]["containers"]
    filled = {
        **container,
        "command": list(pod_command()),
        "env": [
            {"name": f"ROLLOUT_SANDBOX_{name}", "value": value} for name, value in given.items()
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": pod.name,
            "ownerReferences": [owner.document()],
        },
        "spec": {**template["spec"], "containers": [filled]},
    }


@dataclass(slots=True, kw_only=True)
class PodBroker:
    """The broker of one run. ``run_name`` begins the names of its pods."""

    run_name: str
    order: SandboxOrder
    owner: PodOwner
    api: PodApi
    pool: Pool
    wished: Notifier = field(default_factory=Notifier)
    changed: Notifier = field(default_factory=Notifier)
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def keep(self, run: RunContext) -> None:
        """Look after the pool for ever."""
        async with self.api.keeping():
            while True:
                ticket = self.wished.ticket()
                await self.look(run.clock(), over=run.state.outcome is not None)
                await wait_for(ticket, LOOK_SECONDS if self.pool.is_moving else QUIET_SECONDS)

    async def look(self, now: float, *, over: bool = False) -> None:
        """See what there is, remove what is done, make what is missing; what fails is told to who waits."""
        async with self.looking:
            before = self._seen()
            try:
                await self._step(now, over=over)
            except PodRefused as error:
                log.warning("sandbox pods are not looked after reason=%s", error)
                self.pool.fail(str(error), now)
            if before != self._seen():
                self.changed.beat()

    def _seen(self) -> dict[str, PodSeen | None]:
        return {name: one.seen for name, one in self.pool.pods.items()}

    async def _step(self, now: float, *, over: bool) -> None:
        self.pool.observe(await self.api.list(), now)
        step = self.pool.step(now, over=over)
        for name, uid in step.remove:
            await self.api.delete(name, uid)
        for _ in range(step.make):
            await self._make(now)

    async def _make(self, now: float) -> None:
        pod = PooledPod(
            name=sandbox_name(self.run_name, secrets.token_hex(5)),
            secret=secrets.token_bytes(KEY_BYTES),
            key=secrets.token_bytes(KEY_BYTES),
            made_at=now,
        )
        self.pool.add(pod)
        try:
            await self.api.create(build_pod(self.order, pod, self.owner))
        except PodRefused:
            del self.pool.pods[pod.name]
            raise

    async def claim(self, run: RunContext, ask: m.ClaimSandbox) -> m.SandboxClaimed:
        """A pod that is ready, waited for."""
        until = run.clock() + min(ask.wait_seconds, WAIT_SECONDS_MAX)
        while True:
            ticket, is_new = self.changed.ticket(), ask.claim not in self.pool.wishes
            pod = self.pool.grant(ask.claim, run.clock())
            if pod is not None and pod.seen is not None:
                return m.SandboxClaimed(
                    name=pod.name,
                    address=pod.seen.address,
                    port=self.order.port,
                    secret=pod.secret,
                    key=pod.key,
                )
            if is_new:
                self.wished.beat()
            left = until - run.clock()
            if left <= 0:
                return m.SandboxClaimed(reason=self.pool.reason())
            await wait_for(ticket, left)

    async def release(self, run: RunContext, ask: m.ReleaseSandbox) -> m.SandboxReleased:
        """It is not needed any more; of a lost one, how it ended."""
        until = run.clock() + min(ask.wait_seconds, WAIT_SECONDS_MAX)
        pod = self.pool.pods.get(ask.name)
        while ask.lost and pod is not None and not pod.ended and run.clock() < until:
            await self.look(run.clock())
            await wait_for(self.changed.ticket(), LOOK_SECONDS)
        if ask.claim:
            self.pool.withdraw(ask.claim, run.clock())
        self.pool.release(ask.name)
        self.wished.beat()
        seen = None if pod is None else pod.seen
        return m.SandboxReleased(past_memory=seen is not None and seen.past_memory)


def build_broker(config: WorkerOrder) -> PodBroker | None:
    """The broker that the operator has ordered; None where no tool needs one. Raises SpecError."""
    order = config.sandboxes
    if order is None:
        return None
    if config.progress is None:
        raise SpecError("sandboxes need progress.apiUrl: the address of the API server")
    bounds = PoolBounds(pods_max=order.pods_max, warm=order.warm, age_seconds=order.age_seconds)
    selector = f"{LABEL_SANDBOX_OF}={config.run.uid}"
    return PodBroker(
        run_name=config.run.name,
        order=order,
        owner=find_owner(os.environ),
        api=ApiPods(config.progress, config.run.namespace, selector),
        pool=Pool(bounds=bounds),
    )
