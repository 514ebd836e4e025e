"""Clients' keys as a Secret brings them: files that the kubelet replaces, taken again when they change.

A key's text is in its file and nowhere else: the gateway's file has keyed hashes, and nothing that is said names more
than a key's name.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rollout.errors import SpecError
from rollout.inference.gateway.keys import KeyFile

log = logging.getLogger(__name__)

KEY_BYTES_MAX = 4096
FORM = "a key is sk-rollout-<id>-<secret>, as `rollout infer keys create` prints it"


class MountedKeys:
    """The files of a folder, one a key, and the gateway's file that is made of them."""

    def __init__(self, folder: Path, names: Sequence[str], target: KeyFile) -> None:
        self._folder = folder
        self._names = tuple(names)
        self._target = target
        self._taken: dict[str, str] = {}

    def begin(self, now: float) -> None:
        """Take the keys. Raises SpecError for one that is missing or no key: a server that starts says so at once."""
        given = self._read()
        missing = sorted(set(self._names) - given.keys())
        wrong = self._target.take(given, now)
        self._taken = given
        if missing or wrong:
            raise SpecError(
                f"spec.apiKeys: {', '.join((*missing, *wrong))}: missing, or no key; {FORM}"
            )

    def refresh(self, now: float) -> None:
        """Take what has changed since; what is no key is told and not taken, and the others hold."""
        given = self._read()
        if given == self._taken:
            return
        wrong = self._target.take(given, now)
        self._taken = given
        log.info("keys taken names=%s", ",".join(sorted(given.keys() - set(wrong))))
        if wrong:
            log.error("these are no keys names=%s: %s", ",".join(wrong), FORM)

    def _read(self) -> dict[str, str]:
        return {name: text for name in self._names if (text := self._text(name)) is not None}

    def _text(self, name: str) -> str | None:
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(KEY_BYTES_MAX).decode(errors="replace")
        except OSError:
            return None
