"""What replaces a file: after a fault at any step the old one stands alone, and a secret is nobody else's from its first byte."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rollout.common.atomic_files import replace_text, replacing


def fail(*_args: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("fails", ["open", "fsync", "replace"])
def test_a_fault_leaves_the_old_file_alone_in_its_folder(fails, tmp_path, monkeypatch):
    path = tmp_path / "table"
    path.write_bytes(b"old")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path if fails == "replace" else os, fails, fail)
        with replacing(path, durable=True) as file:
            file.write(b"new")

    assert [one.name for one in tmp_path.iterdir()] == ["table"]
    assert path.read_bytes() == b"old"


def test_a_writer_that_fails_half_way_leaves_the_old_file_alone_in_its_folder(tmp_path):
    path = tmp_path / "table"
    path.write_bytes(b"old")

    with pytest.raises(RuntimeError), replacing(path, durable=False) as file:
        file.write(b"half")
        file.flush()
        assert path.read_bytes() == b"old"
        raise RuntimeError

    assert [one.name for one in tmp_path.iterdir()] == ["table"]
    assert path.read_bytes() == b"old"


def test_a_secret_is_its_owners_from_the_first_byte(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"old")
    path.chmod(0o644)

    with replacing(path, durable=False, mode=0o600) as file:
        first = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        file.write(b"secret")

    assert (first, stat.S_IMODE(path.stat().st_mode)) == (0o600, 0o600)


@pytest.mark.parametrize("planted", ["link", "readable"])
def test_what_lies_where_a_file_is_written_is_not_written_into(planted, tmp_path):
    staged, theirs = tmp_path / ".keys.new", tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    if planted == "link":
        staged.symlink_to(theirs)
    else:
        staged.hardlink_to(theirs)

    with replacing(tmp_path / "keys", durable=False, mode=0o600, staged=staged) as file:
        file.write(b"secret")

    assert theirs.read_bytes() == b"theirs"
    assert (tmp_path / "keys").read_bytes() == b"secret"
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600


def test_text_that_is_no_unicode_replaces_nothing(tmp_path):
    path = tmp_path / "page"
    replace_text(path, "old")

    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "\udc80")

    assert [one.name for one in tmp_path.iterdir()] == ["page"]
    assert path.read_text() == "old"
