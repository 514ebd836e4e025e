"""The keys that records are signed with: one Secret in the operator's namespace, made by the operator itself.

No chart holds it, so that rendering one again never renews a key. Who takes the key out of the Secret, or
deletes the Secret, has revoked it: the next look makes another, and runs say `RecordUnverified`. A person
rotates it by moving ``current`` to ``previous``; what the operator then looks at is signed anew.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollout_operator.controller.backoff import Backoff
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.errors import KubeError, NotLeader
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.own_secrets import build_own_secret, read_or_make
from rollout_operator.signing import KEY_BYTES, SECRET_NAME, Keyring

log = logging.getLogger(__name__)

CURRENT, PREVIOUS = "current", "previous"
LOOK_SECONDS = 300.0
AGAIN_SECONDS_MIN = 10.0
"""A record that does not verify asks for the keys anew, and not more often than this."""
PAUSE_SECONDS_MAX = 15.0


@dataclass(slots=True, kw_only=True)
class RecordKeys:
    """``ring`` is what is known of the keys; ``namespace`` is the operator's own."""

    client: KubeClient
    namespace: Callable[[], str]
    clocks: Clocks = CLOCKS
    ring: Keyring = field(default_factory=Keyring)
    _looked_at: float = float("-inf")

    async def learn_patiently(self) -> None:
        """See that there is a key, for as long as it takes: without one nothing is started."""
        pauses = iter(Backoff(seconds_max=PAUSE_SECONDS_MAX, noise=self.clocks.noise))
        while True:
            try:
                await self.ensure()
            except (KubeError, NotLeader, ValueError) as error:
                log.error("no key for records error=%s", error)  # noqa: TRY400 - its words say it
                await asyncio.sleep(next(pauses))
            else:
                return

    async def follow(self, changed: Callable[[], None]) -> None:
        """Look now and then; ``changed`` is called when the keys are others."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before = self.ring
            try:
                await self.ensure()
            except (KubeError, NotLeader, ValueError) as error:
                log.warning("keys of records not read error=%s", error)
            if self.ring != before:
                changed()

    async def look_again(self) -> None:
        """Something does not verify: the keys may have been rotated a moment ago."""
        if self.clocks.monotonic() - self._looked_at < AGAIN_SECONDS_MIN:
            return
        try:
            await self.ensure()
        except (KubeError, NotLeader, ValueError) as error:
            log.warning("keys of records not read error=%s", error)

    async def ensure(self) -> None:
        """Read the keys; make the first one. Raises KubeError, and ValueError for a Secret of no use."""
        self._looked_at = self.clocks.monotonic()
        found = await read_or_make(self.client, self.namespace(), SECRET_NAME, _first)
        self.ring = parse_keys(found)


def _first() -> dict[str, bytes]:
    return {CURRENT: secrets.token_bytes(KEY_BYTES)}


def build_secret(namespace: str, key: bytes) -> dict[str, Any]:
    """The Secret with its first key."""
    return build_own_secret(namespace, SECRET_NAME, {CURRENT: key})


def parse_keys(secret: dict[str, Any]) -> Keyring:
    """The keys of a Secret. Raises ValueError that says which is of no use."""
    data = secret.get("data") or {}
    found = {}
    for name in (CURRENT, PREVIOUS):
        if name not in data and name == PREVIOUS:
            continue
        try:
            key = base64.b64decode(data.get(name, ""), validate=True)
        except binascii.Error as error:
            raise ValueError(f"Secret {SECRET_NAME}, key {name!r}: not base64") from error
        if len(key) != KEY_BYTES:
            raise ValueError(
                f"Secret {SECRET_NAME}, key {name!r}: expected {KEY_BYTES} random bytes, got {len(key)}; "
                "write new ones, or delete the Secret to have one made"
            )
        found[name] = key
    return Keyring(**found)
