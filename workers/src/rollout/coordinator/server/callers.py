"""Who calls: from an Authorization header to a role. What a role may do is in ``rollout.protocol.routes``.

On one machine a token is made from the run's secret. In a cluster it is a ServiceAccount's, signed by
the cluster's issuer for this run alone; it is verified against the issuer's public keys, without asking
anybody. Neither a token nor a part of one is ever logged or answered.
"""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jwt
import msgspec

from rollout.errors import SpecError
from rollout.protocol.auth import token_for
from rollout.protocol.messages import Role
from rollout.protocol.routes import ROLES
from rollout.protocol.tls import Stamp, stamp_of
from rollout_api.worker import Authentication, audience_of

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "ES256", "ES384", "ES512")
"""What clusters sign with; never a shared secret, never nothing."""
LEEWAY_SECONDS = 30.0
"""How far two clocks may be apart."""
REREAD_SECONDS = 5.0
"""A key that is not known makes us read the file again, at most so often."""
REQUIRED = ("exp", "nbf", "iat", "iss", "aud", "sub")

_SCHEME = "Bearer "


class Caller(msgspec.Struct, frozen=True):
    """Who is speaking. ``pod`` is empty where the token does not say."""

    role: Role
    pod: str = ""


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


class Unauthenticated(Exception):  # noqa: N818 - an answer, not a fault
    """The header names nobody. ``again`` means that the same token may be good in a while."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


class Callers(Protocol):
    """Tells who calls."""

    def identify(self, header: str) -> Caller:
        """The caller behind an Authorization header. Raises Unauthenticated."""
        ...


class SecretCallers:
    """Holders of tokens that were made from the run's secret."""

    def __init__(self, secret: str) -> None:
        self._by_role = {role: token_for(secret, role).encode() for role in ROLES}

    def identify(self, header: str) -> Caller:
        """Takes the same time for any wrong token."""
        given = _bearer(header).encode()
        found = [role for role, token in self._by_role.items() if hmac.compare_digest(given, token)]
        if not found:
            raise Unauthenticated("the run's token is missing or wrong")
        return Caller(found[0])


class Keys:
    """The issuer's public keys, from a file that somebody else keeps up to date; thread-safe."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._lock = threading.Lock()
        self._stamp: tuple[Stamp, ...] = ()
        self._read_at = clock()
        try:
            self._stamp, self._keys = stamp_of(file), _read_keys(file)
        except (OSError, ValueError, jwt.PyJWTError) as error:
            raise SpecError(f"authentication.jwksFile {file} is no key set: {error}") from error

    def find(self, name: str) -> jwt.PyJWK | None:
        """The key of this id, looked for in the file again when it is not known."""
        with self._lock:
            self._refresh(forced=name not in self._keys)
            return self._keys.get(name)

    def _refresh(self, *, forced: bool) -> None:
        forced = forced and self._clock() - self._read_at >= REREAD_SECONDS
        try:
            stamp = stamp_of(self._file)
            if stamp == self._stamp and not forced:
                return
            self._stamp, self._read_at = stamp, self._clock()
            self._keys = _read_keys(self._file)
        except (OSError, ValueError, jwt.PyJWTError) as error:
            log.warning("keys stay as they were file=%s reason=%s", self._file, error)


def _read_keys(file: Path) -> dict[str, jwt.PyJWK]:
    found = msgspec.json.decode(file.read_bytes(), type=_KeySet).keys
    public = [key for key in found if key.get("kty") in {"RSA", "EC"} and "kid" in key]
    return {str(key["kid"]): jwt.PyJWK(key) for key in public}


class AccountCallers:
    """Pods of the run's service accounts, and the operator."""

    def __init__(self, wanted: Authentication, uid: str, keys: Keys | None = None) -> None:
        self._issuer, self._audience = wanted.issuer, audience_of(uid)
        self._accounts: Mapping[str, Role] = dict(wanted.accounts)
        self._keys = Keys(Path(wanted.jwks_file)) if keys is None else keys

    def identify(self, header: str) -> Caller:
        """Verify signature, issuer, audience, times and account."""
        claims = self._verify(_bearer(header))
        role = self._accounts.get(claims["sub"])
        if role is None:
            raise Unauthenticated("the token's account has no role in this run")
        return Caller(role, _pod_of(claims))

    def _verify(self, token: str) -> dict[str, Any]:
        try:
            key = self._keys.find(str(jwt.get_unverified_header(token).get("kid")))
            if key is None:
                raise Unauthenticated(
                    "the token is signed with a key that is not known", again=True
                )
            return jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_SECONDS,
                options={"require": list(REQUIRED)},
            )
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(_describe(error)) from None


_REASONS: tuple[tuple[type[jwt.InvalidTokenError], str], ...] = (
    (jwt.ExpiredSignatureError, "the token has expired"),
    (jwt.ImmatureSignatureError, "the token is not valid yet: are the clocks right?"),
    (jwt.InvalidAudienceError, "the token is for another audience than this run"),
    (jwt.InvalidIssuerError, "the token is from another issuer"),
    (jwt.InvalidSignatureError, "the token's signature is wrong"),
    (jwt.InvalidAlgorithmError, "the token is signed in a way that is not taken"),
    (jwt.MissingRequiredClaimError, "the token lacks a claim"),
)


def _describe(error: jwt.InvalidTokenError) -> str:
    return next((text for kind, text in _REASONS if isinstance(error, kind)), "this is no token")


def _pod_of(claims: Mapping[str, Any]) -> str:
    bound = claims.get("kubernetes.io")
    pod = bound.get("pod") if isinstance(bound, dict) else None
    name = pod.get("name") if isinstance(pod, dict) else None
    return name if isinstance(name, str) else ""


def _bearer(header: str) -> str:
    if not header.startswith(_SCHEME):
        raise Unauthenticated("the run's token is missing or wrong")
    return header[len(_SCHEME) :].strip()
