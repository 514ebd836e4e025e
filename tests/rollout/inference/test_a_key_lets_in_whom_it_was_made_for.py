"""Keys: only a keyed hash is kept, in a file of 0600; expiry, revocation and scope hold."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.errors import SpecError
from rollout.inference.gateway.keys import KeyFile, KeyLimits, KeyRefused, KeyRing


@pytest.fixture
def keys(tmp_path):
    return KeyFile(tmp_path / "keys")


def test_a_new_key_is_known_and_its_secret_is_nowhere(keys, tmp_path):
    key = keys.create("ann", KeyLimits(), now=1.0, expires=None)
    secret = key.split("-", 3)[3]
    assert keys.read().identify(f"Bearer {key}", 2.0).name == "ann"
    assert len(secret) == 43
    for file in (tmp_path / "keys").iterdir():
        assert secret not in file.read_text()


def test_the_files_are_read_by_their_owner_only(keys, tmp_path):
    keys.create("ann", KeyLimits(), now=1.0, expires=None)
    for name in ("keys.json", "keys.secret"):
        assert stat.S_IMODE((tmp_path / "keys" / name).stat().st_mode) == 0o600


def test_a_file_that_others_can_read_is_refused(keys):
    keys.create("ann", KeyLimits(), now=1.0, expires=None)
    keys.path.chmod(0o644)
    with pytest.raises(SpecError, match="others can read it"):
        keys.read()


def test_an_expired_key_begins_nothing_but_what_it_began_goes_on(keys):
    key = keys.create("ann", KeyLimits(), now=1.0, expires=10.0)
    ring = keys.read()
    known = ring.identify(f"Bearer {key}", 9.9)
    with pytest.raises(KeyRefused):
        ring.identify(f"Bearer {key}", 10.0)
    assert ring.keeps(known.id)


def test_a_revoked_key_keeps_nothing(keys):
    key = keys.create("ann", KeyLimits(), now=1.0, expires=None)
    known = keys.read().identify(f"Bearer {key}", 2.0)
    keys.revoke(known.id)
    ring = keys.read()
    assert not ring.keeps(known.id)
    with pytest.raises(KeyRefused):
        ring.identify(f"Bearer {key}", 2.0)


def test_the_refusal_says_nothing_of_which_part_was_wrong(keys):
    key = keys.create("ann", KeyLimits(), now=1.0, expires=None)
    ring, said = keys.read(), set()
    wrong = ("A" if key[-1] != "A" else "B").join((key[:-1], ""))
    unknown = key.replace(key.split("-")[2], "0" * 16)
    for one in (wrong, unknown):
        with pytest.raises(KeyRefused) as refused:
            ring.identify(f"Bearer {one}", 2.0)
        said.add(str(refused.value))
    assert len(said) == 1
    assert key not in said.pop()


def test_two_keys_have_two_salts_and_one_key_one(keys):
    first, second = (keys.create(name, KeyLimits(), now=1.0, expires=None) for name in "ab")
    ring = keys.read()
    a, b = (ring.identify(f"Bearer {one}", 2.0) for one in (first, second))
    assert ring.salt(a) == keys.read().salt(a) != ring.salt(b)


@given(
    st.text() | st.from_regex(r"Bearer sk-rollout-[0-9a-f]{16}-[A-Za-z0-9_-]{43}", fullmatch=True)
)
def test_no_other_header_is_anybody(header):
    with pytest.raises(KeyRefused):
        KeyRing({}, b"secret").identify(header, 0.0)
