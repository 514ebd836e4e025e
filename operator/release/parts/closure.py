"""Which pinned packages an image's Python environment holds: what its distributions ask for, and what these ask for. Pure.

Versions are the pins'; who asks for whom is in the metadata of the installed packages, which have to be the pinned
ones. What uv overrides (``[tool.uv]`` of pyproject.toml) is overridden here, too.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from release.errors import ReleaseError

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One version of a package."""

    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file that the index has of it, in hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What an installed distribution says of itself."""

    version: str
    requires: tuple[str, ...]
    """As Requires-Dist has them, markers included."""
    license: str = ""
    """An SPDX expression, a name, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package of an environment."""

    name: str
    version: str
    license: str = ""
    hashes: tuple[str, ...] = ()
    """Empty for the distributions of this repository: the release has their digests itself."""
    needs: frozenset[str] = field(default_factory=frozenset)
    """Names of packages of the same environment."""


def parse_pins(text: str) -> dict[str, Pin]:
    """The pins of a requirements file with digests, by canonical name."""
    found = list(_PIN.finditer(text))
    ends = [one.start() for one in found[1:]] + [len(text)]
    return {
        canonicalize_name(one["name"]): Pin(
            version=one["version"], hashes=tuple(_HASH.findall(text[one.end() : end]))
        )
        for one, end in zip(found, ends, strict=True)
    }


def close(
    roots: Sequence[str],
    own: Mapping[str, Metadata],
    pins: Mapping[str, Pin],
    overrides: Sequence[str],
    look_up: Callable[[str], Metadata | None],
) -> dict[str, Package]:
    """All packages that the roots bring, by canonical name.

    ``roots`` are requirements, as ``rollout-rl[s3,gcs]``; ``own`` the distributions of this repository;
    ``overrides`` requirements that stand for every other of their name; ``look_up`` gives the metadata of the
    installed package of a canonical name.

    Raises:
        ReleaseError: a package that is not pinned, not installed, or installed in another version.
    """
    replaced: dict[str, Requirement] = {
        canonicalize_name(one.name): one for one in map(Requirement, overrides)
    }
    needs: dict[str, set[str]] = {}
    known: dict[str, Metadata] = {}
    done: set[tuple[str, str]] = set()
    waiting = deque(
        (canonicalize_name(one.name), extra)
        for one in map(Requirement, roots)
        for extra in ("", *sorted(one.extras))
    )
    while waiting:
        name, extra = waiting.popleft()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        known[name] = _find(name, own, pins, look_up)
        for needed in _needed(name, known[name], extra, replaced):
            target = canonicalize_name(needed.name)
            if target != name:
                needs.setdefault(name, set()).add(target)
            waiting.extend((target, one) for one in ("", *sorted(needed.extras)))
    return {
        name: Package(
            name=name,
            version=found.version,
            license=found.license,
            hashes=() if name in own else pins[name].hashes,
            needs=frozenset(needs.get(name, ())),
        )
        for name, found in sorted(known.items())
    }


def _needed(
    name: str, metadata: Metadata, extra: str, replaced: Mapping[str, Requirement]
) -> list[Requirement]:
    found = []
    for text in metadata.requires:
        try:
            needed = Requirement(text)
        except InvalidRequirement as error:
            raise ReleaseError(f"{name}: requirement {text!r:.160} cannot be read") from error
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        override = replaced.get(canonicalize_name(needed.name), needed)
        if override.marker is None or override.marker.evaluate({"extra": extra}):
            found.append(needed)
    return found


def _find(
    name: str,
    own: Mapping[str, Metadata],
    pins: Mapping[str, Pin],
    look_up: Callable[[str], Metadata | None],
) -> Metadata:
    if name in own:
        return own[name]
    pin, found = pins.get(name), look_up(name)
    if pin is None:
        raise ReleaseError(f"{name}: nothing pins it; `make constraints` does")
    if found is None or found.version != pin.version:
        here = "not installed" if found is None else f"{found.version} is installed"
        raise ReleaseError(f"{name}: {here}, {pin.version} is pinned; run `make setup`")
    return found
