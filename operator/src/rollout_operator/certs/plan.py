"""When what is renewed, so that no review is ever refused for its certificate. Keys come from ``issue``.

Trust goes before use: a new authority first joins the bundle, and signs only once the configuration
is known to hold it and a day has passed; an old one leaves the bundle a day after its last certificate.
A server certificate of the same authority is replaced at any time, since the bundle does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509

from rollout_operator.certs.issue import (
    CLOCK_SKEW,
    Pair,
    is_signed_by,
    names_of,
    new_authority,
    new_server,
    parse_key,
    to_pem,
)

AUTHORITY_MARGIN = timedelta(days=180)
SERVER_MARGIN = timedelta(days=30)
OVERLAP = timedelta(days=1)
NUM_AUTHORITIES_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """``bundle`` is what callers trust, the newest authority first; ``key`` is that one's."""

    bundle: tuple[x509.Certificate, ...]
    key: Pair
    server: Pair

    def to_data(self) -> dict[str, bytes]:
        """The Secret's keys and values."""
        return {
            "ca.crt": self.bundle_pem,
            "ca.key": self.key.key_pem,
            "tls.crt": self.server.certificate_pem,
            "tls.key": self.server.key_pem,
        }

    @property
    def bundle_pem(self) -> bytes:
        """Every trusted authority as PEM."""
        return b"".join(map(to_pem, self.bundle))


def parse_certificates(data: Mapping[str, bytes]) -> Certificates | None:
    """What a Secret holds; None when it is empty, incomplete, or does not fit together."""
    try:
        bundle = tuple(x509.load_pem_x509_certificates(data["ca.crt"]))
        key = Pair(certificate=bundle[0], key=parse_key(data["ca.key"]))
        server = Pair(
            certificate=x509.load_pem_x509_certificate(data["tls.crt"]),
            key=parse_key(data["tls.key"]),
        )
    except (KeyError, IndexError, ValueError):
        return None
    fits = all(
        pair.certificate.public_key() == pair.key.public_key() for pair in (key, server)
    ) and any(is_signed_by(server.certificate, authority) for authority in bundle)
    return Certificates(bundle=bundle, key=key, server=server) if fits else None


def plan_certificates(
    found: Certificates | None, dns_names: Sequence[str], published: bytes, now: datetime
) -> Certificates:
    """What should be stored now; equal to ``found`` when nothing is due.

    ``published`` is the bundle (PEM) that the configuration holds at the moment.
    """
    if found is None or found.server.certificate.not_valid_after_utc <= now:
        return _begin(dns_names, now)
    return _drop(_sign(_extend(found, now), dns_names, published, now), now)


def _begin(dns_names: Sequence[str], now: datetime) -> Certificates:
    authority = new_authority(now)
    server = new_server(authority, dns_names, now)
    return Certificates(bundle=(authority.certificate,), key=authority, server=server)


def _extend(found: Certificates, now: datetime) -> Certificates:
    """A new authority, long before the newest one ends."""
    if found.bundle[0].not_valid_after_utc - now > AUTHORITY_MARGIN:
        return found
    authority = new_authority(now)
    bundle = (authority.certificate, *found.bundle)[:NUM_AUTHORITIES_MAX]
    return replace(found, bundle=bundle, key=authority)


def _sign(
    found: Certificates, dns_names: Sequence[str], published: bytes, now: datetime
) -> Certificates:
    """A new server certificate, when it is due and the newest authority may sign."""
    current, newest = found.server.certificate, found.bundle[0]
    due = (
        current.not_valid_after_utc - now <= SERVER_MARGIN
        or not is_signed_by(current, newest)
        or names_of(current) != set(dns_names)
    )
    known = to_pem(newest) in published and _age(newest, now) >= OVERLAP
    if not due or not (known or len(found.bundle) == 1):
        return found
    return replace(found, server=new_server(found.key, dns_names, now))


def _drop(found: Certificates, now: datetime) -> Certificates:
    """Authorities that ended, and those that sign nothing any more."""
    current = found.server.certificate
    settled = _age(current, now) >= OVERLAP
    kept = tuple(
        authority
        for authority in found.bundle
        if authority == found.bundle[0]
        or (
            authority.not_valid_after_utc > now
            and (not settled or is_signed_by(current, authority))
        )
    )
    return found if kept == found.bundle else replace(found, bundle=kept)


def _age(certificate: x509.Certificate, now: datetime) -> timedelta:
    return now - certificate.not_valid_before_utc - CLOCK_SKEW
