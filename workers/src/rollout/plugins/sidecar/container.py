"""A plugin as a container of our pod: another party starts it, and again where it ends; we find it at its socket.

What is known of it is its image's digest, its name, and what it says of itself. A process that has been started afresh has
another socket at the same path: that is how its end shows, since nothing else of another container can be seen.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rollout.plugins.sidecar.manifest import Kind, PluginFolder, PluginManifest
from rollout.plugins.sidecar.process import PluginProcess
from rollout_api.v1alpha1.environment import PluginContainer

START_SECONDS = 90.0
"""Until it serves, also once it has ended: a kubelet waits for up to a minute before it starts it for the third time."""
LOOK_SECONDS = 0.02
CONNECT_SECONDS = 1.0
SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginImage:
    """What a run says of a plugin in a container; as ``PluginFolder`` is to whoever calls it."""

    name: str
    image: str
    socket: str
    kind: Kind
    told_by: ClassVar[str] = "the run"
    """Who says what it is."""

    @property
    def digest(self) -> str:
        """Of its image: ``sha256:...``."""
        return self.image.rpartition("@")[2]

    @property
    def title(self) -> str:
        """``shout sha256:0123456789ab``."""
        algorithm, _, digits = self.digest.partition(":")
        return f"{self.name} {algorithm}:{digits[:SHOWN_DIGITS]}"

    @property
    def manifest(self) -> PluginManifest:
        """What its plugin.yaml would say; its version and its contract are what its image says."""
        return PluginManifest(
            contract=0,
            name=self.name,
            version="",
            kind=self.kind,
            command=(),
            start_seconds=START_SECONDS,
        )

    def configure(self, given: Mapping[str, str]) -> dict[str, str]:
        """As they are: defaults, and which there are, are known to the plugin."""
        return dict(given)


Opened = PluginFolder | PluginImage
"""A plugin that can be called."""


def image_of(container: PluginContainer, kind: Kind) -> PluginImage:
    """The plugin that a manifest names by its image."""
    return PluginImage(
        name=container.name, image=container.image, socket=container.socket, kind=kind
    )


class PluginSocket:
    """The process behind a socket that another party serves; as ``PluginProcess`` is to whoever calls it."""

    pid: int | None = None
    """Processes of other containers are not seen."""

    def __init__(self, plugin: PluginImage) -> None:
        self._plugin = plugin
        self._known: tuple[int, int, int] | None = None
        self._has_ended = False

    @property
    def socket(self) -> str:
        """Its path, in a folder that the plugin's container and ours share."""
        return self._plugin.socket

    @property
    def is_alive(self) -> bool:
        """Whether it is the process that was met first, as far as that is known."""
        changed = self._known is not None and self._known != _identity(self.socket)
        self._has_ended = self._has_ended or changed
        return not self._has_ended

    def meet(self) -> None:
        """From now on whatever serves at this path has to be who does now."""
        self._known = _identity(self.socket)

    def answered(self) -> bool:
        """Whether an answer that has just come is this process's: another one may have taken the call, which knows nothing."""
        return self.is_alive

    def has_ended(self, seconds: float) -> bool:
        """Whether nobody, or another process, listens there within so many seconds."""
        until = time.monotonic() + seconds
        while self.is_alive and _listens(self.socket):
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_SECONDS)
        self._has_ended = True
        return True

    def describe_end(self) -> str:
        """Why nobody is reached, and where its last words are."""
        why = find_unreachable(self.socket) or "its socket is served"
        return f"{why}; the log of the container plugin-{self._plugin.name} of this pod says more"

    def end(self) -> None:
        """It is not ours to end."""


def open_process(plugin: Opened) -> PluginProcess | PluginSocket:
    """A process of a folder is started, that of a container is looked for."""
    return PluginSocket(plugin) if isinstance(plugin, PluginImage) else PluginProcess(plugin)


def find_unreachable(path: str) -> str:
    """Why nobody can be reached at a socket; empty where somebody can."""
    if not Path(path).exists():
        return f"there is no socket at {path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(path)
        except PermissionError:
            return f"{path} lets nobody but its own user in: let its group write to it (umask 007)"
        except OSError as error:
            return f"nobody listens at {path}: {error.strerror or error}"
    return ""


def _listens(path: str) -> bool:
    return not find_unreachable(path)


def _identity(path: str) -> tuple[int, int, int] | None:
    """A socket that is bound anew is another one: None where there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
