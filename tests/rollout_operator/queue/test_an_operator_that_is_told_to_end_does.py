"""A cancellation may be lost in a library that waits for something else: the operator goes on with nothing, and ends."""

import asyncio
import logging

from rollout_operator.controller import ending
from rollout_operator.controller.ending import TELL_MAX, end_tasks


async def deaf(num_times: int, began: asyncio.Event) -> None:
    """Ends when it is told once more than so many times."""
    forever = asyncio.get_running_loop().create_future
    began.set()
    for _ in range(num_times):
        try:
            await forever()
        except asyncio.CancelledError:
            continue
    await forever()


def end_one_that_is_deaf(num_times: int, monkeypatch) -> bool:
    """Whether it has ended."""
    monkeypatch.setattr(ending, "HEED_SECONDS", 0.0)

    async def play() -> bool:
        began = asyncio.Event()
        task = asyncio.create_task(deaf(num_times, began))
        await began.wait()
        await end_tasks([task])
        return task.done()

    return asyncio.run(play())


def test_a_part_that_does_not_hear_at_first_is_told_again(monkeypatch):
    assert end_one_that_is_deaf(TELL_MAX - 2, monkeypatch)


def test_a_part_that_never_hears_is_named_and_holds_nothing_up(monkeypatch, caplog):
    with caplog.at_level(logging.ERROR):
        assert not end_one_that_is_deaf(TELL_MAX, monkeypatch)
    assert "does not end" in caplog.text


def test_nothing_to_end_is_no_wait():
    asyncio.run(end_tasks([]))
