"""What stands in the file of keys is checked when it is read: who was let in before goes on, and nobody else is let in."""

from __future__ import annotations

from itertools import product

import pytest
from reading_kit import rollout, told

from rollout.errors import SpecError
from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.service.refusals import CallRefused
from rollout.service.tenants.door import KEY_PREFIX, KeyDoor

WRONG = ["-1", "0", "1.5", "1e300", "9" * 400, "1000000000000001", '"7"', "true", "[]", "{}"]


@pytest.fixture
def keys(tmp_path):
    return KeyFile(tmp_path / "keys")


def spoil(keys, name, text):
    said = keys.path.read_text()
    assert f'"{name}":7' in said
    keys.path.write_text(said.replace(f'"{name}":7', f'"{name}":{text}'))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *product(("requests_per_minute", "tokens_per_minute", "in_flight_max"), WRONG),
        *product(
            ("training_tokens", "training_models", "training_bytes"),
            [one for one in WRONG if one != "0"],
        ),
    ],
)
def test_a_limit_that_is_no_number_from_one_is_named_and_the_file_not_taken(keys, name, text):
    key = keys.create("ann", KeyLimits(**{name: 7}), now=0.0, expires=None)
    door = KeyDoor(keys)
    assert getattr(door.key(KEY_PREFIX + key), name) == 7
    spoil(keys, name, text)
    assert getattr(door.key(KEY_PREFIX + key), name) == 7
    with pytest.raises(SpecError, match=rf"holds no keys.*{name}"):
        KeyDoor(keys)


def test_a_number_that_could_not_be_read_again_is_not_written(keys):
    key = keys.create("ann", KeyLimits(), now=0.0, expires=None)
    with pytest.raises(SpecError, match="requests_per_minute"):
        keys.create("bob", KeyLimits(requests_per_minute=10**40), now=0.0, expires=None)
    assert KeyDoor(keys).key(KEY_PREFIX + key).name == "ann"
    assert [one.name for one in keys.all_keys()] == ["ann"]


def test_a_file_that_others_may_read_is_not_taken_and_what_was_there_holds(keys):
    key = keys.create("ann", KeyLimits(), now=0.0, expires=None)
    door = KeyDoor(keys)
    door.key(KEY_PREFIX + key)
    keys.path.chmod(0o644)
    assert door.key(KEY_PREFIX + key).name == "ann"
    with pytest.raises(SpecError, match="others can read it"):
        KeyDoor(keys)


def test_keys_that_are_made_and_revoked_meanwhile_are_known_at_once(keys):
    door = KeyDoor(keys)
    key = keys.create("ann", KeyLimits(), now=0.0, expires=None)
    assert door.key(KEY_PREFIX + key).name == "ann"
    keys.revoke(key.split("-")[2])
    with pytest.raises(CallRefused, match="the key is not valid here"):
        door.key(KEY_PREFIX + key)


def test_limits_are_changed_and_taken_away_and_what_could_not_be_read_again_is_not_written(keys):
    key = keys.create("ann", KeyLimits(in_flight_max=3), now=0.0, expires=None)
    key_id, door = key.split("-")[2], KeyDoor(keys)
    keys.change(key_id, {"training_tokens": 0, "in_flight_max": None})
    assert (door.key(key).training_tokens, door.key(key).in_flight_max) == (0, None)
    for wrong in (-1, 10**16):
        with pytest.raises(SpecError, match="training_tokens"):
            keys.change(key_id, {"training_tokens": wrong})
    assert door.key(key).training_tokens == 0
    with pytest.raises(SpecError, match="there is no key 'nobody'"):
        keys.change("nobody", {"training_tokens": 1})


def test_the_command_makes_changes_and_tells_limits(keys, tmp_path):
    place = ("--keys", str(tmp_path / "keys"))
    key = rollout("infer", "keys", "create", "ann", "--training-tokens", "500", *place).strip()
    key_id, door = key.split("-")[2], KeyDoor(keys)
    assert door.key(key).training_tokens == 500
    said = rollout(
        "infer", "keys", "change", key_id, "--training-tokens", "9", "--in-flight", "2", *place
    )
    assert said.strip() == f"changed {key_id} (ann): in-flight 2, training-tokens 9"
    rollout("infer", "keys", "change", key_id, "--unlimited", "in-flight", *place)
    (row,) = told("infer", "keys", "list", *place)
    assert row["limits"] == "training-tokens 9"
    for words, why in (
        ((), "name what to change"),
        (("--unlimited", "days"), "--unlimited 'days': expected one of"),
        (("--unlimited", "in-flight", "--in-flight", "3"), "not given beside it"),
    ):
        with pytest.raises(SpecError, match=why):
            rollout("infer", "keys", "change", key_id, *words, *place)
