"""Where built binaries and running instances are kept: under the user's cache folder, never in the tree."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent


def build_cache() -> Path:
    """The folder of everything the test cluster keeps; made when missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "rollout" / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def instances() -> Path:
    """One folder per running (or crashed) instance."""
    folder = build_cache() / "instances"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def locked(what: str) -> Iterator[None]:
    """Wait until no other process of this user does `what`."""
    with (build_cache() / f"{what}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
