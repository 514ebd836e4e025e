"""What a gateway serves: versions and the engines behind each, as one small file that whoever starts engines writes.

A name that a client gives is resolved once, at admission: to a version, never to "the newest". The file is replaced
as a whole (a rename), so a reader sees one table or the next. Starts no engine, and looks at none.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from rollout.common.atomic_files import replacing
from rollout.errors import SpecError
from rollout.inference.engine_client import HTTP

NAME_CHARACTERS_MAX = 256
VERSIONS_MAX = 256
TABLE_BYTES_MAX = 4 << 20


class EngineReplica(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: its Unix socket, or ``127.0.0.1:PORT``, and how many requests it answers at a time.

    ``key``: what it asks of whoever asks it; empty: its socket is nobody else's. A socket that begins with ``http://`` is
    ``http://host:port`` of servers that have gateways of their own (``away``): they are sent requests as clients sent them, with
    their keys.
    """

    name: str
    socket: str
    slots: int
    key: str = ""

    @property
    def away(self) -> bool:
        """Whether another gateway stands before it."""
        return self.socket.startswith(HTTP)


class ServedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model: ``name`` is what engines call it and what answers name, ``digest`` of its weights.

    ``created``: seconds since 1970. ``salted``: its engines take a cache salt. ``context_tokens`` counts prompt and
    completion; 0 is unknown. ``task``: what its engines do, and so which paths it answers.
    """

    name: str
    digest: str
    engine: Literal["embedded", "vllm", "sglang"]
    replicas: tuple[EngineReplica, ...]
    created: int
    context_tokens: int = 0
    salted: bool = False
    task: Literal["generate", "embed", "score"] = "generate"


class EndpointTable(msgspec.Struct, frozen=True, kw_only=True):
    """All that is served: versions, and further names for some of them."""

    versions: tuple[ServedVersion, ...] = ()
    aliases: dict[str, str] = {}

    def find(self, name: str) -> ServedVersion | None:
        """The version that a client's ``model`` means now; None where there is none."""
        wanted = self.aliases.get(name, name)
        return next((one for one in self.versions if one.name == wanted), None)

    def names(self) -> list[str]:
        """Every name that is answered, versions first."""
        return [*(one.name for one in self.versions), *sorted(self.aliases)]


def check_table(table: EndpointTable) -> EndpointTable:
    """The table, or SpecError: names that mean two things, or nothing."""
    names = [one.name for one in table.versions]
    _refuse_doubles([*names, *table.aliases])
    lost = [alias for alias, name in table.aliases.items() if name not in names]
    if lost:
        raise SpecError(f"alias {lost[0]!r} means {table.aliases[lost[0]]!r}, which is not served")
    if len(names) > VERSIONS_MAX:
        raise SpecError(f"{len(names)} versions: one gateway serves up to {VERSIONS_MAX}")
    return table


def write_table(path: Path, table: EndpointTable) -> None:
    """Replace the file. Raises SpecError for a table that means two things by one name."""
    content = msgspec.json.encode(check_table(table))
    with replacing(path, durable=False) as file:
        file.write(content)


def read_table(path: Path) -> EndpointTable:
    """The table in a file. Raises SpecError for one that is missing, too large or broken."""
    try:
        content = path.read_bytes()
        if len(content) > TABLE_BYTES_MAX:
            raise SpecError(f"{path} has {len(content)} bytes; a table has up to {TABLE_BYTES_MAX}")
        return check_table(msgspec.json.decode(content, type=EndpointTable))
    except (OSError, msgspec.MsgspecError) as error:
        raise SpecError(f"{path} is no table of versions: {error}") from error


def _refuse_doubles(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
            raise SpecError(
                f"{name[:40]!r} is no name: expected 1 to {NAME_CHARACTERS_MAX} printable characters"
            )
        if name in seen:
            raise SpecError(f"two versions or aliases are named {name!r}: give one another name")
        seen.add(name)
