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
from rollout.types import Branch, ExpertRoutes, Trajectory, VersionSpan

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


ROW = Branch(
    prompt_ids=(1, 2),
    token_ids=(7, 8),
    actor_logprobs=(0.0, -0.5),
    loss_mask=(0, 1),
    spans=(VersionSpan(start=1, end=2, lineage=0, step=3),),
)
ROUTES = ExpertRoutes(num_layers=1, top_k=1, wide=False, chosen=b"\0\1\0")
BRANCHED = replace(trajectory(5, 1), branches=(ROW, replace(ROW, token_ids=(9, 8))))


@pytest.mark.parametrize(
    "change",
    [
        {"branches": msgspec.UNSET},
        {"branches": BRANCHED.branches[::-1]},
        {"branches": BRANCHED.branches[:1]},
        {"branches": (replace(ROW, prompt_ids=(1, 3)), BRANCHED.branches[1])},
        {"branches": (replace(ROW, actor_logprobs=(0.0, -0.6)), BRANCHED.branches[1])},
        {"branches": (replace(ROW, loss_mask=(1, 1)), BRANCHED.branches[1])},
        {"branches": (replace(ROW, spans=()), BRANCHED.branches[1])},
        {"branches": (replace(ROW, routes=ROUTES), BRANCHED.branches[1])},
        {"routes": ROUTES},
    ],
)
def test_rows_of_an_episode_are_part_of_its_name(change):
    assert name_trajectory(replace(BRANCHED, **change)) != name_trajectory(BRANCHED)


def test_an_episode_of_several_rows_survives_the_store_under_the_name_that_it_will_always_have():
    (again,) = decode_body(encode_body([BRANCHED]))
    assert again == BRANCHED
    assert name_trajectory(again) == (
        "blake3:4e0e5e843a970d4d637fc8dd7c7d4be383f4dc5ee20eaff00c2fe56afee89b7f"
    )
    assert decode_columns(encode_body([BRANCHED]), 1).num_rows == 3
    assert decode_columns(encode_body([trajectory(5, 1)]), 1).num_rows == 1


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
