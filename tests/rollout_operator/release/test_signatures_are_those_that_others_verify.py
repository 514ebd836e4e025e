"""What is signed is in cosign's form, by a P-256 key, verified here by OpenSSL; other keys are refused by name."""

import base64
import json
import subprocess

import pytest
import release_kit
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from release import oci, signatures
from release.errors import SigningKeyError

KEY = release_kit.fixed_key()


@pytest.fixture
def signed(tmp_path):
    """A layout of one manifest and its signature: root, tags and the manifest."""
    layout = oci.LayoutWriter(root=tmp_path / "layout")
    config = layout.add_blob(b"{}", oci.EMPTY_TYPE)
    top = layout.add_manifest(oci.build_manifest(config, [], {}), "0.3.1")
    signatures.add_signature(layout, top, "charts/rollout", {"version": "0.3.1"}, KEY)
    layout.close()
    return layout.root, oci.read_tags(layout.root), top


def test_a_signature_has_the_form_that_cosign_reads(signed):
    """https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md"""
    root, tags, top = signed
    place = tags[f"sha256-{top.digest[7:]}.sig"]
    manifest = json.loads(oci.read_blob(root, place))
    (layer,) = manifest["layers"]

    assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    payload = json.loads(oci.blob_path(root, layer["digest"]).read_bytes())
    assert payload == {
        "critical": {
            "identity": {"docker-reference": "charts/rollout"},
            "image": {"docker-manifest-digest": top.digest},
            "type": "cosign container image signature",
        },
        "optional": {"version": "0.3.1"},
    }


def test_openssl_verifies_the_payload(signed, tmp_path):
    root, tags, top = signed
    manifest = json.loads(oci.read_blob(root, tags[signatures.signature_tag(top.digest)]))
    (layer,) = manifest["layers"]
    (tmp_path / "key").write_bytes(signatures.public_pem(KEY.public_key()))
    signature = base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])
    (tmp_path / "signature").write_bytes(signature)

    payload = str(oci.blob_path(root, layer["digest"]))
    command = ["openssl", "dgst", "-sha256", "-verify", "key", "-signature", "signature", payload]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert done.stdout == "Verified OK\n"


def find(signed, *, repository="charts/rollout", claims=None, key=KEY):
    root, tags, top = signed
    said = {"version": "0.3.1"} if claims is None else claims
    return signatures.find_wrong_signature(root, tags, top, repository, said, key.public_key())


def test_a_signature_holds_for_its_repository_its_claims_and_its_key_alone(signed):
    assert find(signed) == ""
    assert "what was signed is another" in find(signed, repository="charts/rollout-crds")
    assert "what was signed is another" in find(signed, claims={"version": "0.4.0"})
    assert "another key" in find(signed, key=release_kit.fixed_key(8))


@given(data=st.binary(max_size=200), other=st.binary(max_size=200))
def test_a_signature_is_of_these_bytes_and_always_the_same(data, other):
    signature = signatures.sign(KEY, data)
    assert signature == signatures.sign(KEY, data)
    assert signatures.holds(KEY.public_key(), data, signature)
    assert signatures.holds(KEY.public_key(), other, signature) == (data == other)


@given(st.text(max_size=200))
def test_a_text_that_is_no_signature_holds_for_nothing(text):
    assert not signatures.holds(KEY.public_key(), b"data", text)


def pem(key):
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (pem(ed25519.Ed25519PrivateKey.generate()), "ECDSA key on P-256"),
        (pem(ec.generate_private_key(ec.SECP384R1())), "ECDSA key on P-256"),
        (pem(rsa.generate_private_key(65537, 2048)), "ECDSA key on P-256"),
        (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "cosign import-key-pair"),
        (b"", "no private key"),
        (signatures.public_pem(KEY.public_key()), "no private key"),
        (b"a" * (17 << 10), "larger than any key"),
    ],
)
def test_a_key_that_cannot_sign_releases_is_refused(tmp_path, text, said):
    (tmp_path / "key").write_bytes(text)
    with pytest.raises(SigningKeyError, match=said):
        signatures.load_private_key(tmp_path / "key")


def test_a_key_with_a_password_needs_that_password(tmp_path):
    path = release_kit.write_key(tmp_path / "key", KEY, b"secret")
    assert signatures.load_private_key(path, "secret").private_numbers() == KEY.private_numbers()
    for password in ("", "other"):
        with pytest.raises(SigningKeyError, match="no private key that can be read"):
            signatures.load_private_key(path, password)


def test_a_key_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SigningKeyError, match="No such file"):
        signatures.load_public_key(tmp_path / "absent")
