"""Buttons of the cluster's console do what the commands do, with the right and the token of whoever presses them."""

from __future__ import annotations

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
from console_kit import Page

VIEWER, EDITOR = "token-of-viewer", "token-of-editor"
RUN, ENDPOINT = "/runs/team/arithmetic", "/endpoints/team/chat"
OLD, NEW = "0a1b2c3d4e", "f5e4d3c2b1"


@pytest.fixture
async def console(tmp_path, monkeypatch):
    revisions = [{"name": name, "modelURI": f"hub://{name}"} for name in (NEW, OLD)]
    chat = {
        "metadata": {"name": "chat", "namespace": "team", "uid": "uid-of-chat"},
        "spec": {},
        "status": {"currentRevision": NEW, "revisions": revisions},
    }
    server = ModelApiServer(
        people={VIEWER: rights("team", *VIEWS), EDITOR: rights("team", *EDITS)},
        runs=[build_object("arithmetic")],
        endpoints=[chat],
    )
    async with open_cluster_console(tmp_path, server, monkeypatch) as one:
        yield one


def forms(page):
    return [one["action"] for one in Page(page).named("form") if one["action"] != "/sign-out"]


async def test_a_run_is_suspended_and_goes_on_as_its_editor(console):
    assert forms(await console.page(RUN, EDITOR)) == [f"{RUN}/suspend"]
    assert await console.press(f"{RUN}/suspend", EDITOR) == 303
    assert console.server.runs[0]["spec"]["suspend"] is True
    assert forms(await console.page(RUN, EDITOR)) == [f"{RUN}/resume"]
    assert await console.press(f"{RUN}/resume", EDITOR) == 303

    assert console.server.runs[0]["spec"]["suspend"] is False
    written = {token for method, _, token in console.server.calls if method == "PATCH"}
    assert written == {EDITOR}
    assert CONSOLE not in written


async def test_an_endpoint_is_taken_back_and_follows_its_spec_again(console):
    assert forms(await console.page(ENDPOINT, EDITOR)) == [f"{ENDPOINT}/rollback"]
    assert await console.press(f"{ENDPOINT}/rollback", EDITOR, to=OLD) == 303
    assert console.server.endpoints[0]["spec"]["rollbackTo"] == OLD
    assert f"{ENDPOINT}/follow-spec" in forms(await console.page(ENDPOINT, EDITOR))
    assert await console.press(f"{ENDPOINT}/follow-spec", EDITOR) == 303

    assert console.server.endpoints[0]["spec"]["rollbackTo"] is None


@pytest.mark.parametrize("to", ["", "nowhere", "<script>"])
async def test_a_revision_that_the_endpoint_has_not_had_is_refused(console, to):
    assert await console.press(f"{ENDPOINT}/rollback", EDITOR, to=to) == 400
    assert console.server.endpoints[0]["spec"] == {}


@pytest.mark.parametrize(
    "path",
    [f"{RUN}/suspend", f"{RUN}/resume", f"{ENDPOINT}/rollback", f"{ENDPOINT}/follow-spec"],
)
async def test_a_viewer_has_no_button_and_changes_nothing(console, path):
    assert forms(await console.page(RUN, VIEWER)) == []
    assert forms(await console.page(ENDPOINT, VIEWER)) == []
    assert await console.press(path, VIEWER, to=OLD) == 403
    assert not [method for method, _, _ in console.server.calls if method == "PATCH"]


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_another_site_presses_no_button(console, origin):
    assert await console.press(f"{RUN}/suspend", EDITOR, origin=origin) == 403
    assert not [method for method, _, _ in console.server.calls if method == "PATCH"]
