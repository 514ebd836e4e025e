"""Certificates and kubeconfigs of a test cluster: one CA, elliptic keys, a year of validity."""

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = dt.timedelta(days=365)
CLOCK_SKEW = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> None:
        """Write `<name>.crt` and `<name>.key`, readable by the owner only."""
        write_private(folder / f"{name}.crt", self.certificate)
        write_private(folder / f"{name}.key", self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority that signs for servers (with names) and clients (without)."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The CA's certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, user: str, group: str = "", names: Sequence[str] = ()) -> Pair:
        """A certificate for `user` in `group`; with `names` (hosts and addresses) for a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _builder(_name(user, group), key.public_key(), self.certificate.subject)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
            critical=False,
        )
        if names:
            alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        signed = builder.sign(self.key, hashes.SHA256())
        return Pair(certificate=signed.public_bytes(serialization.Encoding.PEM), key=_pem(key))


def build_authority(name: str = "rollout-test") -> Authority:
    """A fresh authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    subject = _name(name, "")
    builder = _builder(subject, key.public_key(), subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return Authority(certificate=builder.sign(key, hashes.SHA256()), key=key)


def build_signing_pair() -> Pair:
    """A bare key pair (`certificate` holds the public key): what signs service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return Pair(certificate=public, key=_pem(key))


def render_kubeconfig(server: str, authority_pem: bytes, client: Pair) -> str:
    """A kubeconfig with one cluster, one user, one context (JSON, which is YAML)."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority_pem)}
    user = {
        "client-certificate-data": _base64(client.certificate),
        "client-key-data": _base64(client.key),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    return json.dumps(document, indent=1)


def write_private(path: Path, data: bytes) -> None:
    """Write a file only its owner may read."""
    path.touch(mode=0o600)
    path.write_bytes(data)


def _name(common: str, organization: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - CLOCK_SKEW).not_valid_after(now + VALIDITY)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
