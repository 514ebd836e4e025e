"""The kit that starts ranks for other tests waits for none that is dead."""

from __future__ import annotations

import os
import time

import pytest
import rank_kit
from rank_kit import spawn

pytestmark = pytest.mark.process


def test_a_rank_that_is_killed_is_told_of_with_its_exit_code() -> None:
    def work(rank: int) -> int:
        if rank == 1:
            os.kill(os.getpid(), 9)
        return rank

    with pytest.raises(AssertionError, match=r"exit code -9\): died without a word"):
        spawn(work)


def test_nobody_waits_for_the_partner_of_a_rank_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_kit, "LAST_WORDS_SECONDS", 1.0)  # waited for twice

    def work(rank: int) -> None:
        if rank == 0:
            raise ValueError("no such layer")
        time.sleep(3600)

    with pytest.raises(AssertionError, match=r"no such layer[\s\S]*no answer"):
        spawn(work)
