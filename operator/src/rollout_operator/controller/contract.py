"""What the workers ask of a controller: it looks after one kind, and knows of no other."""

from __future__ import annotations

from typing import Protocol

from rollout_operator.controller.queue import Key


class Controller(Protocol):
    """Brings one object of its kind nearer to what it says it shall be."""

    @property
    def kind(self) -> str:
        """The kind whose keys it takes."""

    async def reconcile(self, key: Key) -> float | None:
        """Look at one object; the seconds after which to look again, None where news will say so.

        Raises KubeError for what shall be tried again after a pause.
        """
