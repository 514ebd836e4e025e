"""An image is handed over as CRIU asks for it: each file whole or not at all, whatever is asked, and nothing of it stays behind."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_images import dump_folder, opened_place, read_whole, save_dump

from rollout.errors import ObjectDamaged, StoreError
from rollout.snapshots.processes import feeding
from rollout.snapshots.processes.feeding import SOCKET, ImageFeed, read_request, write_pieces
from rollout.snapshots.processes.image import open_image
from rollout.snapshots.processes.sealing import open_sealer
from rollout.snapshots.signing import open_signer

TIMEOUT = 60.0
LARGE = bytes(range(256)) * 1024


@pytest.fixture
def world(tmp_path):
    """An image, its store, and a folder whose path is too long for a socket's."""
    key = tmp_path / "config" / "rollout" / "snapshot.key"
    place, dump = opened_place(tmp_path), dump_folder(tmp_path / "dump")
    (dump / "core-1002.img").write_bytes(LARGE)
    sealer = open_sealer(key, "", "uid")
    layer = save_dump(place, dump, sealer, open_signer(key)).layer("process")
    folder = tmp_path / ("long" * 20) / ("er" * 20)
    folder.mkdir(parents=True)
    return layer, sealer, place.store, folder


def connect(folder) -> socket.socket:
    """As CRIU does, from within the folder."""
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(TIMEOUT)
    descriptor = os.open(folder, os.O_PATH)
    one.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
    os.close(descriptor)
    return one


def request(name: str) -> bytes:
    body = bytes((0x0A, len(name))) + name.encode()
    return struct.pack("=I", len(body)) + body


def ask_for(one: socket.socket, name: str) -> bytes | None:
    """A file; None where there is none."""
    one.sendall(request(name))
    reply = one.recv(6, socket.MSG_WAITALL)
    assert reply[:5] == b"\x02\0\0\0\x08"
    if not reply[5]:
        return None
    reading, writing = os.pipe()
    socket.send_fds(one, [b"x"], [writing])
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        return file.read()


def test_every_file_comes_whole_any_number_of_times_and_others_are_not_there(world):
    layer, sealer, store, folder = world
    image = open_image(layer, sealer, store)
    wanted = read_whole(open_image(layer, sealer, store))
    with image.pages, ImageFeed(folder, image.files, image.pages) as feed, connect(folder) as one:
        for _ in range(2):
            assert {name: ask_for(one, name) for name in wanted} == wanted
        assert wanted["core-1002.img"] == LARGE
        for name in ("no-such.img", "../../etc/passwd", "dump.log"):
            assert ask_for(one, name) is None
        assert feed.failure is None
    assert [one.name for one in folder.iterdir()] == [SOCKET], "and nothing was written"


def test_a_pack_that_is_damaged_meanwhile_breaks_the_file_off_and_is_named(world):
    layer, sealer, store, folder = world
    image = open_image(layer, sealer, store)
    path = store.locate(next(one.object for one in layer.parts if one.name == "pack/00000"))
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    store._files._verified.clear()
    with ImageFeed(folder, image.files, image.pages) as feed, connect(folder) as one:
        assert ask_for(one, "pages-1.img") == b""
        assert isinstance(feed.failure, ObjectDamaged)
    with image.pages:
        pass


@pytest.mark.parametrize(
    "words", [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\3\0\0\0\x0a\x09a", b"\3\0\0\0\x08\x01a", b"\1"]
)
def test_whoever_asks_in_another_way_is_answered_nothing(world, words):
    layer, sealer, store, folder = world
    image = open_image(layer, sealer, store)
    with image.pages, ImageFeed(folder, image.files, image.pages) as feed, connect(folder) as one:
        one.sendall(words)
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""
        assert "a way that is not known" in str(feed.failure)


@given(st.binary(max_size=64))
def test_no_request_is_taken_for_another(data):
    here, there = socket.socketpair()
    with here, there:
        there.sendall(data)
        there.close()
        try:
            name = read_request(here)
        except StoreError:
            return
        assert name is None or name.encode() == data[6 : 6 + data[5]] or "\ufffd" in name


def test_a_feed_that_nobody_asks_ends_and_a_reader_that_goes_harms_nothing(world):
    layer, sealer, store, folder = world
    image = open_image(layer, sealer, store)
    before = threading.active_count()
    with image.pages, ImageFeed(folder, image.files, image.pages):
        pass
    (folder / SOCKET).unlink()
    with image.pages, ImageFeed(folder, image.files, image.pages) as feed, connect(folder) as one:
        reading, writing = os.pipe()
        os.close(reading)
        one.sendall(request("core-1002.img"))
        one.recv(6, socket.MSG_WAITALL)
        socket.send_fds(one, [b"x"], [writing])
        os.close(writing)
        assert ask_for(one, "core-1001.img") is not None
        assert feed.failure is None
    assert threading.active_count() <= before + 3


def test_what_a_pipe_takes_in_parts_arrives_whole(monkeypatch):
    monkeypatch.setattr(feeding, "PIECES_MAX", 2)
    reading, writing = os.pipe()
    pieces = [memoryview(bytes([number % 251]) * number * 777) for number in range(60)]
    got: list[bytes] = []

    def drain() -> None:
        with os.fdopen(reading, "rb") as file:
            got.append(file.read())

    thread = threading.Thread(target=drain)
    thread.start()
    write_pieces(writing, pieces)
    os.close(writing)
    thread.join(TIMEOUT)
    assert got == [b"".join(pieces)]
