"""What workers say beside how far they are, once each."""

from __future__ import annotations

from rollout.protocol.status import Status


class Remarks:
    """Of one run; remembers what each worker has said last."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def news(self, status: Status) -> list[str]:
        """What a status says that was not said before; the same of several workers is one."""
        said = {one.worker: one.plugins for one in status.workers if one.plugins}
        new = [text for worker, text in said.items() if self._told.get(worker) != text]
        known = set(self._told.values())
        self._told |= said
        return [text for text in dict.fromkeys(new) if text not in known]
