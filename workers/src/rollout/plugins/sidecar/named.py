"""Plugins as a run names them: found in its code, named by their bytes, and held to what was planned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import overload

from rollout.errors import SpecError
from rollout.plugins.sidecar.container import Opened, PluginImage, image_of
from rollout.plugins.sidecar.lock import require_locked
from rollout.plugins.sidecar.manifest import FILE, Kind, PluginFolder, read_plugin
from rollout_api.checks.environment.plugins import NamedPlugin, find_plugins
from rollout_api.v1alpha1.data import PluginRows
from rollout_api.v1alpha1.environment import Plugin, PluginSource
from rollout_api.v1alpha1.operations import Tracking
from rollout_api.v1alpha1.run import RolloutRunSpec


@overload
def open_plugin(
    source: PluginSource | PluginRows, kind: Kind, folders: Sequence[Path], what: str
) -> PluginFolder: ...
@overload
def open_plugin(source: Plugin, kind: Kind, folders: Sequence[Path], what: str) -> Opened: ...
def open_plugin(source: NamedPlugin, kind: Kind, folders: Sequence[Path], what: str) -> Opened:
    """The plugin of a container, or in the first of ``folders`` that has it.

    Raises SpecError for none, another kind and wrong parameters.
    """
    if find_spec("grpc_health") is None:
        raise SpecError(f"{what}: a plugin needs gRPC: pip install 'rollout-rl[plugins]'")
    if isinstance(source, Plugin) and source.container is not None:
        return image_of(source.container, kind)
    assert source.path is not None
    plugin = read_plugin(_find(source.path, folders, what) / source.path)
    if plugin.manifest.kind != kind:
        raise SpecError(
            f"{what}: plugin {plugin.title} is of kind {plugin.manifest.kind}, not {kind}"
        )
    plugin.configure(parameters_of(source))
    return plugin


def parameters_of(source: NamedPlugin) -> dict[str, str]:
    """What a manifest configures it with."""
    return {one.name: one.value for one in source.parameters}


def reward_argument(plugin: Opened, source: PluginSource | Plugin, timeout_seconds: float) -> str:
    """What the process that runs the reward is told (``reward.PluginReward``)."""
    told = {
        **(
            {"container": asdict(plugin)}
            if isinstance(plugin, PluginImage)
            else {"folder": str(plugin.folder)}
        ),
        "parameters": parameters_of(source),
        "timeout_seconds": timeout_seconds,
    }
    return json.dumps(told)


def plugin_digests(spec: RolloutRunSpec, folders: Sequence[Path]) -> dict[str, str]:
    """Digest of each plugin's folder, by its path in the run's code, or of its image, by its container's name.

    Raises SpecError, also for one that is not what ``plugins.lock`` beside it says, where there is one.
    """
    found: dict[str, str] = {}
    for field, source in find_plugins(spec):
        if isinstance(source, Plugin) and source.container is not None:
            found[source.container.name] = source.container.image.rpartition("@")[2]
            continue
        assert source.path is not None
        root = _find(source.path, folders, field)
        plugin = read_plugin(root / source.path)
        require_locked(source.path, plugin, root)
        found[source.path] = plugin.digest
    return found


RELOADABLE = ("spec.train.environment", "spec.train.rewards")
"""Where plugins stand whose versions may change in a run: they play, are called, or score."""


def find_plugin_files(spec: RolloutRunSpec, folders: Sequence[Path]) -> dict[str, PluginFolder]:
    """Each plugin that decides what a run is, as it lies there now, by its path in the run's code. Raises SpecError."""
    return {
        source.path: read_plugin(_find(source.path, folders, field) / source.path)
        for field, source in find_plugins(spec)
        if source.path is not None
    }


def require_reloadable(spec: RolloutRunSpec) -> None:
    """Raise SpecError unless the plugins of a run may change while it goes on (``--reload-plugins``), saying what to do."""
    flag = "--reload-plugins"
    if spec.numerics.mode == "Exact":
        raise SpecError(
            f"{flag}: spec.numerics.mode is Exact, which says that a repeat gives the same, and files that change while a"
            " run goes on cannot be repeated: set numerics.mode=Fast, or leave the option out"
        )
    if spec.train is None or not spec.train.algorithm.is_online:
        raise SpecError(f"{flag}: this run plays no episodes to train on: leave the option out")
    fields = [field for field, _ in find_plugins(spec)]
    if not fields:
        raise SpecError(
            f"{flag}: this run has no plugin that plays or scores: leave the option out"
        )
    for field in fields:
        if not field.startswith(RELOADABLE) and ".suite.rewards[" not in field:
            raise SpecError(
                f"{flag}: {field}: its rows are had once, when the run is planned, so that this plugin may not change:"
                " take it out, or leave the option out"
            )


def open_tracker(source: PluginSource, folders: Sequence[Path], what: str) -> PluginFolder:
    """A plugin that is told of the run. It decides nothing of what the run is, so that its files may change; a lock holds them.

    Raises SpecError.
    """
    plugin = open_plugin(source, "tracker", folders, what)
    require_locked(source.path, plugin, _find(source.path, folders, what))
    return plugin


def tracker_digests(tracking: Sequence[Tracking], folders: Sequence[Path]) -> dict[str, str]:
    """Digest of each tracker's folder now, by its path in the run's code. Raises SpecError."""
    named = [
        (one.plugin, f"spec.tracking[{index}].plugin")
        for index, one in enumerate(tracking)
        if one.plugin is not None
    ]
    return {source.path: open_tracker(source, folders, what).digest for source, what in named}


def require_planned_plugins(
    planned: Mapping[str, str], spec: RolloutRunSpec, folders: Sequence[Path]
) -> None:
    """Raise SpecError where a plugin's files are no longer those that the run began with."""
    for path, digest in plugin_digests(spec, folders).items():
        if planned.get(path) != digest:
            raise SpecError(
                f"plugin {path}: its files have changed since the run began ({planned.get(path)}, now {digest}):"
                " put them back, or start another run"
            )


def _find(path: str, folders: Sequence[Path], what: str) -> Path:
    """The first of the run's folders of code that has the plugin."""
    given = Path(path)
    if given.is_absolute() or ".." in given.parts:
        raise SpecError(f"{what}: path {path!r}: expected a folder of the run's code, without ..")
    for folder in folders:
        if (folder / given / FILE).is_file():
            return folder
    places = ", ".join(str(folder / given) for folder in folders) or "the run has no code"
    raise SpecError(f"{what}: there is no {FILE} in {path!r} (looked at {places})")
