"""The three things that the operator asks a run's coordinator: take new settings, make the cut, take a snapshot.

Called with a token of the operator's own account for the run's audience, over TLS known by the run's
authority alone. A coordinator is the tenant's: what it answers is short, plain and no redirect, or it is
not reached. Everything else it learns from ``status.progress``.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from rollout_api import names
from rollout_operator.errors import CoordinatorUnreachable, KubeError
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import SECRETS, SERVICE_ACCOUNTS
from rollout_operator.run.plan.attempts import stateful_set
from rollout_operator.run.plan.model import Observed
from rollout_operator.run.render import contract
from rollout_operator.run.render.order import coordinator_url

CALL_SECONDS_MAX = 5.0
CALLS_MAX = 2
"""To coordinators of one namespace at once: each holds a worker of the operator for as long as it is silent."""
ANSWER_BYTES_MAX = 64 << 10
RENEW_SECONDS = 300.0
TOKENS_MAX = 10_000


def stop_order(observed: Observed, reason: str) -> dict[str, Any]:
    """The body of an order to stop: it is for the attempt that the coordinator's workload was made for, and no later one."""
    coordinator = stateful_set(observed, "coordinator")
    attempt = 0 if coordinator is None else coordinator.attempt
    return {"reason": reason, **({"attempt": attempt} if attempt else {})}


async def _read_bounded(response: aiohttp.ClientResponse) -> str:
    """The answer's text. Raises ClientPayloadError past the bound."""
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    return body.decode(errors="replace")


class Coordinators(Protocol):
    """How coordinators are reached; tests give another."""

    async def send_settings(self, observed: Observed, body: Mapping[str, Any]) -> None:
        """Raises CoordinatorUnreachable."""

    async def stop(self, observed: Observed, reason: str) -> None:
        """Raises CoordinatorUnreachable."""


@dataclass(slots=True, kw_only=True)
class Calls:
    """How many calls to coordinators are under way, by namespace."""

    _under_way: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def place(self, namespace: str) -> Iterator[bool]:
        """Whether there is one for a further call; it is held for the block."""
        if self._under_way[namespace] >= CALLS_MAX:
            yield False
            return
        self._under_way[namespace] += 1
        try:
            yield True
        finally:
            self._under_way[namespace] -= 1
            self._under_way += Counter()  # names without a call are let go


@dataclass(slots=True, kw_only=True)
class HttpCoordinators:
    """Coordinators by their names in the cluster's network."""

    client: KubeClient
    session: aiohttp.ClientSession
    namespace: str
    account: str
    clock: Callable[[], float] = time.monotonic
    _tokens: dict[str, tuple[float, str]] = field(default_factory=dict)

    async def send_settings(self, observed: Observed, body: Mapping[str, Any]) -> None:
        """Send the live settings of a generation."""
        await self._post(observed, "/v1/operator/settings", body)

    async def stop(self, observed: Observed, reason: str) -> None:
        """Ask for the cut: the learner saves an anchor at the next boundary and everybody ends."""
        await self._post(observed, "/v1/operator/stop", stop_order(observed, reason))

    async def snapshot(self, observed: Observed, body: Mapping[str, Any]) -> str:
        """Have a snapshot taken, or hear how far it is: the answer as it came. Raises CoordinatorUnreachable."""
        return await self._post(observed, "/v1/operator/snapshot", body)

    async def _post(self, observed: Observed, path: str, body: Mapping[str, Any]) -> str:
        """The answer's text. Raises CoordinatorUnreachable."""
        url = coordinator_url(observed.name, observed.namespace) + path
        try:
            headers = {"Authorization": f"Bearer {await self._token(observed.uid)}"}
            async with self.session.post(
                url,
                json=body,
                headers=headers,
                ssl=await self._tls(observed),
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS_MAX),
                allow_redirects=False,
            ) as response:
                text = await _read_bounded(response)
        except (
            aiohttp.ClientError,
            TimeoutError,
            OSError,
            KubeError,
            KeyError,
            ValueError,
        ) as error:
            raise CoordinatorUnreachable(f"{url}: {type(error).__name__}: {error}") from error
        if response.status >= 300:
            raise CoordinatorUnreachable(f"{url}: {response.status} {text[:300]}")
        return text

    async def _token(self, uid: str) -> str:
        until, token = self._tokens.get(uid, (0.0, ""))
        if self.clock() < until:
            return token
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"namespace": self.namespace},
            "spec": {"audiences": [contract.audience(uid)], "expirationSeconds": 600},
        }
        answer = await self.client.create(
            body,
            SERVICE_ACCOUNTS,
            manager=names.MANAGER_CHILDREN,
            name=self.account,
            subresource="token",
        )
        token = answer["status"]["token"]
        while len(self._tokens) >= TOKENS_MAX:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[uid] = (self.clock() + RENEW_SECONDS, token)
        return token

    async def _tls(self, observed: Observed) -> ssl.SSLContext:
        name = names.certificate_name(observed.name)
        secret = await self.client.get(SECRETS, observed.namespace, name)
        authority = base64.b64decode((secret.get("data") or {})[contract.AUTHORITY]).decode()
        return ssl.create_default_context(cadata=authority)
