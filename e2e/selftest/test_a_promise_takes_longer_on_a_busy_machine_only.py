"""What is promised in seconds is judged by the time that the machine had for it."""

import threading
import time

from waiting import Pace


def test_where_work_takes_as_long_as_it_computes_a_promise_is_itself():
    assert Pace(took_seconds=2.0, computed_seconds=2.0).stretch(2.0) == 2.0
    assert Pace(took_seconds=1.99, computed_seconds=2.0).stretch(2.0) == 2.0


def test_where_work_takes_three_times_as_long_a_promise_does_too():
    assert Pace(took_seconds=6.0, computed_seconds=2.0).stretch(2.0) == 6.0


def test_it_measures_from_its_beginning_and_ends_with_its_block():
    with Pace() as pace:
        begun = pace.computed_seconds
        while pace.computed_seconds == begun:
            time.sleep(0.01)

    assert pace.took_seconds > 0.0
    assert "pace" not in {one.name for one in threading.enumerate()}
    assert pace.stretch(1.0) >= 1.0
