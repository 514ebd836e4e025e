"""The digests of a release's files, in the form that `sha256sum --check` reads."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path

from release import oci
from release.errors import LayoutError

UNLISTED = frozenset({"SHA256SUMS", "SHA256SUMS.sig"})
FILES_MAX = 8192
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+/-]*)")


def read_folder(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file by its path, in hexadecimal digits.

    Raises:
        LayoutError: something is neither a file nor a folder, or there is too much.
    """
    paths = sorted(folder.rglob("*"))
    if len(paths) > FILES_MAX:
        raise LayoutError(f"{folder}: more than {FILES_MAX} files")
    found = {}
    for path in paths:
        name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
        if stat.S_ISDIR(mode) or name in UNLISTED:
            continue
        if not stat.S_ISREG(mode):
            raise LayoutError(f"{name}: neither a file nor a folder")
        found[name] = oci.digest_of(path).removeprefix("sha256:")
    return found


def render(digests: Mapping[str, str]) -> bytes:
    """A line each."""
    return "".join(f"{one}  {name}\n" for name, one in sorted(digests.items())).encode()


def parse(data: bytes) -> dict[str, str]:
    """The digests by path.

    Raises:
        LayoutError: a line that is none, or a path that leads out of the folder.
    """
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise LayoutError("SHA256SUMS: no text") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        parts = _LINE.fullmatch(line)
        if parts is None or {"", ".", ".."} & {*parts[2].split("/")} or parts[2] in found:
            raise LayoutError(f"SHA256SUMS:{number}: {line!r:.160} is no digest of a file")
        found[parts[2]] = parts[1]
    return found


def compare(said: Mapping[str, str], held: Mapping[str, str]) -> list[str]:
    """Each file that is missing, another, or not named."""
    missing = [f"{name}: is missing" for name in sorted(said.keys() - held.keys())]
    foreign = [f"{name}: SHA256SUMS does not name it" for name in sorted(held.keys() - said.keys())]
    other = [
        f"{name}: its bytes are others (sha256 {held[name][:12]}, expected {said[name][:12]})"
        for name in sorted(said.keys() & held.keys())
        if said[name] != held[name]
    ]
    return [*missing, *other, *foreign]
