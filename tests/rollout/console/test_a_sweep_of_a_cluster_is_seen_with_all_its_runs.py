"""The page of a sweep has a table of its runs for those who may see it, and buttons for those who may change it."""

from __future__ import annotations

import pytest
from cluster_kit import EDITS, VIEWS, ModelApiServer, open_cluster_console, rights
from console_kit import Page

VIEWER, EDITOR, STRANGER = "token-of-viewer", "token-of-editor", "token-of-stranger"
PAGE = "/sweeps/team/rates"
HOSTILE = "<script>alert(1)</script>"
RUNS = [
    {"name": "rates-000", "values": ["1e-5"], "uid": "u0", "outcome": "Stopped", "step": 21},
    {"name": "rates-001", "values": ["3e-5"], "uid": "u1", "step": 40, "value": "0.75"},
    {"name": "rates-002", "values": ["1e-4"], "uid": "u2", "outcome": "Deleted"},
    {"name": "rates-003", "values": ["3e-4"]},
    {
        "name": "rates-f001",
        "values": ["1e-5"],
        "uid": "u4",
        "suspended": True,
        "forkedFrom": {"name": "rates-001", "step": 22},
    },
]
RUNS[0]["message"] = "at step 20 it was number 3 of 3, of which 1 go on"
SWEEP = {
    "kind": "RolloutSweep",
    "metadata": {
        "name": "rates",
        "namespace": "team",
        "uid": "uid-of-rates",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-02T03:04:05Z",
    },
    "spec": {
        "parallelism": 3,
        "parameters": [{"field": "train.optimizer.adamw.learningRate"}],
    },
    "status": {
        "total": 5,
        "counts": {"waiting": 1, "running": 1, "suspended": 1, "stopped": 1, "deleted": 1},
        "best": {"name": "rates-001", "value": "0.75", "step": 40},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Running", "message": "m"}],
        "runs": RUNS,
    },
}
EVENT = {
    "type": "Normal",
    "reason": "RunStopped",
    "message": "run rates-000 is suspended",
    "involvedObject": {"kind": "RolloutSweep", "name": "rates"},
    "lastTimestamp": "2026-01-02T03:06:00Z",
}


@pytest.fixture
async def console(tmp_path, monkeypatch):
    hidden = SWEEP | {"metadata": {"name": "hidden", "namespace": "other", "uid": "u"}}
    server = ModelApiServer(
        people={
            VIEWER: rights("team", *VIEWS),
            EDITOR: rights("team", *EDITS),
            "token-of-narrow": rights("team", "get rolloutsweeps"),
            STRANGER: set(),
        },
        sweeps=[SWEEP | {"spec": dict(SWEEP["spec"])}, hidden],
        events=[EVENT],
    )
    async with open_cluster_console(tmp_path, server, monkeypatch) as one:
        yield one


def forms(page):
    return [one["action"] for one in Page(page).named("form") if one["action"] != "/sign-out"]


async def test_the_list_has_the_sweeps_that_the_viewer_may_list(console):
    text = Page(await console.page("/sweeps", VIEWER)).text
    for said in ("rates", "Running", "rates-001", "0.75"):
        assert said in text
    assert "hidden" not in text
    assert "rates" not in Page(await console.page("/sweeps", STRANGER)).text


async def test_the_page_has_each_run_with_settings_state_value_and_parent(console):
    page = Page(await console.page(PAGE, VIEWER))
    said = ("learningRate", "rates-003", "Waiting", "Suspended", "number 3 of 3", "RunStopped")
    for one in ("2 of 5", "mean reward", *said):
        assert one in page.text, one
    links = [one.get("href", "") for one in page.named("a")]
    assert "/runs/team/rates-000" in links
    assert links.count("/runs/team/rates-001") == 3  # the best, its line, the fork's parent
    assert "/runs/team/rates-002" not in links
    assert "/runs/team/rates-003" not in links


async def test_what_a_viewer_may_not_list_is_named(console):
    page = await console.page(PAGE, "token-of-narrow")
    assert "you may not <code>list events</code>" in page
    assert "RunStopped" not in page


async def test_a_stranger_does_not_learn_whether_it_exists(console):
    there, _ = await console.get(PAGE, STRANGER)
    nowhere, _ = await console.get("/sweeps/team/nowhere", STRANGER)
    assert there == nowhere == 403


async def test_a_sweep_that_is_gone_is_named(console):
    status, text = await console.get("/sweeps/team/gone", VIEWER)
    assert status == 404
    assert "there is no sweep gone in namespace team" in text


async def test_it_is_suspended_and_goes_on_as_its_editor(console):
    assert forms(await console.page(PAGE, EDITOR)) == [f"{PAGE}/suspend"]
    assert await console.press(f"{PAGE}/suspend", EDITOR) == 303
    assert console.server.sweeps[0]["spec"]["suspend"] is True
    assert forms(await console.page(PAGE, EDITOR)) == [f"{PAGE}/resume"]
    assert await console.press(f"{PAGE}/resume", EDITOR) == 303
    assert console.server.sweeps[0]["spec"]["suspend"] is False
    written = {token for method, _, token in console.server.calls if method == "PATCH"}
    assert written == {EDITOR}


@pytest.mark.parametrize("word", ["suspend", "resume"])
async def test_a_viewer_has_no_button_and_another_site_presses_none(console, word):
    assert forms(await console.page(PAGE, VIEWER)) == []
    assert await console.press(f"{PAGE}/{word}", VIEWER) == 403
    assert await console.press(f"{PAGE}/{word}", EDITOR, origin="https://evil.example") == 403
    assert not [method for method, _, _ in console.server.calls if method == "PATCH"]


async def test_what_a_sweep_says_is_text(console):
    entry = {"name": HOSTILE, "values": [HOSTILE], "uid": "u", "message": HOSTILE}
    console.server.sweeps[0]["status"] = {"runs": [entry]}
    console.server.sweeps[0]["spec"]["parameters"] = [{"field": HOSTILE}]
    page = await console.page(PAGE, VIEWER)
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("status", [{}, {"runs": []}, {"counts": {}, "runs": [{"name": "x"}]}])
async def test_a_sweep_that_says_little_has_a_page(console, status):
    console.server.sweeps[0]["status"] = status
    assert "Runs" in Page(await console.page(PAGE, VIEWER)).text
