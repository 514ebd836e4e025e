"""The page of a sweep of this machine: each point with its settings, state, run, and what it had at the rungs."""

from __future__ import annotations

import json

import pytest
from console_kit import Page, make_run, write_config

from rollout.console.views.listing import PAGE_ROWS

HOSTILE = "<script>alert(1)</script>"


def write_book(home, points, name="sums-sweep"):
    (home / name).mkdir(exist_ok=True)
    text = points if isinstance(points, str) else json.dumps({"points": points})
    (home / name / "sweep.json").write_text(text)


def point(name, state="waiting", **more):
    return {"name": name, "settings": {"seed": 1}, "state": state, **more}


async def test_a_folder_without_sweeps_says_how_to_start_one(console):
    assert "rollout sweep -f" in await console.page("/sweeps")
    assert "/sweeps" not in await console.page("/")


async def test_the_list_of_runs_leads_to_sweeps_and_these_to_their_points(console):
    write_book(console.home, [point("sum")])
    assert {"href": "/sweeps"} in Page(await console.page("/")).named("a")
    assert {"href": "/sweeps/sums-sweep"} in Page(await console.page("/sweeps")).named("a")


async def test_each_point_has_settings_state_run_rungs_and_why(console):
    await make_run(console.home, "sum-1", ["5"] * 3)
    lost = {
        "run_dir": str(console.home / "sum-1"),
        "message": "at step 2 it was number 2 of 2",
        "rungs": [{"step": 2, "value": 0.25}],
    }
    points = [point("sum", "stopped", **lost), point("other", settings={"train.maxSteps": 7})]
    write_book(console.home, points)

    page = Page(await console.page("/sweeps/sums-sweep"))

    for said in ("Stopped", "Waiting", "seed", "train.maxSteps", "0.25 at 2", "number 2 of 2"):
        assert said in page.text, said
    assert "3 / 9" in page.text
    assert "1 stopped, 1 waiting" in page.text
    assert {"href": "/runs/sum-1"} in page.named("a")


async def test_a_fork_says_what_it_began_from(console):
    write_book(
        console.home, [point("sum"), point("f001", forked_from={"name": "sum-4", "step": 7})]
    )
    assert "sum-4" in Page(await console.page("/sweeps/sums-sweep")).text


async def test_a_point_of_a_sweep_that_died_is_what_its_run_says(console):
    await make_run(console.home, "sum-1", ["5"])
    write_book(console.home, [point("sum", "running", run_dir=str(console.home / "sum-1"))])
    assert "Interrupted" in Page(await console.page("/sweeps/sums-sweep")).text


@pytest.mark.parametrize("folder", ["/etc", "../..", "elsewhere-1", ".hidden", "", None, 7])
async def test_only_runs_of_this_folder_are_led_to(console, folder):
    write_book(console.home, [point("sum", "failed", run_dir=folder)])
    page = Page(await console.page("/sweeps/sums-sweep"))
    assert not [one for one in page.named("a") if "/runs/" in (one["href"] or "")]


@pytest.mark.parametrize(
    "book",
    [
        "",
        "{",
        "[]",
        "7",
        '{"points": 7}',
        '{"points": [7]}',
        '{"points": [{"name": "a"}]}',
        "[" * 9000,
    ],
)
async def test_a_book_that_cannot_be_read_is_named(console, book):
    write_book(console.home, book)
    status, text = await console.get("/sweeps/sums-sweep")
    assert status == 404
    assert "sweep.json cannot be read" in text


@pytest.mark.parametrize("name", ["nowhere", "..%2fetc", "%2e%2e%2fetc", ".git"])
async def test_a_sweep_that_is_not_there_is_named(console, name):
    status, _ = await console.get(f"/sweeps/{name}")
    assert status == 404


async def test_what_a_book_says_is_text(console):
    said = {"settings": {HOSTILE: HOSTILE}, "message": HOSTILE, "rungs": [{"step": HOSTILE}]}
    said |= {"forked_from": {"name": HOSTILE, "step": HOSTILE}}
    write_book(console.home, [{"name": HOSTILE, "state": HOSTILE, **said}])
    page = await console.page("/sweeps/sums-sweep")
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


async def test_a_large_sweep_has_pages(console):
    write_book(console.home, [point(f"p-{n:04d}") for n in range(PAGE_ROWS + 1)])
    write_config(console.home, "p-1")
    assert "p-0000" in await console.page("/sweeps/sums-sweep")
    last = await console.page("/sweeps/sums-sweep?page=2")
    assert "p-0050" in last
    assert "p-0000" not in last
