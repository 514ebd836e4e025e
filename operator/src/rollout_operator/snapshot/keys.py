"""The key that vouches for snapshots of this installation: Ed25519, in a Secret of the operator's namespace.

Made by the operator at its first use; it never enters the namespace of a run. Who deletes the Secret has revoked it:
snapshots that it signed are restored no more by this installation, and the next one is signed by another key.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.errors import Refused
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.own_secrets import read_or_make
from rollout_operator.signing import KEY_BYTES, SNAPSHOT_SECRET

log = logging.getLogger(__name__)

ENTRY = "ed25519"
CONTEXT = "rollout snapshot 1"
LOOK_SECONDS = 300.0


class SnapshotSigner:
    """The private key of the installation."""

    def __init__(self, raw: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.public = f"ed25519:{self._key.public_key().public_bytes_raw().hex()}"

    def sign(self, namespace: str, uid: str, snapshot: str) -> str:
        """Vouches that the run of this namespace and UID has this snapshot; 128 hex digits."""
        said = json.dumps([CONTEXT, namespace, uid, snapshot], separators=(",", ":"))
        return self._key.sign(said.encode()).hex()


@dataclass(slots=True, kw_only=True)
class SnapshotKeys:
    """Reads the key when it is needed, and again after a while. ``namespace`` is the operator's own."""

    client: KubeClient
    namespace: Callable[[], str]
    clocks: Clocks = CLOCKS
    _signer: SnapshotSigner | None = None
    _looked_at: float = float("-inf")

    async def signer(self) -> SnapshotSigner:
        """The key, made where there is none. Raises KubeError, Refused for a Secret of no use among them."""
        now = self.clocks.monotonic()
        if self._signer is None or now - self._looked_at > LOOK_SECONDS:
            found = await read_or_make(self.client, self.namespace(), SNAPSHOT_SECRET, _first)
            self._signer, self._looked_at = parse_key(found), now
        return self._signer

    async def trusted(self) -> tuple[str, ...]:
        """Whom runs believe that begin with a snapshot. Raises KubeError."""
        return ((await self.signer()).public,)


def _first() -> dict[str, bytes]:
    return {ENTRY: Ed25519PrivateKey.generate().private_bytes_raw()}


def parse_key(secret: dict[str, Any]) -> SnapshotSigner:
    """The key of a Secret. Raises Refused for one of no use."""
    try:
        raw = base64.b64decode((secret.get("data") or {}).get(ENTRY, ""), validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise Refused(
            f"read Secret {SNAPSHOT_SECRET}",
            422,
            f"its entry {ENTRY!r} is no key of {KEY_BYTES} bytes: bring the Secret back, or delete it to have one made",
        )
    return SnapshotSigner(raw)
