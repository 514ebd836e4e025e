"""What the first rank of a learner that stands still has the others do, by a file in the folder of their cell.

No rank waits in a collective meanwhile: gloo waits until a time of day, which the image would hold, and which has passed when an
image is taken up that is older than the group's timeout. (The monotonic clock goes on from where it was.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rollout.snapshots.processes.point import ORDER, POLL_SECONDS, read_text, write_whole

TELL, GO = "tell", "go"
"""Take part in telling the digest; leave the point."""


@dataclass(slots=True, kw_only=True)
class Orders:
    """Those of one stand, whose ``name`` all ranks have agreed on; each rank counts them for itself."""

    folder: Path
    name: str
    number: int = 0

    def give(self, what: str) -> None:
        """The next one, on rank 0: every other rank has obeyed the one before."""
        self.number += 1
        write_whole(self.folder / ORDER, f"{self.name} {self.number} {what}")

    def wait(self) -> str:
        """The next one, on every other rank, whenever it comes: whoever started the ranks ends them where the first has ended."""
        self.number += 1
        while True:
            words = read_text(self.folder / ORDER).split()
            if words[:2] == [self.name, str(self.number)]:
                return words[2]
            time.sleep(POLL_SECONDS)
