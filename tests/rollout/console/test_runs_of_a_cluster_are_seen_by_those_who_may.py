"""The console of a cluster shows each object to whoever the cluster says may read it, and to nobody else that it is there."""

from __future__ import annotations

import pytest
from cluster_kit import (
    EDITS,
    VIEWS,
    ModelApiServer,
    build_object,
    open_cluster_console,
    rights,
)
from console_kit import Page

VIEWER, EDITOR, STRANGER = "token-of-viewer", "token-of-editor", "token-of-stranger"
NARROW = "token-of-narrow"
POD = {
    "metadata": {"name": "arithmetic-learner-0", "labels": {"rollout.dev/role": "learner"}},
    "spec": {"nodeName": "node-1", "containers": [{"name": "learner"}]},
    "status": {
        "phase": "Running",
        "containerStatuses": [{"name": "learner", "ready": True, "restartCount": 2}],
    },
}
COORDINATOR = POD | {
    "metadata": {"name": "arithmetic-coordinator-0", "labels": {"rollout.dev/role": "coordinator"}}
}
EVENT = {
    "type": "Warning",
    "reason": "BackOff",
    "message": "restarting failed container",
    "involvedObject": {"kind": "Pod", "name": "arithmetic-learner-0"},
    "lastTimestamp": "2026-01-02T03:06:00Z",
}


ENDPOINT = {
    "metadata": {"name": "chat", "namespace": "team", "uid": "uid-of-chat"},
    "spec": {},
    "status": {
        "currentRevision": "0a1b2c3d4e",
        "readyReplicas": 2,
        "url": "https://chat.team.svc",
        "revisions": [
            {
                "name": "0a1b2c3d4e",
                "modelURI": "hub://m",
                "modelRevision": "1",
                "modelDigest": "blake3:abcdefabcdef00",
                "weight": 80,
                "ready": 2,
            }
        ],
    },
}
SNAPSHOT = {
    "metadata": {"name": "best", "namespace": "team", "uid": "uid-of-best"},
    "spec": {},
    "status": {
        "run": {"name": "arithmetic"},
        "step": 6,
        "sizeBytes": 1536,
        "conditions": [{"type": "Complete", "status": "True", "reason": "Saved"}],
    },
}


def hidden(one):
    return one | {"metadata": {"name": "hidden", "namespace": "other", "uid": "uid-of-hidden"}}


@pytest.fixture
async def console(tmp_path, monkeypatch):
    """A cluster of two namespaces with runs; the viewer and the editor are of one of them."""
    server = ModelApiServer(
        people={
            VIEWER: rights("team", *VIEWS),
            EDITOR: rights("team", *EDITS),
            NARROW: rights("team", "get rolloutruns", "list rolloutruns"),
            STRANGER: set(),
        },
        runs=[build_object("arithmetic"), build_object("hidden-one", "other")],
        pods=[POD, COORDINATOR],
        events=[EVENT],
    )
    async with open_cluster_console(tmp_path, server, monkeypatch) as one:
        yield one


async def test_the_list_has_the_runs_of_namespaces_that_the_viewer_may_list(console):
    page = await console.page("/", VIEWER)

    assert "arithmetic" in page
    assert "7 / 40" in page
    assert "hidden-one" not in page
    assert "other" not in Page(page).text.split()


async def test_a_stranger_learns_of_no_run_and_of_no_namespace(console):
    page = await console.page("/", STRANGER)

    assert "No runs here that you may list" in page
    assert "arithmetic" not in page
    assert "team" not in page


async def test_somebody_who_may_list_everywhere_sees_every_namespace(console):
    console.server.people["token-of-admin"] = {("list", "rolloutruns", "")}

    page = await console.page("/", "token-of-admin")

    assert "arithmetic" in page
    assert "hidden-one" in page


async def test_a_runs_page_has_conditions_progress_pods_and_events(console):
    text = Page(await console.page("/runs/team/arithmetic", VIEWER)).text

    for said in ("Ready", "all is well", "Waits for", "arithmetic-learner-0", "node-1", "BackOff"):
        assert said in text
    assert "Nothing, as far as the cluster says." in text


async def test_what_holds_a_run_up_stands_on_its_page_with_what_to_try(console):
    stalled = [{"type": "Stalled", "status": "True", "reason": "Queued", "message": "no quota"}]
    console.server.runs[0]["status"]["conditions"] = stalled

    text = Page(await console.page("/runs/team/arithmetic", VIEWER)).text

    assert "Stalled=True, Queued: no quota" in text
    assert "Wait, or look at the queue" in text


@pytest.mark.parametrize("path", ["/runs/team/arithmetic", "/runs/team/arithmetic/live"])
async def test_a_run_is_refused_whether_or_not_it_is_there(console, path):
    there = await console.get(path, STRANGER)
    nowhere = await console.get(path.replace("arithmetic", "nowhere"), STRANGER)

    assert (there[0], nowhere[0]) == (403, 403)
    assert there[1] == nowhere[1].replace("nowhere", "arithmetic")
    assert not console.server.number_of("/rolloutruns/")


