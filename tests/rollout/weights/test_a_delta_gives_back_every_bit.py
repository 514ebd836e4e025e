"""Sparse weight deltas: bit-exact for anything a tensor may hold, small where little changed, never large."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp

from rollout.weights import changes, delta
from rollout.weights.changes import find_changes, positions_of
from rollout.weights.delta import DeltaBroken, apply_delta, encode_delta, read_header
from rollout.weights.safetensors import raw_tensors

BASES = ("blake3:" + "0" * 64,)
WIDTHS = [np.uint8, np.uint16, np.uint32, np.uint64]


def joined(parts):
    return memoryview(b"".join(parts))


def after(old, parts):
    mirror = {name: bits.copy() for name, bits in old.items()}
    apply_delta(mirror, joined(parts))
    return mirror


def assert_equal(left, right):
    assert sorted(left) == sorted(right)
    for name in left:
        assert np.array_equal(left[name], right[name]), name


@st.composite
def versions(draw):
    """Tensors of every element size, any bits, some elements, none or all of them changed."""
    old, new = {}, {}
    for index in range(draw(st.integers(0, 4))):
        width = draw(st.sampled_from(WIDTHS))
        size = draw(st.integers(0, 300))
        bits = draw(hnp.arrays(width, size))
        changed = bits.copy()
        for position in draw(st.lists(st.integers(0, size - 1), max_size=40)) if size else ():
            changed[position] = draw(hnp.from_dtype(np.dtype(width)))
        old[f"t{index}"], new[f"t{index}"] = bits, changed
    return old, new


@given(versions(), st.sampled_from([0.0, 0.1, 1.0]))
def test_any_bits_come_back(pair, density_max):
    old, new = pair
    before = {name: bits.copy() for name, bits in old.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "DENSITY_MAX", density_max)
        parts = encode_delta(old, new, BASES)
    assert_equal(after(old, parts), new)
    assert_equal(old, before)


@given(versions())
def test_applying_twice_is_applying_once(pair):
    old, new = pair
    parts = encode_delta(old, new, BASES)
    assert_equal(after(after(old, parts), parts), new)


@given(
    st.sampled_from(WIDTHS),
    st.integers(1, 5),
    st.lists(st.integers(0, 2**20), max_size=30),
    st.data(),
)
def test_changes_are_found_across_chunks_and_at_both_ends(width, chunk, places, data):
    size = data.draw(st.integers(1, 400))
    old = np.zeros(size, width)
    new = old.copy()
    places = sorted({place % size for place in [*places, 0, size - 1]})
    new[places] = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "CHUNK_WORDS", chunk)
        found = find_changes(old, new, density_max=1.0)
    assert positions_of(found.gaps_K).tolist() == places
    assert found.values_K.tolist() == [1] * len(places)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bits_that_are_no_ordinary_numbers_are_kept(dtype):
    bits = {torch.float32: torch.int32}.get(dtype, torch.int16)
    width = torch.tensor([], dtype=bits).element_size() * 8
    patterns = torch.randint(-(2 ** (width - 1)), 2 ** (width - 1), (4096,), dtype=bits)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")], dtype=dtype)
    old = torch.cat([special.view(bits), patterns]).view(dtype)
    new = old.clone()
    new.view(bits)[0] = torch.tensor(-0.0, dtype=dtype).view(bits)  # 0.0 -> -0.0
    new.view(bits)[4] ^= 1  # another NaN
    new.view(bits)[100:140] ^= torch.arange(40, dtype=bits)
    parts = encode_delta(raw_tensors({"w": old}), raw_tensors({"w": new}), BASES)
    mirror = old.clone()
    apply_delta(raw_tensors({"w": mirror}), joined(parts))
    assert torch.equal(mirror.view(bits), new.view(bits))
    assert read_header(joined(parts))[0].tensors[0].num_changes == 41


def scattered(num, width, share, seed=0):
    rng = np.random.default_rng(seed)
    numbers = torch.from_numpy(rng.standard_normal(num, dtype=np.float32) * 0.02)
    dtype = torch.bfloat16 if width == 2 else torch.float32
    old = raw_tensors({"w": numbers.to(dtype)})["w"]
    new = old.copy()
    places = rng.random(num) < share
    fresh = torch.from_numpy(rng.standard_normal(num, dtype=np.float32) * 0.02).to(dtype)
    new[places] = raw_tensors({"w": fresh})["w"][places]
    return {"w": old}, {"w": new}


@pytest.mark.parametrize(
    ("width", "share", "factor"), [(2, 0.01, 75), (4, 0.01, 80), (2, 0.001, 500), (2, 0.05, 15)]
)
def test_few_changes_are_a_small_object(width, share, factor):
    old, new = scattered(2_000_000, width, share)
    parts = encode_delta(old, new, BASES)
    assert sum(map(len, parts)) * factor < 2_000_000 * width
    assert_equal(after(old, parts), new)


@pytest.mark.parametrize("share", [0.09, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("width", [2, 4])
def test_many_changes_never_make_it_larger_than_the_tensors(width, share):
    old, new = scattered(200_000, width, share)
    parts = encode_delta(old, new, BASES)
    assert sum(map(len, parts)) <= 1.01 * 200_000 * width
    assert_equal(after(old, parts), new)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_damage_is_an_error_or_is_seen_in_the_result_and_writes_nothing(place, bit):
    old, new = scattered(5000, 2, 0.02)
    data = bytearray(joined(encode_delta(old, new, BASES)))
    data[place % len(data)] ^= 1 << bit
    mirror = {"w": old["w"].copy()}
    try:
        apply_delta(mirror, memoryview(bytes(data)))
    except DeltaBroken:
        assert_equal(mirror, old)


@pytest.mark.parametrize("cut", [0, 5, 11, 40, 200, -1])
def test_a_delta_cut_short_is_refused(cut):
    old, new = scattered(5000, 2, 0.02)
    data = joined(encode_delta(old, new, BASES))[:cut]
    with pytest.raises(DeltaBroken):
        apply_delta({"w": old["w"].copy()}, data)


def test_a_delta_of_another_model_is_refused():
    old, new = scattered(5000, 2, 0.02)
    data = joined(encode_delta(old, new, BASES))
    for other in ({}, {"w": old["w"][:-1].copy()}, {"w": old["w"].view(np.uint8).copy()}):
        with pytest.raises(DeltaBroken, match="tensor w"):
            apply_delta(other, data)


def test_two_versions_of_different_tensors_have_no_delta():
    with pytest.raises(ValueError, match="same tensors"):
        encode_delta({"a": np.zeros(3, np.uint8)}, {"b": np.zeros(3, np.uint8)}, BASES)
