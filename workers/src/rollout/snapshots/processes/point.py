"""A place between two steps of a program where its image may be taken, and where the image's oracle is asked.

A program that makes a ``ImagePoint`` and calls ``reach`` between its steps is stopped there while an image of it is made: the image
is of a whole step, and has the digest that the program tells of its state. A program that goes on from an image is still
there: it tells the digest again, which must be the same, is handed its credentials anew, and only then takes its next step.

It all goes by files of the folder that ``rollout process run`` names in the environment; outside of it ``reach`` does nothing.
Whoever holds the program has a lock: dies it, the program goes on. Imports nothing but the standard library, and what imports no more.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rollout.common.atomic_files import replacing

FOLDER_VARIABLE = "ROLLOUT_PROCESS"
READY, HOLD, ASKED, TOLD, RENEWED = "ready", "hold", "asked", "told", "renewed"
ORDER = "order"
"""What the rank that has the point has its others do."""
POLL_SECONDS = 0.02
DIGEST_CHARACTERS_MAX = 128


class ImagePoint:
    """Where this program may be imaged; make one in the process that knows the whole state (of several ranks: rank 0)."""

    def __init__(
        self,
        digest: Callable[[], str],
        renew: Callable[[Mapping[str, str]], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``digest`` of the state, at most 128 characters; ``renew`` takes the variables that a restore hands over.

        They are in ``os.environ`` by then. ``environment`` None: that of this process.
        """
        folder = (os.environ if environment is None else environment).get(FOLDER_VARIABLE)
        self._folder = Path(folder) if folder else None
        self._digest, self._renew = digest, renew
        if self._folder is not None:
            write_whole(self._folder / READY, str(os.getpid()))

    def is_wanted(self) -> bool:
        """Whether somebody holds the program here: ``reach`` would stay."""
        return self._folder is not None and is_held(self._folder)

    def reach(self, step: int = 0) -> None:
        """Go through, or stay while an image of the state after ``step`` is made, or compared. Raises ValueError for a long digest."""
        if self._folder is None:
            return
        told = ""
        while is_held(self._folder):
            asked = read_text(self._folder / ASKED)
            if asked and asked != told:
                self._tell(asked, step)
                told = asked
            time.sleep(POLL_SECONDS)
        if told:
            self._take_renewed()

    def _tell(self, asked: str, step: int) -> None:
        assert self._folder is not None
        digest = self._digest()
        if not digest.isprintable() or len(digest) > DIGEST_CHARACTERS_MAX:
            raise ValueError(f"expected a digest of at most {DIGEST_CHARACTERS_MAX} characters")
        answer = {"asked": asked, "digest": digest, "step": step}
        write_whole(self._folder / TOLD, json.dumps(answer))

    def _take_renewed(self) -> None:
        assert self._folder is not None
        text = read_text(self._folder / RENEWED)
        if not text:
            return
        (self._folder / RENEWED).unlink(missing_ok=True)
        renewed = json.loads(text)
        os.environ.update(renewed)
        if self._renew is not None:
            self._renew(renewed)


def is_held(folder: Path) -> bool:
    """Whether somebody who lives holds the program of a folder."""
    return is_locked(folder / HOLD)


def is_locked(path: Path) -> bool:
    """Whether a living process has a file to itself."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_text(path: Path) -> str:
    """What a file holds; empty where there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def write_whole(path: Path, text: str) -> None:
    """Put a file in place, whole, for its owner only."""
    with replacing(path, durable=False, mode=0o600) as file:
        file.write(text.encode())
