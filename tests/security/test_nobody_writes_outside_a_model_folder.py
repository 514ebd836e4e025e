"""The attacker's wish: a packed model that writes, links or leaves behind what is no model file."""

import io
import tarfile

import pytest

from rollout.errors import StoreError
from rollout.models import packed as packing
from rollout.models.packed import pack, unpack


def build_archive(path, members):
    """``members``: name and content, or a TarInfo."""
    with tarfile.open(path, "w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            name, content = member
            head = tarfile.TarInfo(name)
            head.size = len(content)
            archive.addfile(head, io.BytesIO(content))
    return path


def special(name, kind, target=""):
    head = tarfile.TarInfo(name)
    head.type, head.linkname = kind, target
    return head


def climb(folder):
    """An archive whose links, followed one by one, leave the folder though each looks as if it did not."""
    component, steps, path = "d" * 247, "abcdefghijklmnop", ""
    members = []
    for step in steps:
        members.append(special(f"{path}{component}", tarfile.DIRTYPE))
        members.append(special(f"{path}{step}", tarfile.SYMTYPE, component))
        path += f"{component}/"
    long = "/".join(steps) + "/" + "l" * 254
    members += [
        special(long, tarfile.SYMTYPE, "../" * len(steps)),
        special("escape", tarfile.SYMTYPE, long + "/../victim"),
        special("flag", tarfile.LNKTYPE, "escape/file"),
        ("flag", b"overwritten"),
    ]
    return build_archive(folder / "model.tar", members)


def test_a_file_outside_the_folder_is_overwritten_through_links(tmp_path):
    victim = tmp_path / "victim" / "file"
    victim.parent.mkdir()
    victim.write_text("original")
    (tmp_path / "model").mkdir()
    with pytest.raises(StoreError, match="cannot be unpacked as a model"):
        unpack(climb(tmp_path), tmp_path / "model")
    assert victim.read_text() == "original"
    assert list((tmp_path / "model").iterdir()) == []


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"S"],
)
def test_a_member_is_something_else_than_a_regular_file(tmp_path, kind):
    archive = build_archive(tmp_path / "a", [special("config.json", kind, "/etc/passwd")])
    with pytest.raises(StoreError, match="expected regular files only"):
        unpack(archive, tmp_path / "model")
    assert not (tmp_path / "model" / "config.json").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("../config.json", "/tmp/config.json", "a/config.json", ".config.json", "a\\b.json"),
        *("model.py", "pytorch_model.bin", "weights.pt", "config", "..", "a\x1b[2J.json"),
        "additional_chat_templates/tool.jinja",
    ],
)
def test_a_member_has_a_name_that_is_no_model_files(tmp_path, name):
    archive = build_archive(tmp_path / "a", [(name, b"x")])
    with pytest.raises(StoreError, match="expected a model file's name"):
        unpack(archive, tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []


def test_one_name_comes_twice_and_the_second_replaces_what_was_looked_at(tmp_path):
    archive = build_archive(tmp_path / "a", [("config.json", b"{}"), ("config.json", b"{1}")])
    with pytest.raises(StoreError, match=r"config\.json comes twice"):
        unpack(archive, tmp_path / "model")


def test_a_header_promises_more_than_the_archive_holds(tmp_path):
    head = tarfile.TarInfo("model.safetensors")
    head.size = 1 << 40
    (tmp_path / "a").write_bytes(head.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(StoreError, match="ends within"):
        unpack(tmp_path / "a", tmp_path / "model")


def test_a_negative_size_turns_the_reader_round(tmp_path):
    head = bytearray(tarfile.TarInfo("config.json").tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" * 10 + b"\xfe\x00"
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "a").write_bytes(bytes(head) + bytes(1024))
    with pytest.raises(StoreError, match="cannot be unpacked as a model"):
        unpack(tmp_path / "a", tmp_path / "model")


@pytest.mark.parametrize(("bound", "says"), [("FILES_MAX", "files"), ("BYTES_MAX", "bytes")])
def test_the_disk_is_filled_without_bound(tmp_path, monkeypatch, bound, says):
    monkeypatch.setattr(packing, bound, 3)
    archive = build_archive(tmp_path / "a", [(f"{n}.json", b"{}") for n in range(5)])
    with pytest.raises(StoreError, match=f"more than 3 {says}"):
        unpack(archive, tmp_path / "model")


@pytest.mark.parametrize("name", ["n" * 101 + ".json", "ä.json"])
def test_what_could_not_be_read_back_is_not_packed(tmp_path, name):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_text("{}")
    with pytest.raises(StoreError, match="expected a model file's name"):
        list(pack(tmp_path / "m"))
