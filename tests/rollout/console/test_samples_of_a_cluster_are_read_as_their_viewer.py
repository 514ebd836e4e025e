"""Steps and samples of a cluster's run come from its coordinator, by the viewer's own right to look into pods; without it, nothing."""

from __future__ import annotations

import json
import sys

import pytest
from cluster_kit import (
    CONSOLE,
    EDITS,
    VIEWS,
    ModelApiServer,
    build_object,
    open_cluster_console,
    rights,
)
from console_kit import Page, make_run

from rollout.cli.main import main

VIEWER, EDITOR = "token-of-viewer", "token-of-editor"
PLACE = "/runs/team/arithmetic"
INSIDE = [
    f"{PLACE}/steps",
    f"{PLACE}/steps/1",
    f"{PLACE}/samples",
    f"{PLACE}/tokens?task=t/0&sample=0",
    f"{PLACE}/tokens?task=t/0&sample=0&as=table",
    f"{PLACE}/curves",
    f"{PLACE}/evaluations",
    f"{PLACE}/sample?task=t/0&sample=0",
]


def pod(role, phase="Running"):
    return {
        "metadata": {"name": f"arithmetic-{role}-0", "labels": {"rollout.dev/role": role}},
        "spec": {"containers": [{"name": role}]},
        "status": {"phase": phase},
    }


@pytest.fixture
async def console(tmp_path, monkeypatch):
    """A run of two steps whose coordinator's pod is there."""
    await make_run(tmp_path, "arithmetic", ["said <b>first</b>", "said second"])
    server = ModelApiServer(
        people={VIEWER: rights("team", *VIEWS), EDITOR: rights("team", *EDITS)},
        runs=[build_object("arithmetic")],
        pods=[pod("coordinator"), pod("learner")],
        folder=tmp_path / "arithmetic",
    )
    async with open_cluster_console(tmp_path, server, monkeypatch) as one:
        yield one


@pytest.mark.parametrize("path", INSIDE)
async def test_a_viewer_without_the_right_to_look_into_pods_sees_none_of_it(console, path):
    status, text = await console.get(path, VIEWER)

    assert status == 403
    assert "viewer may not create pods/exec in namespace team" in Page(text).text
    assert "said" not in text
    assert not console.server.number_of("/exec")


async def test_the_page_of_a_run_says_what_is_left_out(console):
    page = await console.page(PLACE, VIEWER)

    assert "Curves, steps, samples and evaluations are left out" in page
    assert f"{PLACE}/samples" not in page
    assert f"{PLACE}/samples" in await console.page(PLACE, EDITOR)


@pytest.mark.parametrize("path", INSIDE)
async def test_an_editor_sees_the_page_and_its_links_stay_within_the_run(console, path):
    page = await console.page(path, EDITOR)

    inner = [one["href"] for one in Page(page).named("a") if "/runs/" in (one["href"] or "")]
    assert inner
    assert all(one == PLACE or one.startswith(f"{PLACE}/") for one in inner)
    assert "Sign out" in page


async def test_every_link_of_these_pages_leads_somewhere(console):
    for path in [PLACE, *INSIDE]:
        for one in Page(await console.page(path, EDITOR)).named("a"):
            if (one["href"] or "").startswith("/"):
                assert (await console.get(one["href"], EDITOR))[0] == 200, one["href"]


async def test_samples_are_shown_as_text_with_rewards(console):
    page = await console.page(f"{PLACE}/samples?step=1", EDITOR)

    assert "said <b>first</b>" in Page(page).text
    assert "<b>first" not in page
    assert "second" not in page


async def test_one_sample_has_its_prompt_its_completion_and_its_way(console):
    text = Page(await console.page(INSIDE[-1], EDITOR)).text

    for said in ("ask", "said <b>first</b>", "wanted", "admitted", "by step", "anchor"):
        assert said in text


