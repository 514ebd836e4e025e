"""A run's own certificate authority and its coordinator's certificate. Makes keys; writes nothing.

The authority lives as long as a run may; only the server certificate is renewed, so workers never
have to learn a new authority. ``ca.key`` stays in the Secret and is mounted nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rollout_api import names
from rollout_operator.desired import contract

AUTHORITY_DAYS = 3650
SERVER_DAYS = 90
RENEW_DAYS = 30
_SKEW = timedelta(minutes=5)


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
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{run}.{namespace}.rollout"[:64])
    authority = (
        _builder(subject, subject, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _serve(run, namespace, now, authority, key)


def renew(run: str, namespace: str, now: datetime, files: Mapping[str, str]) -> Issued:
    """A new server certificate of the same authority. Raises ValueError when it is not readable."""
    authority = x509.load_pem_x509_certificate(files[contract.AUTHORITY].encode())
    key = serialization.load_pem_private_key(files[contract.CA_KEY].encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{contract.CA_KEY} is no key of ours")  # noqa: TRY004
    return _serve(run, namespace, now, authority, key)


def _serve(
    run: str,
    namespace: str,
    now: datetime,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(names.workload_name(run, "coordinator"))
    certificate = (
        _builder(subject, authority.subject, key, now, SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(_hosts(run, namespace)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    files = {
        contract.AUTHORITY: _pem(authority),
        contract.CA_KEY: _private(authority_key),
        contract.CERTIFICATE: _pem(certificate) + _pem(authority),
        contract.PRIVATE_KEY: _private(key),
    }
    return Issued(files=files, not_after=certificate.not_valid_after_utc)


def _hosts(run: str, namespace: str) -> list[x509.GeneralName]:
    service = names.workload_name(run, "coordinator")
    domains = (service, f"{service}.{namespace}", f"{service}.{namespace}.svc")
    pods = tuple(f"{service}-0.{domain}" for domain in domains)
    return [x509.DNSName(name) for name in (*domains, *pods, "localhost")]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
