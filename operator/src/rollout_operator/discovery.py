"""What a process must know of its cluster before it works: how tokens are checked, which optional kinds exist."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from rollout_operator.controller.backoff import Backoff
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.errors import Forbidden, KubeError, NotFound
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.config import Connection
from rollout_operator.kube.resources import POD_MONITORS, Resource
from rollout_operator.run.render.inputs import Platform
from rollout_operator.settings import Settings

log = logging.getLogger(__name__)

DEFAULT_ACCOUNT = "rollout-operator"
KEYS_SECONDS = 300.0
POLICY_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
LEARN_SECONDS_MAX = 15.0


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """``jwks``: the keys of the cluster's tokens; empty until they are known."""

    client: KubeClient
    settings: Settings
    connection: Connection
    clocks: Clocks = CLOCKS
    platform: Platform = field(default_factory=lambda: Platform(worker_image="", vllm_image=""))
    jwks: str = ""

    async def follow(self, changed: Callable[[], None]) -> None:
        """Look now and then; ``changed`` is called when the token keys are others, or sandboxes may be made or no more."""
        while True:
            await asyncio.sleep(KEYS_SECONDS)
            before = self.jwks, self.platform.sandboxes
            try:
                await self._learn()
            except KubeError as error:
                log.warning("token keys not read error=%s", error)
            if (self.jwks, self.platform.sandboxes) != before:
                changed()

    async def learn_patiently(self) -> None:
        """Ask for as long as it takes: an API server may be away when we start."""
        pauses = iter(Backoff(seconds_max=LEARN_SECONDS_MAX, noise=self.clocks.noise))
        while not self.jwks:
            try:
                await self._learn()
            except KubeError as error:
                log.warning("waits for the API server error=%s", error)
                await asyncio.sleep(next(pauses))

    async def _learn(self) -> None:
        """Raises KubeError."""
        issuer = await self.client.read("/.well-known/openid-configuration")
        keys = await self.client.read("/openid/v1/jwks")
        settings = self.settings
        self.platform = Platform(
            worker_image=settings.worker_image,
            vllm_image=settings.vllm_image,
            issuer=issuer["issuer"],
            operator_namespace=settings.operator_namespace or self.connection.namespace,
            operator_account=settings.account or self.connection.account or DEFAULT_ACCOUNT,
            pod_monitors=await self._has(POD_MONITORS),
            coordinator_role=settings.role_reference(),
            sandboxes=await self._may_make_sandboxes(),
        )
        self.jwks = json.dumps(keys, sort_keys=True, separators=(",", ":"))

    async def _may_make_sandboxes(self) -> bool:
        """Whether the policy that holds coordinators to sandbox pods is in force; never in namespaced mode."""
        if self.settings.namespaces:
            return False
        name = self.settings.role_reference().for_sandboxes().name
        try:
            await self.client.read(f"{POLICY_BINDINGS}/{name}")
        except (NotFound, Forbidden):
            return False
        return True

    async def _has(self, resource: Resource) -> bool:
        try:
            found = await self.client.read(f"/apis/{resource.group}/{resource.version}")
        except NotFound:
            return False
        return any(one["name"] == resource.plural for one in found.get("resources", ()))
