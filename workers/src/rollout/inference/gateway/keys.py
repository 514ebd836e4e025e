"""Keys of a gateway: ``sk-rollout-<public id>-<256 random bits>``, of which only a keyed hash is kept.

The file is one JSON object of mode 0600, replaced as a whole; the key of the hashes lies beside it. A gateway reads the
file again within a second of a change, so that a key is revoked without a restart. The secret part of a key is
shown once, when it is made, and is never in a log, a message or the file.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from rollout.common.atomic_files import replacing
from rollout.errors import SpecError

PREFIX = "sk-rollout-"
SECRET_BYTES = 32
KEYS_MAX = 10_000
COUNT_MAX = 10**15
"""The largest number that a limit may be."""
FILE_BYTES_MAX = 16 << 20
_KEY = re.compile(r"sk-rollout-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")
_NOBODY = "0" * 64
ANYBODY = "anybody"
"""The id of whoever asks a gateway that asks for no key."""

AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
AtLeastZero = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key, without its secret. Times are seconds since 1970; None and empty ``models`` mean no limit.

    ``models`` are names as clients give them (a version or an alias). ``training_...``: of a training service, what all keys of
    this name may have together: tokens for good, models, and bytes of what they were saved as.
    """

    id: str
    hash: str
    name: str
    created: float
    expires: float | None = None
    revoked: bool = False
    models: tuple[str, ...] = ()
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None
    in_flight_max: AtLeastOne | None = None
    training_tokens: AtLeastZero | None = None
    training_models: AtLeastZero | None = None
    training_bytes: AtLeastZero | None = None


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may do; as in ``ApiKey``."""

    models: tuple[str, ...] = ()
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None
    in_flight_max: AtLeastOne | None = None
    training_tokens: AtLeastZero | None = None
    training_models: AtLeastZero | None = None
    training_bytes: AtLeastZero | None = None


class KeyRefused(Exception):  # noqa: N818 - an answer, not a fault
    """Nobody, or nobody any more. Says nothing of which part of a key was wrong."""


class _Keys(msgspec.Struct):
    keys: list[ApiKey] = []


class KeyRing:
    """The keys that are valid, by their public ids. ``hashing`` is the secret of the hashes.

    ``is_open``: no key is asked for, and all who ask are one.
    """

    def __init__(
        self, keys: Mapping[str, ApiKey], hashing: bytes, *, is_open: bool = False
    ) -> None:
        anybody = ApiKey(id=ANYBODY, hash=_NOBODY, name=ANYBODY, created=0.0)
        self._keys = {ANYBODY: anybody} if is_open else keys
        self._hashing = hashing
        self._is_open = is_open

    def identify(self, header: str, now: float) -> ApiKey:
        """The key behind an ``Authorization`` header. Raises KeyRefused."""
        if self._is_open:
            return self._keys[ANYBODY]
        scheme, _, text = header.partition(" ")
        found = _KEY.fullmatch(text.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise KeyRefused("expected the header Authorization: Bearer sk-rollout-...")
        key = self._keys.get(found[1])
        given = _hash(self._hashing, found[1], found[2])
        same = hmac.compare_digest(given, _NOBODY if key is None else key.hash)
        if key is None or not same or not self.holds(key.id, now):
            raise KeyRefused("Incorrect API key provided.")
        return key

    def find(self, key_id: str) -> ApiKey | None:
        """The key of a public id, revoked ones too."""
        return self._keys.get(key_id)

    def holds(self, key_id: str, now: float) -> bool:
        """Whether requests may be begun with it."""
        key = self._keys.get(key_id)
        return self.keeps(key_id) and (key is None or key.expires is None or now < key.expires)

    def keeps(self, key_id: str) -> bool:
        """Whether what was begun with it may go on: an expired key's answers end, a revoked one's are cut."""
        key = self._keys.get(key_id)
        return key is not None and not key.revoked

    def salt(self, key: ApiKey) -> str:
        """What keeps this key's prompts apart from others' in a cache of prefixes; tells nothing of the key."""
        return hmac.digest(self._hashing, b"salt:" + key.id.encode(), sha256).hex()


class KeyFile:
    """The file of keys, and the one of the hashes' secret. Made when they are first written.

    ``is_open``: whatever the file holds, no key is asked for.
    """

    def __init__(self, folder: Path, *, is_open: bool = False) -> None:
        self._is_open = is_open
        self.path = folder / "keys.json"
        self._hashing = folder / "keys.secret"

    def read(self) -> KeyRing:
        """Every key. Raises SpecError for a file that is broken or that others may read."""
        keys = self._load().keys
        return KeyRing({one.id: one for one in keys}, self._secret(), is_open=self._is_open)

    def all_keys(self) -> list[ApiKey]:
        """Every key, oldest first."""
        return self._load().keys

    def create(self, name: str, limits: KeyLimits, *, now: float, expires: float | None) -> str:
        """Make a key and return it whole: the only time that it is seen."""
        with self._locked():
            known = self._load().keys
            if len(known) >= KEYS_MAX:
                raise SpecError(
                    f"{self.path} has {len(known)} keys, the most there may be: revoke some"
                )
            key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(SECRET_BYTES)
            key = ApiKey(
                id=key_id,
                hash=_hash(self._secret(), key_id, secret),
                name=name,
                created=now,
                expires=expires,
                **msgspec.structs.asdict(limits),
            )
            self._save([*known, key])
        return f"{PREFIX}{key_id}-{secret}"

    def take(self, given: Mapping[str, str], now: float) -> tuple[str, ...]:
        """Hold exactly these keys, whole, by their names; a name whose text is no key is left out and returned."""
        with self._locked():
            known = {one.id: one for one in self._load().keys}
            found = {name: _KEY.fullmatch(text.strip()) for name, text in given.items()}
            keys: dict[str, ApiKey] = {}
            for name, parts in found.items():
                if parts is not None:
                    created = known[parts[1]].created if parts[1] in known else now
                    hashed = _hash(self._secret(), parts[1], parts[2])
                    keys[parts[1]] = ApiKey(id=parts[1], hash=hashed, name=name, created=created)
            self._save(list(keys.values()))
        return tuple(sorted(name for name, parts in found.items() if parts is None))

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke one for good; idempotent. Raises SpecError when there is none."""
        return self._replace(key_id, revoked=True)

    def change(self, key_id: str, changes: Mapping[str, int | None]) -> ApiKey:
        """Give a key other limits, by their names in ``KeyLimits``; None takes one away. Raises SpecError."""
        return self._replace(key_id, **changes)

    def _replace(self, key_id: str, **changes: int | None) -> ApiKey:
        with self._locked():
            known = self._load().keys
            found = next((one for one in known if one.id == key_id), None)
            if found is None:
                raise SpecError(f"there is no key {key_id!r} in {self.path}")
            other = msgspec.structs.replace(found, **changes)
            self._save([other if one is found else one for one in known])
        return other

    def forget(self, unwanted: Callable[[ApiKey], bool]) -> None:
        """Remove keys from the file."""
        with self._locked():
            self._save([one for one in self._load().keys if not unwanted(one)])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.path.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _load(self) -> _Keys:
        if not self.path.exists():
            return _Keys()
        _require_private(self.path)
        content = self.path.read_bytes()
        if len(content) > FILE_BYTES_MAX:
            raise SpecError(
                f"{self.path} has {len(content)} bytes; expected up to {FILE_BYTES_MAX}"
            )
        return self._decode(content)

    def _decode(self, content: bytes) -> _Keys:
        try:
            return msgspec.json.decode(content, type=_Keys)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise SpecError(f"{self.path} holds no keys: {error}") from error

    def _save(self, keys: list[ApiKey]) -> None:
        content = msgspec.json.encode(_Keys(keys=keys))
        self._decode(content)  # what could not be read again is not written
        with replacing(self.path, durable=False, mode=0o600) as file:
            file.write(content)

    def _secret(self) -> bytes:
        if not self._hashing.exists():
            self._hashing.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):  # another process was first, and its secret holds
                _write_private(self._hashing, secrets.token_hex(SECRET_BYTES).encode())
        _require_private(self._hashing)
        return bytes.fromhex(self._hashing.read_text())


def _hash(hashing: bytes, key_id: str, secret: str) -> str:
    return hmac.digest(hashing, f"{key_id}:{secret}".encode(), sha256).hex()


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _require_private(path: Path) -> None:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise SpecError(
            f"{path} has mode {mode:o}: others can read it; chmod 600 it, and make new keys"
        )
