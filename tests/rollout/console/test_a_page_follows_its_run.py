"""A page of a live run is told when the run has moved, by an event; nobody polls pages."""

from __future__ import annotations

import asyncio
import json

import pytest
from console_kit import make_run, open_run
from ledger_kit import admission

from rollout.console import live

WAIT_SECONDS = 30.0


async def read_event(answer) -> dict:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            line = (await answer.content.readline()).decode()
            if line.startswith("data:"):
                return json.loads(line.removeprefix("data:"))


async def test_an_event_comes_at_once_and_whenever_the_ledger_has_moved(console, monkeypatch):
    monkeypatch.setattr(live, "POLL_SECONDS", 0.05)
    ledger = await open_run(console.home, "sum-1", ["5"])

    async with console.client.get(f"{console.url}/runs/sum-1/live") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        first = await read_event(answer)
        await ledger.admit(admission(1, 2))
        second = await read_event(answer)

    assert second["position"] > first["position"]
    await ledger.close()


async def test_a_page_of_a_run_that_nobody_works_on_does_not_listen(console):
    await make_run(console.home, "sum-1", ["5"])

    assert 'data-live="/runs' not in await console.page("/runs/sum-1")


async def test_pages_that_are_kept_live_are_bounded_and_leave_no_trace(console, monkeypatch):
    monkeypatch.setattr(live, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(live, "FOLLOWERS_MAX", 1)
    await make_run(console.home, "sum-1", ["5"])

    async with console.client.get(f"{console.url}/runs/sum-1/live") as answer:
        await read_event(answer)
        assert (await console.get("/runs/sum-1/live"))[0] == 503
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            async with console.client.get(f"{console.url}/runs/sum-1/live") as answer:
                if answer.status == 200:
                    break
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("path", ["/runs/none-1/live"])
async def test_a_run_that_is_not_there_is_not_followed(console, path):
    assert (await console.get(path))[0] == 404
