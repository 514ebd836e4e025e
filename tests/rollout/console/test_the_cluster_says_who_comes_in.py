"""Nobody comes into the console of a cluster but whom the cluster knows, by header or by the form, and only as long as it does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cluster_kit import VIEWS, ModelApiServer, build_object, open_cluster_console, rights
from console_kit import Page

from rollout.cluster.kinds import RUN
from rollout.console.cluster.door import (
    REQUESTS,
    REQUESTS_MAX,
    SESSION_SECONDS_MAX,
    SESSIONS_MAX,
    Sessions,
)
from rollout.console.cluster.reviews import (
    REFUSED_SECONDS_MAX,
    REMEMBERED_MAX,
    SECONDS_MAX,
    Reviews,
    Viewer,
    lists_kind,
)
from rollout.console.cluster.serve import ClusterConsoleSettings, open_console_certificate
from rollout.errors import KubeError, SpecError

sys.path.append(str(Path(__file__).parents[1] / "coordinator"))

ANA = "token-of-ana"
PATHS = ["/", "/runs/team/arithmetic", "/runs/team/arithmetic/live", "/nowhere"]


@pytest.fixture
async def console(tmp_path, monkeypatch):
    server = ModelApiServer(people={ANA: rights("team", *VIEWS)}, runs=[build_object("arithmetic")])
    async with open_cluster_console(tmp_path, server, monkeypatch) as one:
        yield one


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Answers:
    """A cluster whose reviews say ``yes``; counts them."""

    def __init__(self) -> None:
        self.yes = True
        self.asked = 0

    def review(self, group: str, kind: str, spec: dict) -> dict:
        self.asked += 1
        if kind == "TokenReview":
            return {"authenticated": self.yes, "user": {"username": spec["token"]}}
        return {"allowed": self.yes}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", "token-of-nobody", "é", "x" * 40_000, "a b"])
async def test_without_a_token_that_the_cluster_knows_nothing_is_told(console, path, token):
    headers = {"Authorization": f"Bearer {token}"} if token.isascii() and token else {}
    async with console.client.get(console.url + path, headers=headers) as answer:
        text = await answer.text()

    assert answer.status in {400, 401}
    assert "arithmetic" not in text
    if answer.status == 401:
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert Page(text).named("input")[0]["type"] == "password"


async def test_another_scheme_than_bearer_is_no_token(console):
    headers = {"Authorization": f"Basic {ANA}"}
    async with console.client.get(console.url, headers=headers) as answer:
        assert answer.status == 401


async def test_the_form_takes_a_token_and_gives_a_cookie_that_holds_none_of_it(console):
    answer = await console.sign_in(ANA)

    cookie = answer.headers["Set-Cookie"]
    assert answer.status == 303
    assert answer.headers["Location"] == "/"
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert ANA not in cookie
    assert "arithmetic" in (await console.get("/"))[1]


async def test_a_token_that_nobody_knows_is_refused_in_the_form_and_not_shown_again(console):
    answer = await console.sign_in("token-of-nobody")
    async with console.client.post(
        f"{console.url}/sign-in", data={"token": "token-of-nobody"}, headers={"Origin": console.url}
    ) as told:
        text = await told.text()

    assert answer.status == 401
    assert "does not know this token" in text
    assert "token-of-nobody" not in text


async def test_signing_out_ends_the_session(console):
    await console.sign_in(ANA)
    before = await console.get("/")
    async with console.client.post(
        f"{console.url}/sign-out", headers={"Origin": console.url}, allow_redirects=False
    ) as answer:
        assert answer.status == 303

    assert (before[0], (await console.get("/"))[0]) == (200, 401)


@pytest.mark.parametrize("origin", ["", "null", "https://evil.example", "http://127.0.0.1:1"])
async def test_another_site_signs_nobody_in(console, origin):
    answer = await console.sign_in(ANA, origin=origin)

    assert answer.status == 403
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/sign-in", "/healthz", "/static/console.css", "/nowhere"])
async def test_every_answer_forbids_foreign_scripts_and_frames(console, path):
    async with console.client.get(console.url + path) as answer:
        policy = answer.headers["Content-Security-Policy"]

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_the_probe_of_the_kubelet_is_answered_and_told_nothing(console):
    assert await console.get("/healthz") == (200, "ok")
    assert console.server.calls == []


async def test_a_flood_is_answered_that_it_is_busy_and_the_kubelet_is_answered_all_the_same(
    console,
):
    waiting = console.app[REQUESTS]
    waiting.update(object() for _ in range(REQUESTS_MAX))

    busy = await console.get("/", ANA)
    probed = await console.get("/healthz")
    waiting.clear()

    assert busy[0] == 503
    assert probed == (200, "ok")
    assert console.server.calls == []
    assert (await console.get("/", ANA))[0] == 200


async def test_a_console_that_may_not_ask_says_what_its_account_lacks(console):
    console.server.reviews_allowed = False

    status, text = await console.get("/", ANA)

    assert status == 500
    assert "system:auth-delegator" in text
    assert ANA not in text


def test_what_is_taken_away_is_gone_after_a_minute_and_what_is_given_is_there_after_seconds():
    clock, cluster = Clock(), Answers()
    reviews = Reviews(cluster, clock)
    ana = Viewer(name="ana")

    assert reviews.may(ana, lists_kind(RUN, "team"))
    assert reviews.identify(ANA) == Viewer(name=ANA)
    cluster.yes = False
    clock.now = SECONDS_MAX - 1
    assert reviews.may(ana, lists_kind(RUN, "team"))
    clock.now = SECONDS_MAX
    assert not reviews.may(ana, lists_kind(RUN, "team"))
    assert reviews.identify(ANA) is None
    cluster.yes = True
    clock.now += REFUSED_SECONDS_MAX
    assert reviews.may(ana, lists_kind(RUN, "team"))
    assert reviews.identify(ANA) is not None


def test_answers_are_remembered_for_each_right_and_each_person_apart():
    cluster = Answers()
    reviews = Reviews(cluster, Clock())

    for name in ("ana", "ben"):
        for namespace in ("team", "other"):
            reviews.may(Viewer(name=name), lists_kind(RUN, namespace))
            reviews.may(Viewer(name=name), lists_kind(RUN, namespace))

    assert cluster.asked == 4


def test_no_more_is_remembered_than_is_bounded():
    cluster = Answers()
    reviews = Reviews(cluster, Clock())

    for number in range(REMEMBERED_MAX + 1):
        reviews.may(Viewer(name=str(number)), lists_kind(RUN, "team"))
    reviews.may(Viewer(name="0"), lists_kind(RUN, "team"))

    assert cluster.asked == REMEMBERED_MAX + 2


def test_a_cluster_that_cannot_be_asked_lets_nobody_in():
    class Silent:
        def review(self, *_):
            raise KubeError("the API server does not answer")

    with pytest.raises(KubeError, match="could not be asked who you are"):
        Reviews(Silent(), Clock()).identify(ANA)


def test_a_session_ends_with_the_working_day_and_the_oldest_goes_when_there_are_too_many():
    clock = Clock()
    sessions = Sessions(clock)
    cookies = [sessions.begin(str(number)) for number in range(SESSIONS_MAX + 1)]

    assert sessions.token_of(cookies[0]) == ""
    assert sessions.token_of(cookies[1]) == "1"
    assert sessions.token_of("no-cookie") == ""
    clock.now = SESSION_SECONDS_MAX
    assert sessions.token_of(cookies[1]) == ""


def test_beyond_loopback_it_listens_with_a_certificate_only(tmp_path):
    def settings(host, certificate=None):
        return ClusterConsoleSettings(host=host, port=0, certificate=certificate)

    with pytest.raises(SpecError, match=r"--listen 0\.0\.0\.0: people's tokens would travel"):
        open_console_certificate(settings("0.0.0.0"))
    with pytest.raises(SpecError, match="are no pair to serve with"):
        open_console_certificate(settings("0.0.0.0", tmp_path))
    assert open_console_certificate(settings("127.0.0.1")) is None


async def test_with_a_certificate_the_cookie_is_held_to_tls_and_to_this_host(tmp_path):
    from rollout.console.cluster.door import cookie_name
    from rollout.console.cluster.serve import build_cluster_app

    assert cookie_name(build_cluster_app(Answers(), (), secure=True)) == "__Host-rollout"
