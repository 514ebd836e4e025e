"""Who calls: the key behind a header. The file of keys is read again when it has changed, as a gateway's is."""

from __future__ import annotations

import time

from rollout.inference.gateway.keys import ApiKey, KeyFile, KeyRefused
from rollout.inference.gateway.watching import FileWatch
from rollout.service.refusals import CallRefused

KEY_PREFIX = "tml-"
"""Clients of this protocol refuse keys that begin otherwise: it stands before the key as ``rollout infer keys`` makes it."""


class KeyDoor:
    """The name of a key is its tenant, so that a key that is replaced loses nothing. Raises SpecError for a broken file."""

    def __init__(self, keys: KeyFile) -> None:
        self._ring = keys.read()
        self._watch = FileWatch(keys.path, lambda _: keys.read())

    def key(self, header: str) -> ApiKey:
        """The key behind an ``X-API-Key`` header; a file that has become broken changes nothing. Raises CallRefused."""
        self._ring = self._watch.changed() or self._ring
        try:
            return self._ring.identify(f"Bearer {header.removeprefix(KEY_PREFIX)}", time.time())
        except KeyRefused as error:
            raise CallRefused(
                f"the key is not valid here: set TINKER_API_KEY to {KEY_PREFIX} and a key of"
                " `rollout infer keys create NAME`, or to what the service printed",
                401,
            ) from error
