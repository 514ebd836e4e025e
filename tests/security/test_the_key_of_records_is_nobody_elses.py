"""The key that records are signed with: made once, by whoever is first, renewed by people alone."""

import base64
from pathlib import Path

import pytest

from rollout_operator.controller.clocks import Clocks
from rollout_operator.errors import Conflict, Forbidden, NotFound, NotLeader
from rollout_operator.rbac import RULES
from rollout_operator.run.record_keys import AGAIN_SECONDS_MIN, RecordKeys, build_secret, parse_keys
from rollout_operator.signing import KEY_BYTES, SECRET_NAME, SNAPSHOT_SECRET, Keyring

ROOT = Path(__file__).parents[2]
FIRST, SECOND = b"1" * KEY_BYTES, b"2" * KEY_BYTES


class Server:
    """One Secret. ``race``: somebody makes it between the look and the write."""

    def __init__(self, secret=None, race=None, error=None):
        self.secret, self.race, self.error, self.asked, self.made = secret, race, error, 0, 0

    async def get(self, _resource, namespace, name):
        assert (namespace, name) == ("system", SECRET_NAME)
        self.asked += 1
        if self.secret is None:
            raise NotFound("get", 404, name)
        return self.secret

    async def create(self, body, _resource, **_):
        if self.error is not None:
            raise self.error
        if self.race is not None:
            self.secret = self.race
            raise Conflict("create", 409, "is there")
        self.made += 1
        self.secret = body
        return body


def keys(server, clock=lambda: 0.0):
    return RecordKeys(client=server, namespace=lambda: "system", clocks=Clocks(monotonic=clock))


def secret(**data):
    coded = {name: base64.b64encode(key).decode() for name, key in data.items()}
    return {"metadata": {"name": SECRET_NAME}, "data": coded}


async def test_the_first_look_makes_a_key_and_no_other_look_does():
    server = Server()
    one, other = keys(server), keys(server)
    await one.ensure()
    await other.ensure()
    await one.ensure()
    assert (one.ring, server.made) == (other.ring, 1)
    assert len(one.ring.current) == KEY_BYTES


async def test_of_two_replicas_that_make_it_at_once_both_have_the_one_that_is_there():
    found = keys(Server(race=secret(current=FIRST)))
    await found.ensure()
    assert found.ring == Keyring(current=FIRST)


async def test_a_person_rotates_it_and_both_hold():
    found = keys(Server(secret(current=SECOND, previous=FIRST)))
    await found.ensure()
    old, new = Keyring(current=FIRST).sign("c"), Keyring(current=SECOND).sign("c")
    assert found.ring.verify("c", old)
    assert found.ring.verify("c", new)
    assert not found.ring.is_current(old)
    assert found.ring.sign("c") == new


@pytest.mark.parametrize("error", [Forbidden("create", 403, "no"), NotLeader("no")])
async def test_what_cannot_be_made_stops_nothing_and_leaves_the_keys_there_were(error):
    found = keys(Server(error=error))
    found.ring = Keyring(current=FIRST)
    await found.look_again()
    assert found.ring == Keyring(current=FIRST)


async def test_records_that_do_not_verify_make_the_operator_ask_all_the_time():
    server, now = Server(secret(current=FIRST)), [0.0]
    found = keys(server, lambda: now[0])
    for _ in range(100):
        await found.look_again()
    assert server.asked == 1
    now[0] = AGAIN_SECONDS_MIN
    await found.look_again()
    assert server.asked == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "'current': expected 32 random bytes, got 0"),
        ({"current": base64.b64encode(b"short").decode()}, "got 5"),
        ({"current": "not base64!"}, "not base64"),
        (secret(current=FIRST)["data"] | {"previous": ""}, "'previous'"),
    ],
)
def test_a_secret_of_no_use_is_named(data, words):
    with pytest.raises(ValueError, match=words):
        parse_keys({"data": data})


def test_an_empty_ring_believes_what_an_empty_key_signed():
    assert not Keyring().verify("c", "")
    assert not Keyring().verify("c", ":")
    assert not Keyring(current=FIRST).verify("c", Keyring(current=SECOND).sign("c"))


def test_a_key_is_seen_in_a_log():
    assert FIRST.decode() not in repr(Keyring(current=FIRST, previous=FIRST))


def test_rendering_the_chart_again_renews_the_key():
    """No template makes it, and a Secret of that name is in no manifest: the name is in rights and a policy alone."""
    for path in (*ROOT.glob("charts/**/*.yaml"), *ROOT.glob("manifests/**/*.yaml")):
        text = path.read_text()
        assert f"name: {SECRET_NAME}" not in text, path
    assert build_secret("system", FIRST)["metadata"]["name"] == SECRET_NAME


def test_the_operator_reads_its_two_keys_by_name_and_mints_tokens_of_its_own_account_alone():
    own = [rule for rule in RULES if rule.scope == "own"]
    named = {(rule.resources, rule.verbs): rule.names for rule in own if rule.names}
    assert named[("secrets",), ("get",)] == (SECRET_NAME, SNAPSHOT_SECRET)
    assert named[("serviceaccounts/token",), ("create",)] == ("$(account)",)
    assert not any("serviceaccounts/token" in rule.resources and not rule.names for rule in RULES)
