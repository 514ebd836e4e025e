"""Found by every Python process of a test's run, forked ones by ``forked_spells``: keeps it from starting, or moves its wall clock.

``hold-<name>`` in ``ROLLOUT_TEST_SPELLS`` holds back a process of that name (``actor-0``, ``learner``,
``coordinator``) while the file is there; the number in ``skew-<name>`` is added to what ``time.time`` says.
Where there is ``slow-tokens`` when an actor starts, each of its tokens takes as many seconds as it says.
"""

import os
import sys
import time
from pathlib import Path

ENTRYPOINTS = "rollout.entrypoints."
FORK_SERVER = "fork_server"
HOLD_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.05
BEGUN_TOKENS = 4

_time = time.time


def find_name(words: list[str]) -> str:
    """The process's name in its run; empty for any other process."""
    roles = [word.removeprefix(ENTRYPOINTS) for word in words if word.startswith(ENTRYPOINTS)]
    if roles[:1] == ["actor"]:
        return f"actor-{words[words.index('--index') + 1]}"
    return roles[0] if roles else ""


def hold(file: Path) -> None:
    """Wait until the file is gone, the parent is, or the time is up."""
    parent, end = os.getppid(), time.monotonic() + HOLD_SECONDS_MAX
    while file.exists() and os.getppid() == parent and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def slow_down(file: Path, begun: Path) -> None:
    """Let each token take as long as the file says; ``begun`` is there once a completion has some."""
    from rollout.engines.embedded.sampling import Sampler

    pick = Sampler.pick

    def pick_slowly(self, logits_SV, position, noise_S1):
        time.sleep(float(file.read_text()))
        if position >= BEGUN_TOKENS:
            begun.touch()
        return pick(self, logits_SV, position, noise_S1)

    Sampler.pick = pick_slowly


class Clock:
    """``time.time`` and what the file says on top, looked for now and then."""

    def __init__(self, file: Path) -> None:
        self._file, self._skew, self._next = file, 0.0, 0.0

    def __call__(self) -> float:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOK_SECONDS
            self._skew = float(self._file.read_text()) if self._file.exists() else 0.0
        return _time() + self._skew


def cast(words: list[str]) -> None:
    """Put the spells of a test on the process that was started with these words."""
    name = find_name(words)
    if name == FORK_SERVER:
        import forked_spells  # noqa: F401 - it lies beside this file, which it imports

        return
    if "ROLLOUT_TEST_SPELLS" not in os.environ or not name:
        return
    spells = Path(os.environ["ROLLOUT_TEST_SPELLS"])
    hold(spells / f"hold-{name}")
    if name.startswith("actor-") and (spells / "slow-tokens").exists():
        slow_down(spells / "slow-tokens", spells / f"begun-{name}")
    time.time = Clock(spells / f"skew-{name}")


cast(sys.orig_argv)
