"""A run's own certificate authority and its coordinator's certificate. Makes keys; writes nothing.

The authority lives as long as a run may; only the server certificate is renewed, so workers never
have to learn a new authority. ``ca.key`` stays in the Secret and is mounted nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from rollout_api import names
from rollout_operator.certs.issue import Pair, new_authority, new_server, parse_key
from rollout_operator.run.render import contract

AUTHORITY_LIFE = timedelta(days=3650)
RENEW_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """The keys of the Secret (PEM) and the end of the server certificate."""

    files: Mapping[str, str]
    not_after: datetime


def must_renew(not_after: datetime, now: datetime) -> bool:
    """Whether the server certificate ends soon."""
    return not_after - now < timedelta(days=RENEW_DAYS)


def issue(run: str, namespace: str, now: datetime) -> Issued:
    """A new authority and a certificate of its own."""
    authority = new_authority(now, name=f"{run}.{namespace}.rollout", life=AUTHORITY_LIFE)
    return _serve(run, namespace, now, authority)


def renew(run: str, namespace: str, now: datetime, files: Mapping[str, str]) -> Issued:
    """A new server certificate of the same authority. Raises ValueError when it is not readable."""
    authority = x509.load_pem_x509_certificate(files[contract.AUTHORITY].encode())
    key = parse_key(files[contract.CA_KEY].encode())
    return _serve(run, namespace, now, Pair(certificate=authority, key=key))


def _serve(run: str, namespace: str, now: datetime, authority: Pair) -> Issued:
    service = names.workload_name(run, "coordinator")
    server = new_server(authority, _hosts(service, namespace), now)
    files = {
        contract.AUTHORITY: authority.certificate_pem,
        contract.CA_KEY: authority.key_pem,
        contract.CERTIFICATE: server.certificate_pem + authority.certificate_pem,
        contract.PRIVATE_KEY: server.key_pem,
    }
    return Issued(
        files={name: pem.decode() for name, pem in files.items()},
        not_after=server.certificate.not_valid_after_utc,
    )


def _hosts(service: str, namespace: str) -> list[str]:
    domains = (service, f"{service}.{namespace}", f"{service}.{namespace}.svc")
    return [*domains, *(f"{service}-0.{domain}" for domain in domains), "localhost"]
