"""The attacker's wish: a body of kilobytes that takes gigabytes, or numbers that end the step that consumes them."""

import tracemalloc

import pytest
import zstandard

from rollout import codec
from rollout.codec import decode_body, decode_prefixes
from rollout.common.bounded import unpack_zstd
from rollout.errors import LedgerError


def frame_of(size, *, declared):
    packer = zstandard.ZstdCompressor(level=3).compressobj(size=size if declared else -1)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join(parts) + packer.flush()


def peak(work):
    tracemalloc.start()
    try:
        work()
    finally:
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("decode", [decode_body, decode_prefixes])
def test_a_stored_body_grows_past_its_bound(monkeypatch, declared, decode):
    monkeypatch.setattr(codec, "BODY_BYTES_MAX", 16 << 20)
    frame = frame_of(200 << 20, declared=declared)
    assert len(frame) < 1 << 16

    def read():
        with pytest.raises(LedgerError, match="cannot be read"):
            decode(frame)

    assert peak(read) < 48 << 20


def test_a_frame_declares_what_it_does_not_hold():
    whole = frame_of(100 << 20, declared=True)

    def read():
        with pytest.raises(ValueError, match="says"):
            unpack_zstd(whole[: len(whole) // 20], 1 << 30)

    assert peak(read) < 48 << 20


def test_what_is_within_the_bound_comes_out():
    for declared in (True, False):
        assert unpack_zstd(frame_of(3 << 20, declared=declared), 4 << 20) == bytes(3 << 20)
    assert unpack_zstd(frame_of(80 << 20, declared=True), 128 << 20) == bytes(80 << 20)


@pytest.mark.parametrize("body", [b"", b"x", b"\x28\xb5\x2f\xfd", b"\x91" * 5000])
def test_what_is_no_frame_is_named(body):
    with pytest.raises(ValueError):
        unpack_zstd(body, 100)


def test_nesting_without_end_is_refused():
    deep = zstandard.compress(b"\x91" * 100_000)
    with pytest.raises(LedgerError, match="cannot be read"):
        decode_body(deep)
