"""The attention of the embedded engine in plain products, against the CPU's kernel; ``tests/gpu`` runs it on a GPU."""

from __future__ import annotations

import pytest
import torch

from rollout.engines.embedded import model as compact
from rollout.engines.embedded.cuda_attention import attend_in_products


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_plain_products_give_the_kernels_output_and_log_sum_exp(causal, heads, kv_heads):
    noise = torch.Generator().manual_seed(0)
    queries, keys = (7, 7) if causal else (3, 11)
    q = torch.randn(2, heads, queries, 16, generator=noise)
    k, v = torch.randn(2, 2, kv_heads, keys, 16, generator=noise)
    bias = None if causal else torch.zeros(2, 1, 1, keys)
    if bias is not None:
        bias[0, ..., 8:] = float("-inf")
    given = {"causal": causal, "bias": bias, "scale": 0.25}

    out, lse = attend_in_products(q, k, v, **given)
    right, right_lse = compact.attend(q, k, v, **given)

    assert (out - right).abs().max() <= 1e-5
    assert (lse - right_lse).abs().max() <= 1e-5