async def test_the_console_looks_into_pods_with_the_viewers_token_and_never_with_its_own(console):
    await console.page(f"{PLACE}/samples", EDITOR)

    inside = {token for _, path, token in console.server.calls if path.endswith("/exec")}
    assert inside == {EDITOR}
    assert CONSOLE not in inside


async def test_a_step_that_is_not_there_is_named_by_the_coordinator(console):
    status, text = await console.get(f"{PLACE}/steps/9", EDITOR)

    assert status == 404
    assert "this run has committed steps 1 to 2" in Page(text).text


async def test_a_run_whose_coordinator_is_gone_says_where_its_files_lie(console):
    console.server.pods[:] = []

    status, text = await console.get(f"{PLACE}/samples", EDITOR)

    assert status == 404
    assert "has no coordinator running" in Page(text).text


@pytest.mark.parametrize(
    "said",
    [
        "",
        "nonsense",
        "[]",
        '{"steps": 7}',
        json.dumps({"steps": [], "last": "<script>", "page": 1, "more": False}),
        "[" * 100_000,
        '{"steps": [], "last": 1, "page": 1, "more": ' + '{"a": ' * 100_000,
    ],
    ids=["empty", "nonsense", "list", "type", "text for a number", "deep", "deeper"],
)
async def test_a_coordinator_that_answers_nonsense_is_named(console, said):
    console.server.says = said

    status, text = await console.get(f"{PLACE}/steps", EDITOR)

    assert status == 500
    assert "did not answer as this console" in Page(text).text
    assert "<script>" not in text.replace('<script type="module"', "")


@pytest.mark.parametrize(
    "rows",
    [[7], [{}], [{"step": 1, "metric": "x", "value": "high"}], [{"step": {"a": 1}}]],
    ids=str,
)
async def test_values_that_only_look_like_ours_are_named_and_not_drawn(console, rows):
    console.server.says = json.dumps({"rows": rows, "best": None})

    status, text = await console.get(f"{PLACE}/evaluations", EDITOR)

    assert status == 500
    assert "did not answer as this console" in Page(text).text


async def test_what_a_changed_coordinator_says_is_text_and_nothing_else(console):
    hostile = "<img src=x onerror=alert(1)>\u202e"
    whole = json.loads(json.dumps(read(console, "samples", "{}")))
    whole["found"]["rows"][0] |= {"text": hostile, "ending": hostile, "task_id": '"><script>'}
    console.server.says = json.dumps(whole)

    page = await console.page(f"{PLACE}/samples", EDITOR)

    assert "<img" not in page
    assert '"><script>' not in page
    assert "\u202e" not in page


def read(console, page, question):
    return json.loads(console.server._run(command(page, question))[1])


def command(page, question):
    return ["rollout", "debug", "page", "/var/lib/rollout", page, "--question", question]


async def test_the_command_prints_what_the_console_reads(console, monkeypatch, capsys):
    words = ["rollout", "debug", "page", str(console.server.folder), "step", "--question"]
    monkeypatch.setattr(sys, "argv", [*words, '{"step": 2}'])

    with pytest.raises(SystemExit) as ended:
        main()

    assert not ended.value.code
    assert json.loads(capsys.readouterr().out) == read(console, "step", '{"step": 2}')


@pytest.mark.parametrize(
    ("page", "question", "words"),
    [
        ("nothing", "{}", "there are: steps, step, samples, sample, tokens"),
        ("step", "{}", "--question"),
        ("step", "nonsense", "--question"),
        ("samples", '{"limit": 52}', "limit: at most 51"),
        ("steps", '{"page": "1"}', "--question"),
        ("tokens", '{"task": "t/0", "sample": 0, "size": 2001}', "size 1 to 2000"),
        ("steps", f'{{"page": {"1" * 5000}}}', "at most 4096 characters"),
    ],
)
async def test_a_question_that_is_none_is_refused_by_name(console, page, question, words):
    code, said = console.server._run(command(page, question))

    assert code == 2
    assert words in said
