"""``plugin.yaml``: what a plugin says of itself, and the digest of all that lies beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
from blake3 import blake3
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rollout.errors import SpecError

FILE = "plugin.yaml"
CONTRACT_MIN, CONTRACT_MAX = 1, 2
"""Versions of the contract that are spoken."""
MEMORY_CONTRACT = 2
"""From which on episodes may have memory."""
FILES_MAX = 20_000
BYTES_MAX = 512 << 20
LEFT_OUT = frozenset({"__pycache__", ".git", ".venv"})
Kind = Literal["reward", "environment", "tool", "evaluation", "tracker", "data"]
REFUSED: Mapping[str, str] = {
    "algorithm": "it computes with the learner's tensors, which no socket carries: install an objective in the"
    " learner's own process (grpo.surrogate.custom)",
    "renderer": "tokens have to be the same in each process, at every turn, before a run is planned: give the model a"
    " chat template (model.chatTemplate)",
    "store": "each weight version would go through its socket once more, gigabytes of it: name a bucket of S3 or of"
    " Google Cloud Storage",
}
"""Kinds that do not run as plugins, and what there is instead."""
NETWORKS = ("egress", "network", "networkPolicy")
"""What a plugin may not say: a policy is of a pod, and its container shares its actor's; decision 0052."""
Short = msgspec.Meta(min_length=1, max_length=253)


class PluginParameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that a manifest may give. Without ``default`` it has to."""

    name: str
    description: str = ""
    default: str | None = None


class PluginManifest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """``command`` is run in the plugin's folder; ``python`` is the one that runs rollout.

    ``env`` names variables that it gets beside those that every program needs. ``concurrency``: calls at a time, at
    most. ``start_seconds``: until it serves. ``memory_mib`` bounds what each of its processes may allocate; None: nothing does.
    """

    contract: int
    name: str
    version: str
    kind: Kind
    command: tuple[str, ...]
    description: str = ""
    parameters: tuple[PluginParameter, ...] = ()
    env: tuple[str, ...] = ()
    concurrency: int = 16
    start_seconds: float = 30.0
    memory_mib: int | None = None


@dataclass(frozen=True, kw_only=True)
class PluginFolder:
    """A plugin as it lies on this machine."""

    folder: Path
    manifest: PluginManifest
    told_by: ClassVar[str] = FILE
    """Who says what it is."""

    @cached_property
    def digest(self) -> str:
        """Of all its files, which are read where somebody asks. Raises SpecError as ``folder_digest``."""
        return folder_digest(self.folder)

    @property
    def title(self) -> str:
        """``shout 0.1.0``."""
        return f"{self.manifest.name} {self.manifest.version}"

    def configure(self, given: Mapping[str, str]) -> dict[str, str]:
        """All parameters, those left out at their defaults. Raises SpecError."""
        known = {one.name: one.default for one in self.manifest.parameters}
        for name in given:
            if name not in known:
                there = ", ".join(known) or "none"
                raise SpecError(
                    f"plugin {self.title}: unknown parameter {name!r}; it takes {there}"
                )
        merged = {**known, **given}
        for name, value in merged.items():
            if value is None:
                raise SpecError(f"plugin {self.title}: parameter {name!r} is missing")
        return {name: value for name, value in merged.items() if value is not None}


def read_plugin(folder: Path) -> PluginFolder:
    """The plugin in a folder. Raises SpecError saying what is wrong with which file."""
    path = folder / FILE
    try:
        document = YAML(typ="safe").load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{folder} is no plugin: it has no {FILE}") from None
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    kind = document.get("kind") if isinstance(document, dict) else None
    if isinstance(kind, str) and kind in REFUSED:
        raise SpecError(f"{path}: kind {kind} does not run as a plugin: {REFUSED[kind]}")
    if asked := _network_asked(document):
        raise SpecError(
            f"{path}: {asked}: a plugin has no network rules of its own: it has this machine's network, and in a cluster"
            " that of its actor's pod, which policies cannot divide among containers. Leave it out, and put what must not"
            " reach the network into a tool's sandbox, or ask the platform for a NetworkPolicy on the run's actors"
        )
    try:
        manifest = msgspec.convert(document, PluginManifest)
    except msgspec.ValidationError as error:
        raise SpecError(f"{path}: {error}") from error
    if why := _find_wrong(manifest):
        raise SpecError(f"{path}: {why}")
    return PluginFolder(folder=folder, manifest=manifest)


def _network_asked(document: object) -> str | None:
    """The first field by which a network of its own is asked for."""
    return next((one for one in NETWORKS if isinstance(document, dict) and one in document), None)


def _find_wrong(manifest: PluginManifest) -> str | None:
    """What is wrong with the values."""
    names = [one.name for one in manifest.parameters]
    checks = {
        f"contract: rollout speaks versions {CONTRACT_MIN} to {CONTRACT_MAX}, got {manifest.contract}": (
            CONTRACT_MIN <= manifest.contract <= CONTRACT_MAX
        ),
        "name: expected small letters, digits and dashes": _is_label(manifest.name),
        "version: expected a text": 0 < len(manifest.version) <= 64,
        "command: expected a program and its arguments": bool(manifest.command)
        and all(manifest.command),
        "parameters: each has a name of its own": len(set(names)) == len(names) and all(names),
        "concurrency: expected 1 to 256": 1 <= manifest.concurrency <= 256,
        "startSeconds: expected above 0, at most 600": 0 < manifest.start_seconds <= 600,
        "memoryMib: expected at least 32": manifest.memory_mib is None or manifest.memory_mib >= 32,
    }
    return next((why for why, well in checks.items() if not well), None)


def _is_label(name: str) -> bool:
    plain = name.replace("-", "")
    return (
        bool(plain) and plain.isascii() and plain.isalnum() and plain.islower() and len(name) <= 63
    )


def folder_digest(folder: Path) -> str:
    """blake3 of the names, kinds and bytes of all files below; caches of Python, ``.git`` and ``.venv`` are left out.

    Raises SpecError for a link that leads out of the folder, and for more than a plugin may have.
    """
    digest, count, size = blake3(), 0, 0
    for path in _below(folder):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            if not path.resolve().is_relative_to(folder.resolve()):
                raise SpecError(f"{path} is a link that leads out of the plugin's folder")
            kind, data = b"link", str(path.readlink()).encode()
        else:
            kind, data = b"file" + bytes([path.stat().st_mode & 0o100 != 0]), path.read_bytes()
        count, size = count + 1, size + len(data)
        if count > FILES_MAX or size > BYTES_MAX:
            raise SpecError(
                f"{folder}: a plugin has at most {FILES_MAX} files of {BYTES_MAX >> 20} MiB together"
            )
        for part in (name.encode(), kind, data):
            digest.update(len(part).to_bytes(8, "little") + part)
    return f"blake3:{digest.hexdigest()}"


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in LEFT_OUT:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
        elif path.is_symlink() or path.is_file():
            yield path
