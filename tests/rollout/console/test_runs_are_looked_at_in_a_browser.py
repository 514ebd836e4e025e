"""The list of runs, the page of one, its curves and its samples: what they show, with nothing, one and many of it."""

from __future__ import annotations

import json

import pytest
from console_kit import Page, make_run, open_run, write_config

from rollout.console.views.listing import PAGE_ROWS
from rollout.ledger.sql import browsing


async def test_a_folder_without_runs_says_how_to_start_one(console):
    assert "rollout run -f" in await console.page("/")


async def test_the_list_shows_how_far_each_run_is_and_leads_to_it(console):
    await make_run(console.home, "sum-1", ["5"] * 3)

    page = Page(await console.page("/"))

    assert {"href": "/runs/sum-1"} in page.named("a")
    assert "3 / 9" in page.text
    assert "Interrupted" in page.text


async def test_a_long_list_has_pages_and_a_filter(console):
    for number in range(PAGE_ROWS + 1):
        write_config(console.home, f"run-{number:03}")

    first = Page(await console.page("/?sort=name"))
    last = Page(await console.page("/?sort=name&page=2"))
    found = Page(await console.page("/?name=RUN-007"))

    assert "page 1 of 2" in first.text
    assert "run-050" in last.text
    assert "run-049" not in last.text
    assert len([one for one in found.named("a") if "/runs/" in (one["href"] or "")]) == 1


async def test_a_run_that_cannot_be_read_is_a_line_that_says_why(console):
    write_config(console.home, "broken-1")
    (console.home / "broken-1" / "ledger.db").write_bytes(b"not a database" * 99)

    page = Page(await console.page("/"))

    assert "Unreadable" in page.text
    assert "not a database" in page.text


async def test_a_run_that_never_began_says_why(console):
    write_config(console.home, "early-1")
    ended = {"exit_code": 2, "reason": "CoordinatorFailed", "message": "module 'x' <b>is</b> away"}
    (console.home / "early-1" / "result.json").write_text(json.dumps(ended))

    page = Page(await console.page("/"))

    assert "Failed" in page.text
    assert "CoordinatorFailed: module 'x' <b>is</b> away" in page.text


async def test_a_runs_page_shows_curves_phases_and_events(console):
    ledger = await open_run(console.home, "sum-1", ["5"] * 4)
    await ledger.add_event("noted", "by hand", {})
    await ledger.close()

    page = Page(await console.page("/runs/sum-1"))

    assert "Reward" in {one.get("aria-label", "").split(",")[0] for one in page.named("svg")}
    assert "75.0 %" in page.text  # of the learner's time
    assert "by hand" in page.text
    assert len(page.named("h1")) == 1


async def test_a_run_before_its_first_step_has_a_page_too(console):
    await make_run(console.home, "new-1", [])

    for path in ("", "/curves", "/samples"):
        assert (await console.get(f"/runs/new-1{path}"))[0] == 200


async def test_samples_come_in_pages_in_the_order_that_was_asked_for(console):
    await make_run(console.home, "sum-1", [f"said {number}" for number in range(30)])

    first = Page(await console.page("/runs/sum-1/samples"))
    last = Page(await console.page("/runs/sum-1/samples?page=2"))
    best = Page(await console.page("/runs/sum-1/samples?step=4&sort=-reward"))

    assert ("said 29" in first.text, "said 3" in first.text.split("said 29")[0]) == (True, False)
    assert "said 0" in last.text
    assert [one.get("rel") for one in last.named("a") if one.get("rel")] == ["prev"]
    assert "2 samples of step 4" in best.text
    assert best.text.index("step 4, 1") < best.text.index("step 4, 0")


async def test_a_text_is_found_in_prompts_and_completions_a_part_of_the_run_at_a_time(
    console, monkeypatch
):
    monkeypatch.setattr(browsing, "SEARCHED_MAX", 40)
    await make_run(console.home, "sum-1", [f"Said {number}" for number in range(30)], prompt="ask")

    first = Page(await console.page("/runs/sum-1/samples?text=said 2"))
    [link] = [one["href"] for one in first.named("a") if one.get("rel") == "next"]
    last = Page(await console.page(f"/runs/sum-1/samples{link}"))

    assert "20 found among 40 samples" in first.text
    assert (
        "2 found among 20 samples that were read, the newest step first; these are all" in last.text
    )
    assert "40 found" in Page(await console.page("/runs/sum-1/samples?text=ASK")).text
    assert "0 found" in Page(await console.page("/runs/sum-1/samples?text=%25")).text


async def test_a_run_that_learns_from_rows_says_how_to_read_them(console):
    spec = {"model": {"uri": "m"}, "train": {"algorithm": {"sft": {}}, "maxSteps": 9}}
    await make_run(console.home, "rows-1", [], spec=spec)

    assert "rollout runs samples rows-1 --step N" in await console.page("/runs/rows-1/samples")


async def test_a_sample_is_shown_with_where_it_came_from(console):
    await make_run(console.home, "sum-1", ["five"])

    page = Page(await console.page("/runs/sum-1/sample?task=t/0&sample=1"))

    assert "five" in page.text
    assert "actor-0, version 0" in page.text
    assert "exact-match 1" in page.text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/runs/none-1", "no run 'none-1'"),
        ("/runs/..%2f..%2fetc", "no run"),
        ("/runs/.hidden", "no run"),
        ("/runs/sum-1/samples?step=7", "committed steps 1 to 1"),
        ("/runs/sum-1/samples?step=-1", "step=-1: give a whole number"),
        ("/runs/sum-1/samples?page=99999999999999999999999999", "page="),
        ("/runs/sum-1/samples?sort=size", "sort=size: choose one of place"),
        ("/runs/sum-1/sample?task=t/0&sample=9", "no sample 9"),
        ("/runs/sum-1/sample", "task=... and sample=..."),
        ("/nowhere", "no such page"),
    ],
)
async def test_an_address_that_names_nothing_says_what_there_is(console, path, said):
    await make_run(console.home, "sum-1", ["5"])

    status, text = await console.get(path)

    assert status in {404, 500}
    assert said in Page(text).text
