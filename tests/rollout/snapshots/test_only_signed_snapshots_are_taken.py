"""A snapshot is taken from this installation, or from a key that was named; a digest alone vouches for nothing."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from snapshot_kit import changed, make_run, snapshot

from rollout.errors import SnapshotRefused, SpecError
from rollout.snapshots.manifest import Signature
from rollout.snapshots.signing import (
    check_signature,
    open_signer,
    parse_trusted,
    read_public,
    require_trusted,
)


@pytest.fixture
async def made(tmp_path, signer):
    await make_run(tmp_path)
    return snapshot(tmp_path, signer)


def test_a_key_is_made_once_and_is_its_owners_alone(tmp_path):
    path = tmp_path / "deep" / "snapshot.key"

    assert read_public(path) is None
    first = open_signer(path).public
    assert first == open_signer(path).public == read_public(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_processes_that_make_it_at_once_have_one_key(tmp_path):
    path = tmp_path / "snapshot.key"
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: open_signer(path).public, range(16)))

    assert found == {read_public(path)}


def test_a_key_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "snapshot.key"
    open_signer(path)
    os.chmod(path, 0o644)  # noqa: PTH101

    with pytest.raises(SpecError, match="chmod 600"):
        open_signer(path)


@pytest.mark.parametrize("content", [b"", b"zz", b"\xff" * 70, b"ab" * 31])
def test_what_is_no_key_is_refused_and_not_told(tmp_path, content):
    path = tmp_path / "snapshot.key"
    path.touch(0o600)
    path.write_bytes(content)

    with pytest.raises(SpecError, match="not a key") as refused:
        open_signer(path)
    assert "ab" * 31 not in str(refused.value)


def test_ones_own_is_taken_and_anothers_when_named(made, signer, tmp_path):
    other = open_signer(tmp_path / "other.key")

    assert require_trusted(made, {signer.public}) == signer.public
    with pytest.raises(SnapshotRefused, match=f"--trust {signer.public}"):
        require_trusted(made, {other.public})
    with pytest.raises(SnapshotRefused, match="does not trust"):
        require_trusted(made, ())
    assert SnapshotRefused.exit_code == 2


def test_an_unsigned_one_is_refused(made, signer):
    with pytest.raises(SnapshotRefused, match="not signed"):
        require_trusted(changed(made, signature=None), {signer.public})


@pytest.mark.parametrize("value", ["", "00" * 64, "zz" * 64, "0"])
def test_a_made_up_signature_is_refused(made, value):
    signature = Signature(signer=made.signature.signer, value=value)

    with pytest.raises(SnapshotRefused, match="signature is not"):
        check_signature(changed(made, signature=signature))


def test_a_signature_holds_for_its_run_and_namespace_only(made, signer):
    """The same root under another run's name would be a state that was never that run's."""
    for field in ("uid", "namespace"):
        run = msgspec.structs.replace(made.header.run, **{field: "mine"})
        moved = changed(made, header=msgspec.structs.replace(made.header, run=run))
        with pytest.raises(SnapshotRefused, match="signature is not"):
            require_trusted(moved, {signer.public})


def test_trust_is_a_key_or_its_file(tmp_path, signer):
    path = tmp_path / "key.pub"
    path.write_text(f"{signer.public}\n")

    assert parse_trusted(str(path)) == parse_trusted(signer.public) == signer.public
    for bad in ("ed25519:12", "rsa:" + "0" * 64, str(tmp_path / "none"), "ed25519:" + "g" * 64):
        with pytest.raises(SpecError, match="--trust"):
            parse_trusted(bad)
