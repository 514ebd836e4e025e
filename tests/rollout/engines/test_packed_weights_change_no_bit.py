"""Weights are packed for the kernel while a batch of few samples is decoded; in Exact nobody can tell."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.engines.embedded import model as compact
from rollout.engines.embedded.steps import packed
from rollout.engines.embedded.steps.packed import agrees, can_pack, pack_weight

HAS_KERNEL = can_pack(torch.zeros(2, 2), 2)
needs_kernel = pytest.mark.skipif(
    not HAS_KERNEL, reason="this build of torch has no packed products"
)


@pytest.fixture
def packs(monkeypatch):
    """The numbers of columns that weights were packed for."""
    seen = []

    def note(weight, columns):
        seen.append(columns)
        return pack_weight(weight, columns)

    monkeypatch.setattr(compact, "pack_weight", note)
    return seen


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [2, 3, 7, 12])
async def test_samples_are_bit_for_bit_those_of_plain_products(
    size, threads, tiny_model, start_engine, request_of, packs, monkeypatch
):
    model = tiny_model("qwen2")
    asked = [request_of(9, size=size, seed=1, max_new_tokens=3 * size, stop_token_ids=(3,))]
    engine = await start_engine(model, num_threads=threads)
    found = await engine.generate(asked)
    assert packs
    packs.clear()

    monkeypatch.setattr(packed, "COLUMNS_MAX", 1)
    plain = await start_engine(model, num_threads=threads)
    assert await plain.generate(asked) == found
    assert not packs


@needs_kernel
async def test_a_build_whose_packed_products_differ_packs_nothing_in_exact(
    tiny_model, start_engine, request_of, packs, monkeypatch
):
    monkeypatch.setattr(compact, "agrees", lambda _weight, _columns: False)
    asked = [request_of(9, size=2, seed=1, max_new_tokens=16)]
    await (await start_engine(tiny_model("llama"))).generate(asked)
    assert not packs

    await (await start_engine(tiny_model("llama"), exact=False)).generate(asked)
    assert set(packs) == {2}


@needs_kernel
@pytest.mark.parametrize("exact", [True, False])
async def test_the_next_version_is_sampled_from_its_own_weights(
    exact, tiny_model, start_engine, publish_model, request_of, tmp_path
):
    asked = [request_of(9, size=3, seed=1, max_new_tokens=24)]
    engine = await start_engine(tiny_model("qwen2", seed=0), exact=exact)
    await engine.generate(asked)
    version, weights = publish_model(tiny_model("qwen2", seed=1), tmp_path / "next", step=2)
    await engine.load(version, weights)

    fresh = await start_engine(tiny_model("qwen2", seed=1), exact=exact)
    [[mine, *_]], [[other, *_]] = await engine.generate(asked), await fresh.generate(asked)
    assert mine.token_ids == other.token_ids


@needs_kernel
@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 300), columns=st.integers(1, 300), count=st.integers(2, 12))
def test_a_packed_product_is_the_product(rows, columns, count):
    noise = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, columns, generator=noise)
    x = torch.randn(columns, count, generator=noise)
    found = pack_weight(weight, count).times(x)
    torch.testing.assert_close(found, weight @ x, rtol=1e-4, atol=1e-4)
    if agrees(weight, count):
        assert torch.equal(found, torch.mm(weight, x))


@pytest.mark.parametrize(
    ("weight", "columns"),
    [
        (torch.zeros(4, 4), 1),
        (torch.zeros(4, 4), packed.COLUMNS_MAX + 1),
        (torch.zeros(4, 4, dtype=torch.bfloat16), 2),
        (torch.zeros(4, 4, device="meta"), 2),
    ],
)
def test_what_the_kernel_does_not_take_stays_plain(weight, columns):
    assert not can_pack(weight, columns)
