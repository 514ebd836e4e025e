"""A GRPO run in Exact whose learner, actors, coordinator and snapshotter are killed, and the run that begins with a snapshot of it.

Both come to the chain of the undisturbed run: nothing is lost, nothing is repeated.
"""

import pytest
from simulate import run_scenario
from snapshotter import exact_scenario, read_steps, tell

QUICK, LONG = range(100, 103), range(103, 203)


def check(seed):
    """Whether a run began with a snapshot; how many snapshotters were killed."""
    steps = {}
    calm = run_scenario(
        exact_scenario(seed).calm(),
        look=lambda world: steps.update(read_steps(world.folder / "ledger.db")),
    )
    assert not calm.broken, calm.explain()
    told = tell(seed)
    assert not told.report.broken, told.report.explain()
    assert told.report.outcome == calm.outcome == "Finished"
    assert told.history == steps
    for step, report, again in told.again:
        assert not report.broken, report.explain()
        assert max(again) == max(steps)
        later = {number: found for number, found in again.items() if number > step}
        assert later == {number: found for number, found in steps.items() if number > step}
    return len(told.again), told.killed


def test_a_few():
    begun, killed = zip(*map(check, QUICK), strict=True)
    assert sum(begun) >= 2
    assert sum(killed) >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred():
    begun, killed = zip(*map(check, LONG), strict=True)
    assert sum(begun) >= 90
    assert sum(killed) >= 100
