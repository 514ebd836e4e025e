from dataclasses import replace

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from ledger_kit import trajectory

from rollout.codec import (
    canonical_bytes,
    decode_body,
    decode_columns,
    decode_outline,
    decode_sample,
    encode_body,
    name_trajectory,
)
from rollout.errors import LedgerError
from rollout.types import Trajectory

REWARDS = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=4)


@given(REWARDS, st.floats(allow_nan=False), st.text(max_size=20))
def test_a_name_survives_the_wire_and_the_store(rewards, reward, text):
    made = replace(trajectory(3, 1), rewards=rewards, reward=reward, text=text)
    wired = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Trajectory)
    assert name_trajectory(wired) == name_trajectory(made)
    assert decode_body(encode_body([made, wired]))[1] == wired


def test_how_long_it_took_the_order_of_rewards_and_what_made_it_do_not_matter():
    made = replace(trajectory(0, 0), rewards={"a": 1.0, "b": 2.0})
    other = replace(
        made, rewards={"b": 2, "a": 1}, timings={"generate": 3.5}, plugins={"marks": "blake3:12"}
    )
    assert canonical_bytes(other) == canonical_bytes(made)


@pytest.mark.parametrize(
    "change",
    [{"sample": 1}, {"token_ids": (3, 9)}, {"reward": 0.5}, {"ending": "length"}, {"answer": "7"}],
)
def test_any_other_difference_is_another_name(change):
    made = trajectory(0, 0)
    assert name_trajectory(replace(made, **change)) != name_trajectory(made)


def test_the_name_never_changes_between_versions():
    assert (
        name_trajectory(trajectory(5, 1))
        == "blake3:9beda0c987473a5d52c50f3fd133777aa48074239cc271aa1650726f445551a4"
    )


def test_a_broken_body_is_told():
    body = encode_body([trajectory(0, 0)])
    for broken in (b"", b"nonsense", body[:-3]):
        with pytest.raises(LedgerError, match="cannot be read"):
            decode_body(broken)
        for decode in (decode_sample, decode_outline, decode_columns):
            with pytest.raises(LedgerError, match="cannot be read"):
                decode(broken, 0)


@pytest.mark.parametrize("plugins", [msgspec.UNSET, {"marks": "blake3:12"}])
def test_a_sample_is_read_in_outline_and_in_columns_as_it_is_whole(plugins):
    made = replace(trajectory(0, 1), plugins=plugins)
    body = encode_body([trajectory(0, 0), made])
    whole, outline, columns = (
        decode(body, 1) for decode in (decode_sample, decode_outline, decode_columns)
    )
    assert whole == made
    for name in outline.__struct_fields__:
        assert getattr(outline, name) == getattr(whole, name)
    for name in ("prompt_ids", "token_ids", "actor_logprobs", "loss_mask", "spans"):
        assert tuple(getattr(columns, name)) == getattr(whole, name)
    assert decode_outline(body, 2) is None


def test_numbers_that_no_column_holds_are_damage():
    for wrong in ({"token_ids": (1 << 63,)}, {"loss_mask": (256,)}):
        with pytest.raises(LedgerError, match="cannot be read"):
            decode_columns(encode_body([replace(trajectory(0, 0), **wrong)]), 0)
