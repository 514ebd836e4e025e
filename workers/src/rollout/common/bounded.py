"""Unpacks compressed bytes within a bound that holds on what comes out, while it comes out.

A frame says its own size, and zstandard believes it before it believes ``max_output_size``.
"""

from __future__ import annotations

import io

import msgspec
import zstandard

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no message: broken form, broken text, nesting without end."""
BELIEVED_BYTES_MAX = 64 << 20
"""A frame that declares no more is unpacked at once; its size is allocated beforehand."""
_CHUNK_BYTES = 1 << 20


def unpack_zstd(frame: bytes | memoryview, size_max: int) -> bytes:
    """The content of one zstd frame. Raises ValueError past the bound and for what is no frame."""
    try:
        declared = zstandard.frame_content_size(frame)
        if declared > size_max:
            raise ValueError(f"a frame of {declared} bytes, expected at most {size_max}")
        if 0 <= declared <= BELIEVED_BYTES_MAX:
            return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size_max)
        return _unpack_slowly(frame, declared, size_max)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def unpack_zstd_into(frame: bytes | memoryview, target: memoryview) -> None:
    """The content of one zstd frame into memory that is there. Raises ValueError for one of another size, and for what is no frame."""
    done = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(frame) as plain:
            while done < len(target) and (count := plain.readinto(target[done:])):
                done += count
            is_longer = bool(plain.read(1))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if is_longer or done != len(target):
        raise ValueError(f"a frame of another size than the {len(target)} bytes that are expected")


def _unpack_slowly(frame: bytes | memoryview, declared: int, size_max: int) -> bytes:
    """In parts, so that memory follows what is really there and not what is said."""
    parts = bytearray()
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(frame)) as plain:
        while part := plain.read(_CHUNK_BYTES):
            parts += part
            if len(parts) > size_max:
                raise ValueError(f"a frame of more than {size_max} bytes")
    if 0 <= declared != len(parts):
        raise ValueError(f"a frame of {len(parts)} bytes, which says {declared}")
    return bytes(parts)
