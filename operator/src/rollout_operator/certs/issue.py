"""X.509 with ``cryptography``: one kind of authority, one kind of server certificate. ECDSA P-256."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=730)
SERVER_LIFE = timedelta(days=90)
CLOCK_SKEW = timedelta(minutes=5)
COMMON_NAME_CHARACTERS_MAX = 64
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its private key; equal when the certificates are, which name their keys."""

    certificate: x509.Certificate
    key: Key = field(compare=False)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        return to_pem(self.certificate)

    @property
    def key_pem(self) -> bytes:
        """The key as PEM, not encrypted: it lies in a Secret."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def new_authority(
    now: datetime, *, name: str = "rollout authority", life: timedelta = AUTHORITY_LIFE
) -> Pair:
    """A self-signed authority that may sign servers and no further authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key, now, now + life)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return Pair(certificate=builder.sign(key, hashes.SHA256()), key=key)


def new_server(authority: Pair, dns_names: Sequence[str], now: datetime) -> Pair:
    """A server certificate for ``dns_names``, called by the first; it never outlives its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + SERVER_LIFE, authority.certificate.not_valid_after_utc)
    builder = _builder(_name(dns_names[0]), authority.certificate.subject, key, now, end)
    names = x509.SubjectAlternativeName([x509.DNSName(one) for one in dns_names])
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(names, critical=False).add_extension(purpose, critical=False)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(issuer, critical=False)
    return Pair(certificate=builder.sign(authority.key, hashes.SHA256()), key=key)


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether ``authority`` issued ``certificate``: names and signature."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def names_of(certificate: x509.Certificate) -> set[str]:
    """The DNS names of a server certificate."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return set(found.value.get_values_for_type(x509.DNSName))


def to_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def parse_key(pem: bytes) -> Key:
    """A private key of ours. Raises ValueError for anything else."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"not a private key of ours: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"expected an EC key, got {type(key).__name__}")  # noqa: TRY004 - input
    return key


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:COMMON_NAME_CHARACTERS_MAX])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(identity, critical=False)
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
