"""What a process died of is its own last word, so that the same death three times is recognised."""

import pytest

from rollout.common.child_processes import last_error

TRACEBACK = """Traceback (most recent call last):
  File "learner.py", line 27, in <module>
    from rollout.learner.build import build_parts
ModuleNotFoundError: No module named 'torch'
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "starting\nerror: step 3: the loss is not finite\nbye\n",
            "error: step 3: the loss is not finite",
        ),
        (TRACEBACK, "ModuleNotFoundError: No module named 'torch'"),
        (TRACEBACK + "error: first\nerror: last\n", "error: last"),
        ("torch.OutOfMemoryError: 3 GiB\n", "torch.OutOfMemoryError: 3 GiB"),
        ("step 1\nstep 2\n", ""),
        ("", ""),
    ],
)
def test_an_error_line_or_the_end_of_a_traceback_is_the_last_word(log, said):
    assert last_error(log) == said
