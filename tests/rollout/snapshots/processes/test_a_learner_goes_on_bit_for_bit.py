"""A learner that is imaged while it trains, killed, and gone on with ends at the state of one that was never disturbed."""

from __future__ import annotations

import sys

import pytest
from process_kit import PROGRAMS, run_alone, steps_of

pytestmark = [pytest.mark.process, pytest.mark.slow]

STEPS_BEFORE = 10
LEARNER = (sys.executable, str(PROGRAMS / "learner.py"))
GROUP = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((*LEARNER, "150", "128"), id="one process"),
        pytest.param(
            (*GROUP, str(PROGRAMS / "learner.py"), "150", "64"), id="two ranks of torchrun by gloo"
        ),
    ],
)
def test_a_learner_goes_on_bit_for_bit(programs, command):
    undisturbed = steps_of(run_alone(programs.folder, *command))
    first = programs.begin("first", "run", "--name", "learner", "--", *command)
    programs.wait_for("first", "step", STEPS_BEFORE)
    seen = programs.save("learner")
    second = programs.save("learner", "--stop", "--label", "last")
    assert first.wait() == 137
    before = steps_of(programs.lines("first"))
    assert second["new_bytes"] < seen["new_bytes"]

    programs.go()
    again = programs.begin("again", "restore", second["id"])
    assert again.wait() == 0, programs.lines("again")
    after = steps_of(programs.lines("again"))
    assert (before + after) == undisturbed
    assert int(before[-1].split()[1]) == second["step"]
    assert "its state is what was imaged" in " ".join(programs.lines("again"))

    older = programs.begin("older", "restore", seen["id"])
    assert older.wait() == 0, programs.lines("older")
    assert steps_of(programs.lines("older")) == undisturbed[seen["step"] + 1 :]
