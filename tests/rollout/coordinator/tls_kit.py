"""Certificates and tokens as a cluster makes them: a CA, server certificates, an issuer that rotates its keys."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from rollout_api.worker import Authentication

ISSUER = "https://kubernetes.default.svc"
UID = "uid-1"
AUDIENCE = f"rollout/{UID}"
ACCOUNTS = {
    "system:serviceaccount:team:arithmetic-actor": "actor",
    "system:serviceaccount:team:arithmetic-learner": "learner",
    "system:serviceaccount:rollout:operator": "operator",
}
SUBJECTS = {role: subject for subject, role in ACCOUNTS.items()}


class Authority:
    """A CA that signs server certificates for loopback, or for the names it is given."""

    def __init__(self, name: str = "run") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} CA")])
        self.certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def write_ca(self, path: Path) -> Path:
        replace(path, self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(self, folder: Path, names: tuple[str, ...] = ("127.0.0.1", "localhost")) -> None:
        """Write ``tls.crt`` and ``tls.key``, each replaced as a whole."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
        certificate = (
            _builder(subject, self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([_name(n) for n in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        replace(folder / "tls.crt", certificate.public_bytes(serialization.Encoding.PEM))
        replace(folder / "tls.key", secret)


def _builder(subject: x509.Name, issuer: x509.Name, public: Any) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


class Issuer:
    """What the API server does for service accounts: signs tokens, publishes its public keys."""

    def __init__(self, algorithm: str = "RS256", url: str = ISSUER) -> None:
        self.url, self.algorithm = url, algorithm
        self.keys: dict[str, Any] = {}
        self.rotate("key-1")

    def rotate(self, name: str) -> None:
        """Sign with a new key from now on; older ones stay published."""
        ours = self.algorithm.startswith("RS")
        self.keys[name] = (
            rsa.generate_private_key(public_exponent=65537, key_size=2048)
            if ours
            else ec.generate_private_key(ec.SECP256R1())
        )
        self.current = name

    def write_keys(self, path: Path) -> Path:
        replace(path, json.dumps({"keys": [self._public(name) for name in self.keys]}).encode())
        return path

    def _public(self, name: str) -> dict[str, Any]:
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        document = json.loads(algorithm.to_jwk(self.keys[name].public_key()))
        return {**document, "kid": name, "use": "sig", "alg": self.algorithm}

    def claims(self, role: str, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": [AUDIENCE],
            "sub": SUBJECTS[role],
            "iat": now,
            "nbf": now,
            "exp": now + 3600,
            "kubernetes.io": {"pod": {"name": f"arithmetic-{role}-0"}},
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, role: str, **changes: Any) -> str:
        """A token as the kubelet projects it; a claim of None is left out."""
        return jwt.encode(
            self.claims(role, **changes),
            self.keys[self.current],
            algorithm=self.algorithm,
            headers={"kid": self.current},
        )


def authentication(keys: Path) -> Authentication:
    return Authentication(issuer=ISSUER, jwks_file=str(keys), accounts=ACCOUNTS)


def replace(path: Path, content: bytes) -> None:
    """As the kubelet does it: a new file takes the old one's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.new")
    work.write_bytes(content)
    work.replace(path)
