"""``plugins.lock``: the plugins of a folder of code by their bytes, written once they are as they should be, and held to.

It lies in the folder of the run's code. Where one is there, a plugin that a run names is in it and has not changed since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rollout.common.atomic_files import replace_text
from rollout.errors import SpecError
from rollout.plugins.sidecar.manifest import FILE, LEFT_OUT, Kind, PluginFolder, read_plugin

LOCK = "plugins.lock"
FORMAT = 1
BYTES_MAX = 1 << 20
PLUGINS_MAX = 1024
DEPTH_MAX = 8
_PASSED_BY = LEFT_OUT | {"node_modules"}
_HEAD = "# Written by `rollout plugins lock`: what each plugin is. Keep it with the code.\n"


class LockedPlugin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One plugin; ``path`` is its folder below the lock's, with slashes."""

    path: str
    name: str
    version: str
    kind: Kind
    digest: str


class PluginLock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file, by path."""

    format: int
    plugins: tuple[LockedPlugin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockDifference:
    """One plugin that is not what the lock says, and why."""

    path: str
    why: str


def find_plugin_folders(folder: Path) -> list[Path]:
    """Folders with a ``plugin.yaml`` at or below ``folder``, by name; none lies in another, and no link is followed.

    Raises SpecError for more than 1,024.
    """
    found = list(_below(folder, DEPTH_MAX))
    if len(found) > PLUGINS_MAX:
        raise SpecError(f"{folder}: more than {PLUGINS_MAX} plugins; name a folder with fewer")
    return found


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / FILE).is_file():
        yield folder
        return
    if not depth or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name not in _PASSED_BY:
            yield from _below(path, depth - 1)


def lock_folder(folder: Path) -> PluginLock:
    """What the plugins of a folder are now. Raises SpecError, as ``read_plugin``, and for a folder without any."""
    found = find_plugin_folders(folder)
    if not found:
        raise SpecError(f"{folder}: there is no {FILE} in it or below: name the run's code")
    return PluginLock(
        format=FORMAT, plugins=tuple(_locked(read_plugin(one), folder) for one in found)
    )


def _locked(plugin: PluginFolder, root: Path) -> LockedPlugin:
    manifest = plugin.manifest
    return LockedPlugin(
        path=plugin.folder.relative_to(root).as_posix(),
        name=manifest.name,
        version=manifest.version,
        kind=manifest.kind,
        digest=plugin.digest,
    )


def write_lock(folder: Path, lock: PluginLock) -> Path:
    """Write it, whole or not at all; one line a plugin, so that a change is one line's. Raises SpecError."""
    lines = [
        f"- {json.dumps(msgspec.to_builtins(one), ensure_ascii=False)}\n" for one in lock.plugins
    ]
    text = f"{_HEAD}format: {lock.format}\nplugins:\n{''.join(lines)}"
    path = folder / LOCK
    try:
        replace_text(path, text)
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error}") from error
    return path


def read_lock(folder: Path) -> PluginLock | None:
    """The lock of a folder; None where there is none. Raises SpecError saying what is wrong with it."""
    path = folder / LOCK
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise SpecError(f"{path} is larger than {BYTES_MAX >> 20} MiB: {_AGAIN}")
        document = YAML(typ="safe").load(data.decode())
        lock = msgspec.convert(document, PluginLock)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, YAMLError, msgspec.ValidationError) as error:
        raise SpecError(f"{path} cannot be read ({error}): {_AGAIN}") from error
    if lock.format != FORMAT:
        raise SpecError(f"{path}: rollout reads format {FORMAT}, got {lock.format}: {_AGAIN}")
    paths = [one.path for one in lock.plugins]
    if twice := next((one for one in paths if paths.count(one) > 1), None):
        raise SpecError(f"{path} names plugin {twice} twice: {_AGAIN}")
    return lock


_AGAIN = "look at what the plugins are, and write it again with `rollout plugins lock`"


def differences(lock: PluginLock, folder: Path) -> list[LockDifference]:
    """Plugins of a folder that are not what the lock says: changed, new, gone."""
    now = {one.path: one for one in lock_folder(folder).plugins}
    then = {one.path: one for one in lock.plugins}
    return [
        LockDifference(path=path, why=why)
        for path in sorted({*now, *then})
        if (why := _difference(then.get(path), now.get(path)))
    ]


def _difference(then: LockedPlugin | None, now: LockedPlugin | None) -> str:
    if then is None or now is None:
        return "it is not in the lock" if then is None else "its folder is not there"
    if then == now:
        return ""
    title = "" if then.version == now.version else f" and is version {now.version}"
    return f"its files have changed{title} (locked {then.digest}, now {now.digest})"


def require_locked(path: str, plugin: PluginFolder, root: Path) -> None:
    """Raise SpecError where the lock of ``root``, which has ``plugin`` at ``path``, says otherwise; nothing without one."""
    lock = read_lock(root)
    if lock is None:
        return
    place = Path(path).as_posix()
    then = next((one for one in lock.plugins if one.path == place), None)
    if why := _difference(then, _locked(plugin, root)):
        raise SpecError(
            f"plugin {path}: {why}: put it back, or take it as it is with `rollout plugins lock {root}`"
        )


def describe(found: Sequence[LockDifference]) -> str:
    """All of them, in one line."""
    return "; ".join(f"plugin {one.path}: {one.why}" for one in found)
