"""A protocol-buffer body before it is built: how many parts it has, and whether each of them is known here.

Two bytes of a body can be a message of a hundred, and a field that nobody here knows could change what a call means: both are
told from the bytes alone, in one pass over them, so that a refusal costs no more than the body did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout.service.refusals import CallRefused, not_offered
from rollout.service.training.checks import DATA_MAX
from rollout.service.wire.schema import MESSAGES, SCALARS
from rollout.service.wire.versions import NEWEST

FIELDS_MAX = 1 << 18
"""Of one body, those of parts included. A sequence of one piece of text with three inputs has some twenty."""
SHAPE_BYTES_MAX = 64
"""Of a tensor's shape, which has one axis or two."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = {
    "int32": VARINT,
    "int64": VARINT,
    "uint32": VARINT,
    "bool": VARINT,
    "double": FIXED64,
}
_OPAQUE = frozenset({"SparseCsr", "Other"})
"""Parts that are refused as a whole elsewhere, whatever is in them."""
_PLACE = (1, 2)
"""``model_id`` and ``seq_id``."""
_IGNORED = frozenset({("Datum", 3), ("Datum", 4)})
"""Where tokens came from: nothing is computed from that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    wire_type: int
    child: str


def _fields(message: str) -> dict[int, _Field]:
    found: dict[int, _Field] = {}
    for said in MESSAGES[message].split(";"):
        number, name, kind = said.split()[:3]
        child = "" if kind in SCALARS or kind in _OPAQUE else kind
        found[int(number)] = _Field(name=name, wire_type=_WIRE_TYPES.get(kind, LENGTH), child=child)
    return found


_KNOWN: Mapping[str, Mapping[int, _Field]] = {name: _fields(name) for name in MESSAGES}


@dataclass(slots=True)
class _Scan:
    body: bytes
    left: int = FIELDS_MAX
    data_left: int = DATA_MAX


def check_parts(body: bytes) -> CallRefused | None:
    """Why a ForwardBackwardRequest is not to be built; None: it may be. Bytes that are no message are for its parser to tell."""
    try:
        _check(_Scan(body), "ForwardBackwardRequest", 0, len(body))
    except CallRefused as refusal:
        return refusal
    except _NoMessageError:
        return None
    return None


def place_of(body: bytes) -> bytes:
    """The fields of a ForwardBackwardRequest that say which model and which call of it; nothing else is kept."""
    kept: list[bytes] = []
    at = 0
    try:
        for _ in range(FIELDS_MAX):
            if at >= len(body):
                break
            began = at
            key, at = _varint(body, at, len(body))
            _, at = _skip(body, key & 7, at, len(body))
            if key >> 3 in _PLACE:
                kept.append(body[began:at])
    except _NoMessageError:
        pass  # what was found before holds: a model that is not named is refused
    return b"".join(kept)


class _NoMessageError(Exception):
    pass


def _check(scan: _Scan, message: str, at: int, end: int) -> None:
    known = _KNOWN[message]
    while at < end:
        scan.left -= 1
        if scan.left < 0:
            raise CallRefused(
                f"data: a call has at most {FIELDS_MAX} fields, those of its sequences included, and this one has more;"
                " send fewer sequences in a call, and each one's tokens in one piece"
            )
        key, at = _varint(scan.body, at, end)
        number, wire_type = key >> 3, key & 7
        begin, at = _skip(scan.body, wire_type, at, end)
        found = known.get(number)
        if found is None or not _fits(found, wire_type):
            if (message, number) not in _IGNORED:
                raise _unknown(message, number, wire_type)
        elif found.child:
            scan.data_left -= found.child == "Datum"
            if scan.data_left < 0:
                raise CallRefused(f"data: expected 1 to {DATA_MAX} sequences in a call, got more")
            _check(scan, found.child, begin, at)
        elif (message, number) == ("Tensor", 4) and at - begin > SHAPE_BYTES_MAX:
            raise CallRefused("data: a tensor's shape has more than two axes; send one")


def _fits(found: _Field, wire_type: int) -> bool:
    return wire_type == found.wire_type or (found.name == "shape" and wire_type == LENGTH)


def _unknown(message: str, number: int, wire_type: int) -> CallRefused:
    return not_offered(
        f"field {number} of {message} (wire type {wire_type}), which no client up to tinker {NEWEST} sends,",
        "leave it out, or use that client",
    )


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _NoMessageError


def _skip(body: bytes, wire_type: int, at: int, end: int) -> tuple[int, int]:
    """Where a field's content begins and ends."""
    if wire_type == LENGTH:
        size, at = _varint(body, at, end)
    elif wire_type == VARINT:
        return at, _varint(body, at, end)[1]
    else:
        size = {FIXED64: 8, FIXED32: 4}.get(wire_type, -1)
    if size < 0 or at + size > end:
        raise _NoMessageError
    return at, at + size
