"""Reading a folder of content-addressed files: every byte is verified before it is handed out.

Never writes: what a run has left can be read without changing it.
"""

from __future__ import annotations

import threading
from pathlib import Path

from rollout.errors import ObjectDamaged, ObjectMissing, StoreError
from rollout.objects.bulk import hash_file

VERIFIED_MAX = 4096
"""How many objects are remembered as verified."""

Fingerprint = tuple[int, int, int, int]


class ObjectFiles:
    """Objects under ``root/blake3/<2 hex>/<64 hex>``. Thread-safe.

    A file once verified is not read again while its inode, size and times stay the same.
    """

    def __init__(self, root: Path) -> None:
        self.root = root / "blake3"
        self._verified: dict[str, Fingerprint] = {}
        self._lock = threading.Lock()

    def locate(self, digest: str) -> Path:
        """Where the object lies, or would. Raises StoreError for what is no digest."""
        name = parse_name(digest)
        return self.root / name[:2] / name

    def has(self, digest: str) -> bool:
        """Whether the object is there."""
        return self.locate(digest).is_file()

    def path(self, digest: str) -> Path:
        """The object's file, verified. Raises StoreError when it is missing or damaged."""
        path = self.locate(digest)
        try:
            found = _fingerprint(path)
            if self._verified.get(digest) == found:
                return path
            actual = hash_file(path)
        except FileNotFoundError:
            raise ObjectMissing(f"object {digest} is not in {self.root}") from None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error}") from error
        if actual != digest:
            raise ObjectDamaged(
                f"object {digest} is damaged: its file {path} hashes to {actual}; delete the file, and"
                " the run makes it again from its last anchor",
                path,
            )
        self._note(digest, found)
        return path

    def remember(self, digest: str) -> None:
        """The file that is there now is known to be whole. Raises OSError."""
        self._note(digest, _fingerprint(self.locate(digest)))

    def forget(self, digest: str) -> None:
        """Verify the object again the next time."""
        with self._lock:
            self._verified.pop(digest, None)

    def _note(self, digest: str, found: Fingerprint) -> None:
        with self._lock:
            while len(self._verified) >= VERIFIED_MAX:
                self._verified.pop(next(iter(self._verified)))
            self._verified[digest] = found


def _fingerprint(path: Path) -> Fingerprint:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def parse_name(digest: str) -> str:
    """The 64 hex digits of an object's digest. Raises StoreError for what is no digest."""
    kind, _, name = digest.partition(":")
    if kind != "blake3" or len(name) != 64 or not set(name) <= set("0123456789abcdef"):
        raise StoreError(f"expected blake3:<64 hex digits> as an object's name, got {digest!r}")
    return name
