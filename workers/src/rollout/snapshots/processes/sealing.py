"""Encryption of what images hold: nothing of a process's memory leaves its machine readable, or is read by another installation.

AES-256-GCM under a key of one installation, namespace and program. The nonce is made of the content, so that equal content
is one object: a repeat stores nothing again, and whoever has no key learns which of a program's pages are equal, no more.
"""

from __future__ import annotations

from mmap import mmap
from pathlib import Path

import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rollout.common.bounded import unpack_zstd, unpack_zstd_into
from rollout.errors import SnapshotRefused, StoreError
from rollout.snapshots.signing import open_signer

MAGIC, NONCE_BYTES, TAG_BYTES = b"RPI1", 12, 16
OVERHEAD = len(MAGIC) + NONCE_BYTES + TAG_BYTES
LEVEL = 1
PURPOSE = "rollout process image 1"


class Sealer:
    """Seals and opens the objects of one program's images."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = AESGCM(key)

    def seal(self, kind: str, plain: bytes) -> bytes:
        """Compressed and encrypted; ``kind`` is what it is to be opened as."""
        small = zstandard.ZstdCompressor(level=LEVEL).compress(plain)
        nonce = blake3(kind.encode() + b"\0" + small, key=self._key).digest(NONCE_BYTES)
        return MAGIC + nonce + self._cipher.encrypt(nonce, small, kind.encode())

    def open(self, kind: str, sealed: bytes | mmap, size_max: int) -> bytes:
        """What was sealed. Raises SnapshotRefused for another installation's or another kind, StoreError for what is none."""
        small = bytearray(max(len(sealed) - OVERHEAD, 0))
        self._decrypt(kind, sealed, small)
        try:
            return unpack_zstd(memoryview(small), size_max)
        except ValueError as error:
            raise StoreError(f"{kind} of a process image: {error}") from error

    def open_into(
        self, kind: str, sealed: bytes | mmap, work: bytearray, target: memoryview
    ) -> None:
        """As ``open``, what is exactly of the target's size; ``work`` grows to what is needed, and is used again.

        Fresh memory for each costs more than all the rest. Raises SnapshotRefused, StoreError: the target is not to be used.
        """
        size = max(len(sealed) - OVERHEAD, 0)
        if len(work) < size:
            work.extend(bytes(size - len(work)))
        with memoryview(work)[:size] as small:
            self._decrypt(kind, sealed, small)
            try:
                unpack_zstd_into(small, target)
            except ValueError as error:
                raise StoreError(f"{kind} of a process image: {error}") from error

    def _decrypt(self, kind: str, sealed: bytes | mmap, target: bytearray | memoryview) -> None:
        start = len(MAGIC) + NONCE_BYTES
        if sealed[: len(MAGIC)] != MAGIC or len(sealed) < OVERHEAD:
            raise StoreError(f"{kind} of a process image: not an object of this format")
        nonce, content = sealed[len(MAGIC) : start], memoryview(sealed)[start:]
        try:
            self._cipher.decrypt_into(nonce, content, kind.encode(), target)
        except InvalidTag as error:
            raise SnapshotRefused(
                f"{kind} of a process image cannot be opened: it is another installation's or program's, or was changed;"
                " images of processes are never taken across installations"
            ) from error
        finally:
            content.release()


def open_sealer(key: Path, namespace: str, uid: str) -> Sealer:
    """That of a program: its key is derived from the one that signs this installation's snapshots. Raises SpecError."""
    return Sealer(open_signer(key).derive(f"{PURPOSE}\0{namespace}\0{uid}"))
