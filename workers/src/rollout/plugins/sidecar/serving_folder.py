"""A plugin kept at one address while its author changes it: a version that comes up takes the place of the one before.

One that does not leaves that in its place, and says why. Nothing here is part of a run, which is held to the files that it
began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollout.errors import SpecError
from rollout.plugins.sidecar.client import PluginClient
from rollout.plugins.sidecar.container import Opened
from rollout.plugins.sidecar.manifest import read_plugin
from rollout.plugins.sidecar.stamps import Stamp, stamp_of

LINK_CHARACTERS_MAX = 100
"""Of the address: a path of a Unix socket has 107."""


class PluginServer:
    """``link`` leads to the socket of the version that serves. ``close`` when done."""

    def __init__(self, folder: Path, parameters: Mapping[str, str], link: Path) -> None:
        if len(str(link)) > LINK_CHARACTERS_MAX:
            raise SpecError(f"{link}: expected a path of at most {LINK_CHARACTERS_MAX} characters")
        if link.exists() and not link.is_symlink():
            raise SpecError(f"{link} is there already, and is no link of ours: name another path")
        self._folder, self._parameters, self._link = folder, dict(parameters), link
        self._stamp: Stamp | None = None
        self._client: PluginClient | None = None

    def refresh(self) -> str | None:
        """Look at the files and the process; what has changed, for people, None for nothing."""
        stamp = stamp_of(self._folder)
        if stamp != self._stamp:
            self._stamp = stamp
            return self._replace()
        return self._look_after()

    def _replace(self) -> str:
        try:
            plugin = read_plugin(self._folder)
            digest = plugin.digest
            client = PluginClient(plugin, self._parameters)
            client.start()
        except SpecError as error:
            kept = "" if self._client is None else "; the version before goes on"
            return f"{error}{kept}"
        before, self._client = self._client, client
        self._lead_to(client)
        if before is not None:
            before.close()
        return f"{_title(plugin)} ({digest}) serves at unix:{self._link}"

    def _look_after(self) -> str | None:
        """Start one that has ended; one that goes on ending is left until its files change."""
        if self._client is None:
            return None
        socket = self._client.socket
        try:
            self._client.start()
        except SpecError as error:
            self._client, dead = None, self._client
            dead.close()
            return f"{error}; it is started again once its files have changed"
        if self._client.socket == socket:
            return None
        self._lead_to(self._client)
        return f"{_title(self._client.plugin)} had ended, and was started again"

    def _lead_to(self, client: PluginClient) -> None:
        assert client.socket is not None
        staged = self._link.with_name(f".{self._link.name}.new")
        staged.unlink(missing_ok=True)
        staged.symlink_to(client.socket)
        staged.replace(self._link)

    def close(self) -> None:
        """End it, and take the link away; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        if self._link.is_symlink():
            self._link.unlink()


def _title(plugin: Opened) -> str:
    return f"plugin {plugin.title}"
