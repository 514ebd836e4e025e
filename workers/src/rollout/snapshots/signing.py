"""Who vouches for a snapshot: Ed25519 over namespace, run UID and Merkle root, by the key of an installation.

A digest says that bytes are those that were written, not who wrote them: a restore takes a snapshot only from a signer
that it trusts, its own installation's or one that it was told of. The private key never leaves its file.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from rollout.common.atomic_files import fsync_folder
from rollout.errors import SnapshotRefused, SpecError
from rollout.snapshots.manifest import Manifest, Signature

SCHEME, KEY_BYTES = "ed25519", 32
KEY_FILE_BYTES_MAX = 4096
CONTEXT = b"rollout snapshot 1"


class Signs(Protocol):
    """Whoever vouches for snapshots."""

    def sign(self, manifest: Manifest) -> Manifest:
        """The manifest with a signature that holds. Raises RolloutError where there is none to be had."""
        ...


class Signer:
    """The private key of one installation."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = f"{SCHEME}:{key.public_key().public_bytes_raw().hex()}"

    def sign(self, manifest: Manifest) -> Manifest:
        """The manifest with this installation's signature in place of any other."""
        value = self._key.sign(_signed_bytes(manifest)).hex()
        return msgspec.structs.replace(
            manifest, signature=Signature(signer=self.public, value=value)
        )

    def derive(self, purpose: str) -> bytes:
        """A key of 32 bytes for another purpose, which only this installation can make, and which tells nothing of its own."""
        kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode())
        return kdf.derive(self._key.private_bytes_raw())


def key_path(environment: Mapping[str, str]) -> Path:
    """Where the key of this installation lies: ``rollout/snapshot.key`` in the user's configuration folder."""
    home = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "rollout" / "snapshot.key"


def open_signer(path: Path) -> Signer:
    """The installation's key, made at its first use. Raises SpecError for one that others can read, or that is none."""
    if not path.exists():
        _make_key(path)
    return Signer(_read_key(path))


def read_public(path: Path) -> str | None:
    """The installation's public key; None where it has none yet."""
    return Signer(_read_key(path)).public if path.exists() else None


def parse_trusted(given: str) -> str:
    """``ed25519:<64 hex>``, or a file that holds it. Raises SpecError."""
    text = given
    if not given.startswith(f"{SCHEME}:"):
        try:
            text = Path(given).read_bytes()[:KEY_FILE_BYTES_MAX].decode("ascii").strip()
        except (OSError, ValueError) as error:
            raise SpecError(
                f"--trust {given}: expected {SCHEME}:<64 hex digits>, or a file that holds it: {error}"
            ) from error
    kind, _, digits = text.partition(":")
    if kind != SCHEME or len(digits) != 2 * KEY_BYTES or not set(digits) <= set("0123456789abcdef"):
        raise SpecError(f"--trust {given}: expected {SCHEME}:<64 hex digits>, got {text[:80]!r}")
    return text


def check_signature(manifest: Manifest) -> str:
    """The signer. Raises SnapshotRefused for a snapshot without a signature, or with one that is not over it."""
    signature = manifest.signature
    if signature is None:
        raise SnapshotRefused(
            f"snapshot {manifest.id} is not signed: nobody vouches for it; create it again from its run"
        )
    try:
        key = Ed25519PublicKey.from_public_bytes(
            bytes.fromhex(parse_trusted(signature.signer).partition(":")[2])
        )
        key.verify(bytes.fromhex(signature.value), _signed_bytes(manifest))
    except (InvalidSignature, ValueError, SpecError) as error:
        raise SnapshotRefused(
            f"snapshot {manifest.id}: its signature is not that of {signature.signer[:80]!r}: it was"
            " changed, or is of another run; take it from its origin again"
        ) from error
    return signature.signer


def require_trusted(manifest: Manifest, trusted: Collection[str]) -> str:
    """The signer, who is trusted. Raises SnapshotRefused."""
    signer = check_signature(manifest)
    if signer not in trusted:
        raise SnapshotRefused(
            f"snapshot {manifest.id} is signed by {signer}, whom this installation does not trust: if its"
            f" owner confirms that key, add --trust {signer}"
        )
    return signer


def _signed_bytes(manifest: Manifest) -> bytes:
    run = manifest.header.run
    return msgspec.json.encode([CONTEXT.decode(), run.namespace, run.uid, manifest.id])


def _make_key(path: Path) -> None:
    """Put a new key in place, unless another process was first: it appears whole, and for its owner only."""
    raw = Ed25519PrivateKey.generate().private_bytes_raw()
    work = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(raw.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(work)
        except FileExistsError:
            return
        finally:
            work.unlink()
        fsync_folder(path.parent)
    except OSError as error:
        raise SpecError(f"the key that signs snapshots cannot be made: {path}: {error}") from error


def _read_key(path: Path) -> Ed25519PrivateKey:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise SpecError(
                    f"{path}: others may read the key that signs snapshots: chmod 600 it, or, if somebody"
                    " has, delete it and a new one is made"
                )
            return Ed25519PrivateKey.from_private_bytes(
                bytes.fromhex(file.read(KEY_FILE_BYTES_MAX).decode("ascii").strip())
            )
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{path}: not a key that signs snapshots: {type(error).__name__}"
        ) from error
