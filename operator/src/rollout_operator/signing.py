"""Proof that this installation made a record: a keyed hash over everything that is read of it. Pure.

A record lies where tenants write. What the operator later applies from it has the operator's rights, so
nothing of a record is believed, or even unpacked, before its signature holds. Two keys have force at a
time, each known by its id: what the previous one signed still verifies while the current one signs anew.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_api import GROUP, names
from rollout_operator.kube.managed_fields import controller_uid

SECRET_NAME = "rollout-operator-records"  # noqa: S105 - a name
"""Where the keys are, in the operator's namespace."""
SNAPSHOT_SECRET = "rollout-operator-snapshots"  # noqa: S105 - a name
"""Where the key is that vouches for snapshots, in the same namespace."""
KEY_BYTES = 32
SEPARATOR = ":"
_PURPOSE = b"rollout.dev/record/v1"
CHILDREN_FILE = "children.json.gz"
ORDER_FILE = "order.json"
ALLOWANCES_FILE = "allowances.json"
RECORD_FORMAT = "1"
"""The form of a record that is written and read. It is raised when a reader of today would misread one;
what record_content says of a record stays, so that every release can tell whose a record is."""
FORMAT_UNSAID = "1"
"""The form of records from before they said one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The key that signs, and the one that signed before it. Empty: nothing verifies, nothing is signed."""

    current: bytes = field(default=b"", repr=False)
    previous: bytes = field(default=b"", repr=False)

    def sign(self, content: str) -> str:
        """The signature, with the id of its key."""
        assert len(self.current) == KEY_BYTES
        return f"{key_id(self.current)}{SEPARATOR}{_keyed(self.current, content)}"

    def verify(self, content: str, signature: str) -> bool:
        """Whether one of our keys made this signature of this content."""
        name, _, code = signature.partition(SEPARATOR)
        for key in (self.current, self.previous):
            if len(key) == KEY_BYTES and key_id(key) == name:
                return hmac.compare_digest(_keyed(key, content).encode(), code.encode())
        return False

    def is_current(self, signature: str) -> bool:
        """Whether a signature names the key that signs now."""
        return bool(self.current) and signature.partition(SEPARATOR)[0] == key_id(self.current)


def key_id(key: bytes) -> str:
    """A name for a key that says nothing of it."""
    return hashlib.sha256(b"rollout.dev/record-key-id" + key).hexdigest()[:12]


def record_content(live: Mapping[str, Any]) -> str:
    """Digest of what a record says: whose it is, which attempt, what it was rendered from, and every byte.

    Its format only where it says one: what was signed before records did still verifies.
    """
    meta = live["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    data = live.get("data") or {}
    said = annotations.get(names.ANNOTATION_FORMAT)
    parts = (
        meta.get("namespace", ""),
        meta["name"],
        controller_uid(meta, GROUP, "RolloutRun"),
        labels.get(names.LABEL_ATTEMPT, ""),
        annotations.get(names.ANNOTATION_GENERATION, ""),
        annotations.get(names.ANNOTATION_CHILDREN, ""),
        data.get(ORDER_FILE, ""),
        data.get(ALLOWANCES_FILE, ""),
        (live.get("binaryData") or {}).get(CHILDREN_FILE, ""),
        *([] if said is None else [said]),
    )
    told = hashlib.sha256(_PURPOSE)
    for part in parts:
        encoded = part.encode()
        told.update(len(encoded).to_bytes(8, "big"))
        told.update(encoded)
    return told.hexdigest()


def record_format(annotations: Mapping[str, str]) -> str:
    """The format that a record says it has; to be believed once its signature holds."""
    return annotations.get(names.ANNOTATION_FORMAT, FORMAT_UNSAID)


def _keyed(key: bytes, content: str) -> str:
    return hmac.new(key, _PURPOSE + content.encode(), hashlib.sha256).hexdigest()
