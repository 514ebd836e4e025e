"""Signatures that cosign verifies offline with a key: ECDSA P-256 over SHA-256, RFC 6979, so that equal releases have equal ones.

An artifact's signature is cosign's simple-signing payload in a manifest under the tag ``sha256-<hex>.sig``
(https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md); a file's is base64 beside it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from release import oci
from release.errors import LayoutError, SigningKeyError

PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
PAYLOAD_KIND = "cosign container image signature"
SIGNATURE = "dev.cosignproject.cosign/signature"
KEY_BYTES_MAX = 16 << 10
PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def load_private_key(path: Path, password: str = "") -> PrivateKey:
    """A P-256 key in PEM.

    Raises:
        SigningKeyError: there is none, the password is another, or it is of another kind.
    """
    data = _read_key(path)
    if b"SIGSTORE" in data or b"COSIGN" in data:
        raise SigningKeyError(
            f"{path}: a key in cosign's own encryption; expected PKCS#8 in PEM: "
            "make one with `openssl genpkey`, and give it to cosign by `cosign import-key-pair`"
        )
    try:
        key = serialization.load_pem_private_key(data, password.encode() or None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningKeyError(f"{path}: no private key that can be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise SigningKeyError(f"{path}: expected an ECDSA key on P-256")
    return key


def load_public_key(path: Path) -> PublicKey:
    """The public key of one, in PEM.

    Raises:
        SigningKeyError: there is none, or it is of another kind.
    """
    try:
        key = serialization.load_pem_public_key(_read_key(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SigningKeyError(f"{path}: no public key that can be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise SigningKeyError(f"{path}: expected an ECDSA key on P-256")
    return key


def _read_key(path: Path) -> bytes:
    try:
        if path.stat().st_size > KEY_BYTES_MAX:
            raise SigningKeyError(f"{path}: larger than any key")
        return path.read_bytes()
    except OSError as error:
        raise SigningKeyError(f"{path}: {error.strerror}") from error


def public_pem(key: PublicKey) -> bytes:
    """The key as a file has it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form)


def sign(key: PrivateKey, data: bytes) -> str:
    """The signature of bytes, in base64."""
    algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    return base64.b64encode(key.sign(data, algorithm)).decode()


def holds(key: PublicKey, data: bytes, signature: str) -> bool:
    """Whether the key's owner signed these bytes."""
    try:
        key.verify(base64.b64decode(signature, validate=True), data, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def signature_tag(digest: str) -> str:
    """Where cosign looks for the signatures of a manifest."""
    return f"{digest.replace(':', '-')}.sig"


def add_signature(
    layout: oci.LayoutWriter,
    signed: oci.Descriptor,
    repository: str,
    claims: Mapping[str, str],
    key: PrivateKey,
) -> oci.Descriptor:
    """Sign a manifest of the layout; ``claims`` are what ``cosign verify -a`` compares."""
    payload = oci.to_bytes(_build_payload(signed.digest, repository, claims))
    blob = layout.add_blob(payload, PAYLOAD_TYPE)
    layer = oci.Descriptor(
        media_type=blob.media_type,
        digest=blob.digest,
        size_bytes=blob.size_bytes,
        annotations={SIGNATURE: sign(key, payload)},
    )
    config = layout.add_blob(oci.to_bytes(_build_config(blob)), oci.CONFIG_TYPE)
    manifest = oci.build_manifest(config, [layer], {})
    return layout.add_manifest(manifest, signature_tag(signed.digest))


def _build_payload(digest: str, repository: str, claims: Mapping[str, str]) -> dict[str, Any]:
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": PAYLOAD_KIND,
    }
    return {"critical": critical, "optional": dict(claims)}


def _build_config(payload: oci.Descriptor) -> dict[str, Any]:
    return {
        "architecture": "",
        "config": {},
        "created": "0001-01-01T00:00:00Z",
        "history": [{"created": "0001-01-01T00:00:00Z"}],
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": [payload.digest]},
    }


def find_wrong_signature(
    root: Path,
    tags: Mapping[str, oci.Descriptor],
    signed: oci.Descriptor,
    repository: str,
    claims: Mapping[str, str],
    key: PublicKey,
) -> str:
    """Why the layout's signature of a manifest does not hold; empty when it does."""
    place = tags.get(signature_tag(signed.digest))
    if place is None:
        return "there is no signature"
    try:
        manifest = oci.read_document(oci.read_blob(root, place), place.digest)
        (layer,) = oci.descriptors_of(manifest.get("layers"), place.digest)
        payload = oci.read_blob(root, layer)
    except (LayoutError, ValueError) as error:
        return f"its signature cannot be read: {error}"
    if not holds(key, payload, layer.annotations.get(SIGNATURE, "")):
        return "its signature is of another key, or of something else"
    expected = _build_payload(signed.digest, repository, claims)
    said = json.loads(payload)
    return "" if said == expected else f"what was signed is another: {said!r:.400}"
