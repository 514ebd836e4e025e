"""Versions of plugins as they are played: copies, so that what a digest says is what ran, whatever is written meanwhile."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from blake3 import blake3

from rollout.common.atomic_files import replace_text
from rollout.errors import SpecError
from rollout.plugins.sidecar.manifest import LEFT_OUT, PluginFolder, folder_digest, read_plugin

NEEDED = ".venv"
"""Of what no digest covers, what a command may lie in: led to, where it is."""
PLACE = "plugins"
"""Of a run's folder."""
BEGUN = "begun"
"""Below it, those that the run began with; each actor has its own beside it."""
GOOD = "good.json"
"""Digests by path, of the last versions that groups have come of."""


class PluginVersions:
    """The copies below ``place``, of one process: what is not wanted any more is for ``leave`` to remove."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def keep(self, path: str, plugin: PluginFolder, digest: str) -> Path:
        """A folder of code with this plugin at ``path``, whose files are those of ``digest``.

        Raises SpecError where they changed on the way, OSError.
        """
        kept = self.folder(path, digest)
        if kept.is_dir():
            return kept
        staged = self._place / f".{uuid.uuid4().hex}"
        try:
            _copy(plugin.folder, staged / path)
            if folder_digest(staged / path) != digest:
                raise SpecError(f"plugin {path}: its files changed while they were read")
            staged.rename(kept)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return kept

    def remember(self, digests: Mapping[str, str]) -> None:
        """These are kept, and are what whoever comes after begins with."""
        replace_text(self._place / GOOD, json.dumps(dict(digests)))

    def recall(self) -> dict[str, PluginFolder]:
        """The plugins that are remembered, whole, by path; empty where there are none, or one is damaged."""
        try:
            told = json.loads((self._place / GOOD).read_text())
            found = {path: read_plugin(self.folder(path, told[path]) / path) for path in told}
            whole = all(found[path].digest == told[path] for path in told)
        except (OSError, ValueError, SpecError):
            return {}
        return found if whole else {}

    def leave(self, kept: Sequence[Path]) -> None:
        """Remove all but these."""
        if not self._place.is_dir():
            return
        for one in self._place.iterdir():
            if one not in kept and one.is_dir():
                shutil.rmtree(one, ignore_errors=True)

    def folder(self, path: str, digest: str) -> Path:
        """Where it is kept, whether it is there or not."""
        return self._place / blake3(f"{digest} {path}".encode()).hexdigest()[:16]


def keep_begun(run_dir: Path, plugins: Mapping[str, PluginFolder]) -> None:
    """Copy what a run begins with, unless it has begun. Raises SpecError, OSError."""
    begun = PluginVersions(run_dir / PLACE / BEGUN)
    if begun.recall():
        return
    for path, one in plugins.items():
        begun.keep(path, one, one.digest)
    begun.remember({path: one.digest for path, one in plugins.items()})


def _copy(folder: Path, to: Path) -> None:
    try:
        shutil.copytree(folder, to, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    except shutil.Error as error:
        raise SpecError(f"{folder} cannot be copied: {str(error)[:500]}") from error
    if (folder / NEEDED).exists():
        needed = (folder / NEEDED).resolve()
        (to / NEEDED).symlink_to(needed, target_is_directory=True)
