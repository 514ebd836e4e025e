"""The printed link opens one browser; no other site, name or program of this machine reads a run through the console."""

from __future__ import annotations

import aiohttp
import pytest
from console_kit import make_run, open_console

from rollout.console.door import SESSIONS_MAX, Door
from rollout.console.serve import serve_console
from rollout.errors import SpecError

PATHS = ["/", "/runs/secret-1", "/runs/secret-1/samples", "/runs/secret-1/live", "/nowhere"]


@pytest.fixture
async def closed(tmp_path):
    """A console that nobody has entered."""
    await make_run(tmp_path, "secret-1", ["whisper"])
    async with open_console(tmp_path) as one:
        yield one


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_link_nothing_of_a_run_is_told(closed, path):
    status, text = await closed.get(path)

    assert status == 401
    assert "rollout ui" in text
    assert "secret-1" not in text


@pytest.mark.parametrize("key", ["", "x", "é", "0" * 4096])
async def test_a_wrong_key_opens_nothing(closed, key):
    assert (await closed.get("/", params={"key": key}))[0] == 401


async def test_a_link_opens_one_browser_once_and_the_next_link_another(closed):
    first = closed.links[-1]
    await closed.enter()

    async with aiohttp.ClientSession() as other:
        async with other.get(first) as answer:
            assert answer.status == 401
        async with other.get(closed.links[-1], allow_redirects=False) as answer:
            assert answer.status == 303
    assert len(closed.links) == 3
    assert "secret-1" in await closed.page("/")


async def test_the_cookie_is_kept_from_scripts_and_other_sites(closed):
    async with closed.client.get(closed.links[-1], allow_redirects=False) as answer:
        cookie = answer.headers["Set-Cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", ""]
)
async def test_a_name_that_somebody_points_here_is_refused(console, host):
    status, text = await console.get("/", headers={"Host": host})

    assert status in {400, 403}
    assert "Refused" in text or status == 400


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1:1"])
async def test_a_change_from_another_site_is_refused(console, origin):
    headers = {} if origin is None else {"Origin": origin}
    async with console.client.post(console.url + "/", headers=headers) as answer:
        assert answer.status == 403


@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/console.css", "/static/none"])
async def test_every_answer_forbids_foreign_scripts_frames_and_guesses(console, path):
    async with console.client.get(console.url + path) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_refusals_carry_the_same_policy(closed):
    async with closed.client.get(closed.url) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_the_oldest_browser_goes_when_there_are_too_many():
    door = Door(1)

    sessions = [door.open_with(door.link.partition("key=")[2]) for _ in range(SESSIONS_MAX + 1)]

    assert [door.knows(one) for one in sessions] == [False, *[True] * SESSIONS_MAX]


async def test_a_port_that_is_taken_is_named(closed, tmp_path):
    port = int(closed.url.rpartition(":")[2])

    with pytest.raises(SpecError, match=f"--port {port}: cannot listen"):
        await serve_console(tmp_path, port, print)