async def test_a_refusal_names_the_right_that_is_missing(console):
    _, text = await console.get("/runs/other/hidden-one", VIEWER)

    assert "viewer may not get rolloutruns hidden-one in namespace other" in Page(text).text


async def test_pods_and_events_are_left_out_by_name_for_who_may_read_the_run_alone(console):
    text = Page(await console.page("/runs/team/arithmetic", NARROW)).text

    assert "arithmetic-learner-0" not in text
    assert "BackOff" not in text
    assert "Pods are left out: you may not list pods" in text
    assert "Events are left out: you may not list events" in text


async def test_a_run_that_is_not_there_is_named(console):
    status, text = await console.get("/runs/team/nowhere", VIEWER)

    assert status == 404
    assert "there is no run nowhere in namespace team" in Page(text).text


async def test_a_console_of_some_namespaces_looks_at_no_other(console, tmp_path, monkeypatch):
    server = console.server
    server.people[VIEWER] |= rights("other", *VIEWS)
    (tmp_path / "second").mkdir()
    async with open_cluster_console(tmp_path / "second", server, monkeypatch, ["team"]) as one:
        page = await one.page("/", VIEWER)
        status, _ = await one.get("/runs/other/hidden-one", VIEWER)

    assert "hidden-one" not in page
    assert status == 403


async def test_objects_are_read_by_the_consoles_account_and_never_with_a_viewers_token(console):
    await console.page("/", VIEWER)
    await console.page("/runs/team/arithmetic", VIEWER)

    assert {token for _, _, token in console.server.calls} == {"token-of-the-console"}
    assert {method for method, path, _ in console.server.calls if "reviews" not in path} == {"GET"}


async def test_what_an_object_says_is_text(console):
    hostile = "<script>alert(1)</script>\u202e"
    console.server.runs[0]["status"]["conditions"][0]["message"] = hostile
    console.server.events[:] = [EVENT | {"message": hostile}]

    page = await console.page("/runs/team/arithmetic", VIEWER)

    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert {one.get("src") for one in Page(page).named("script")} == {
        "/static/live.js",
        "/static/keys.js",
    }


async def test_a_thousand_pages_ask_the_cluster_for_one_list(console):
    console.server.runs[:] = [build_object(f"run-{one:04}") for one in range(120)]

    first = await console.page("/?sort=name", VIEWER)
    last = await console.page("/?sort=name&page=3", VIEWER)

    assert "run-0000" in first
    assert "run-0119" in last
    assert "page 3 of 3" in Page(last).text
    lists = [path for _, path, _ in console.server.calls if path.endswith("/rolloutruns")]
    assert len(lists) == 1


async def test_endpoints_and_snapshots_have_lists_of_their_own(console):
    console.server.endpoints[:] = [ENDPOINT, hidden(ENDPOINT)]
    console.server.snapshots[:] = [SNAPSHOT, hidden(SNAPSHOT)]

    endpoints = Page(await console.page("/endpoints", VIEWER))
    snapshots = Page(await console.page("/snapshots", VIEWER))

    for said in ("chat", "0a1b2c3d4e", "https://chat.team.svc"):
        assert said in endpoints.text
    for said in ("best", "arithmetic", "1.5 KiB", "Succeeded"):
        assert said in snapshots.text
    for page in (endpoints, snapshots):
        assert "hidden" not in page.text
    assert "/endpoints/team/chat" in {one["href"] for one in endpoints.named("a")}


async def test_an_endpoints_page_has_what_it_served(console):
    console.server.endpoints[:] = [ENDPOINT | {"spec": {"rollbackTo": "0a1b2c3d4e"}}]

    text = Page(await console.page("/endpoints/team/chat", VIEWER)).text

    for said in ("hub://m@1", "abcdefabcdef", "80", "Taken back to 0a1b2c3d4e by hand"):
        assert said in text


@pytest.mark.parametrize(
    "path", ["/endpoints/team/chat", "/endpoints?namespace=team", "/snapshots?namespace=team"]
)
async def test_a_stranger_sees_no_endpoint_and_no_snapshot(console, path):
    console.server.endpoints[:] = [ENDPOINT]

    status, text = await console.get(path, STRANGER)

    assert status == 403
    assert "0a1b2c3d4e" not in text


async def test_a_page_of_a_run_is_told_when_its_object_changes(console):
    headers = {"Authorization": f"Bearer {VIEWER}"}
    url = f"{console.url}/runs/team/arithmetic/live"
    async with console.client.get(url, headers=headers) as stream:
        assert stream.status == 200
        line = await stream.content.readline()

    assert line == b"event: moved\n"
