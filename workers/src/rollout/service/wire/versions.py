"""Clients by their versions: which were tried against this service, and what the others are told."""

from __future__ import annotations

import logging
import re

log = logging.getLogger(__name__)

NEWEST_TESTED = (0, 38, 0)
"""The newest `tinker` whose every call was tried against this service."""
NEWEST = ".".join(map(str, NEWEST_TESTED))
LOGGED_MAX = 16
"""Newer versions that the log names."""
_VERSION = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", re.ASCII)


def is_newer(version: str) -> bool:
    """Whether a version, as a client says it, is behind the newest that was tested; False for what is no version."""
    found = _VERSION.match(version[:50])
    return found is not None and tuple(int(one or 0) for one in found.groups()) > NEWEST_TESTED


class NewerClients:
    """Clients that are newer than those that were tested, each version once in the log."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def told(self, version: str) -> list[str]:
        """What a client of a version is told."""
        if not is_newer(version):
            return []
        said = (
            f"tinker {version[:50]} is newer than {NEWEST}, with which this service was tested: calls that it knows are"
            " served, and what it does not know of one is refused by name"
        )
        if version[:50] not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(version[:50])
            log.warning("%s", said)
        return [said]
