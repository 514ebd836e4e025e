"""Tasks that live as long as their process: started again when they fail, a few times, and then its end."""

import asyncio
from types import SimpleNamespace

import pytest

from rollout.common.duties import RESTARTS_MAX, keep_going, work_beside
from rollout.coordinator.server.server import _until_told


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(keep_going, "__kwdefaults__", {"pause_seconds": 0.0})


class Failing:
    """Fails ``times`` times, then goes on for ever; ``going`` is set by then."""

    def __init__(self, times: int) -> None:
        self.times, self.calls, self.going = times, 0, asyncio.Event()

    async def __call__(self) -> None:
        self.calls += 1
        if self.calls <= self.times:
            raise ValueError(f"failure {self.calls}")
        self.going.set()
        await asyncio.Event().wait()


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_duty_that_fails_is_started_again_and_told(caplog):
    duty = Failing(RESTARTS_MAX)

    async def work() -> str:
        await duty.going.wait()
        return "done"

    assert await work_beside(work(), {"beat": duty}) == "done"
    assert duty.calls == RESTARTS_MAX + 1
    assert "duty=beat failed=1 of 5" in caplog.text


async def test_a_duty_that_goes_on_failing_ends_the_work(caplog):
    duty = Failing(RESTARTS_MAX + 1)

    with pytest.raises(ValueError, match=f"failure {RESTARTS_MAX + 1}"):
        await work_beside(for_ever(), {"beat": duty})
    assert "giving up" in caplog.text


async def test_a_duty_may_end_well_before_the_work():
    ended = asyncio.Event()

    async def duty() -> None:
        ended.set()

    async def work() -> int:
        await ended.wait()
        return 7

    assert await work_beside(work(), {"once": duty}) == 7


async def test_nothing_goes_on_behind_the_end_of_the_work():
    stopped: list[str] = []

    async def duty() -> None:
        try:
            await for_ever()
        finally:
            stopped.append("duty")

    async def work() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise RuntimeError("the work failed")

    with pytest.raises(RuntimeError, match="the work failed"):
        await work_beside(work(), {"beat": duty})
    assert stopped == ["duty"]


async def test_a_coordinator_whose_duty_fails_for_good_ends():
    async def broken() -> None:
        raise OSError("the snapshots' folder is read-only")

    duty = asyncio.create_task(keep_going("keep", broken))
    well = asyncio.create_task(asyncio.sleep(0))
    with pytest.raises(OSError, match="read-only"):
        run = SimpleNamespace(superseded=asyncio.Event(), state=SimpleNamespace(outcome=None))
        await _until_told(run, (well, duty))
