"""Files to a host, each by its content: what is there is not sent, what was cut is gone on with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rollout.errors import HostError
from rollout.remote.host import RemoteHost
from rollout.remote.parcel import CHUNK, Parcel, SentFile

SEND_SECONDS_MAX = 24 * 3600.0
"""Of one connection: the dead are found by ssh itself, within its own seconds."""
MIB = 1 << 20


def place_parcel(host: RemoteHost, parcel: Parcel, kind: str) -> tuple[str, int]:
    """The parcel as a folder of the host, and how many bytes were sent for it. Raises HostError."""
    by_digest = {one.digest: one for one in parcel.files}
    sent = 0

    def send() -> None:
        nonlocal sent
        sent += _send_lacking(host, by_digest)

    host.again(send)
    files = [[one.path, one.digest, one.is_program] for one in parcel.files]
    wanted = {"kind": kind, "name": parcel.name, "files": files}
    folder = host.again(lambda: host.ask("place", wanted))["folder"]
    return folder, sent


def _send_lacking(host: RemoteHost, by_digest: dict[str, SentFile]) -> int:
    sizes = [[one.digest, one.size] for one in by_digest.values()]
    told = host.ask("lacks", {"files": sizes})
    rows = [[one, by_digest[one].size, offset] for one, offset in told["lacks"].items()]
    total = sum(size - offset for _, size, offset in rows)
    if total >= told["free"]:
        raise HostError(
            f"{host.ssh.address}: {total / MIB:.1f} MiB are to be sent, and its cache folder has room for"
            f" {told['free'] / MIB:.1f} MiB: make room, or set XDG_CACHE_HOME there to another disk"
        )
    if rows:
        host.ask("receive", {"files": rows}, _body(rows, by_digest), seconds_max=SEND_SECONDS_MAX)
    return total


def _body(rows: list[list], by_digest: dict[str, SentFile]) -> Callable[[], Iterable[bytes]]:
    def parts() -> Iterator[bytes]:
        for digest, _, offset in rows:
            yield from _parts(by_digest[digest], offset)

    return parts


def _parts(file: SentFile, offset: int) -> Iterator[bytes]:
    """The bytes that were hashed; where the file has become another one, the host finds another digest."""
    if file.text is not None:
        yield file.text[offset:]
        return
    left = file.size - offset
    with file.source.open("rb") as opened:
        opened.seek(offset)
        while left and (chunk := opened.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
    if left:
        raise HostError(f"{file.source} became shorter while it was sent: start again")
