import logging
import threading

from rollout.run_events import RunEnd
from rollout.tracking.closing import close_trackers

DONE = RunEnd(kind="Failed", reason="GateFailed", message="")


class Meeting:
    """Closes once all others are being closed, too."""

    def __init__(self, barrier) -> None:
        self.barrier, self.told = barrier, None

    def log(self, step, metrics):
        pass

    def close(self, outcome=None):
        self.barrier.wait()
        self.told = outcome


class Hung(Meeting):
    """Never closes while the test goes on."""


class Broken(Meeting):
    def close(self, outcome=None):
        raise ConnectionError("the service is gone")


def test_none_waits_for_another():
    barrier = threading.Barrier(4)
    trackers = [Meeting(barrier) for _ in range(4)]
    close_trackers(trackers, DONE)

    assert [one.told for one in trackers] == [DONE] * 4


def test_one_that_hangs_and_one_that_fails_are_named_and_the_others_close(caplog):
    never, alone = threading.Barrier(2), threading.Barrier(1)
    trackers = [Hung(never), Broken(alone), Meeting(alone)]
    with caplog.at_level(logging.ERROR):
        # The last in the list is asked for with no time left: it was closed beside the others.
        close_trackers(trackers, None, seconds=0.2)
        never.wait()

    said = caplog.text
    assert "Hung has not closed within 0.2 s" in said
    assert "Broken did not close" in said
    assert "the service is gone" in said
