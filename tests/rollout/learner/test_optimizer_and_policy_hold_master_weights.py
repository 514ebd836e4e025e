"""Schedules by table, fp32 masters behind a bf16 policy, tied weights, the published digest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from rollout.learner.config.optimizer import OptimizerSettings, ScheduleSettings
from rollout.learner.model.optim import build_optimizer, learning_rate
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import Policy, load_model
from rollout.learner.publish import publish
from rollout.models.resolve import resolve_model
from rollout.objects.filesystem import FilesystemStore
from rollout.weights.digest import digest_tensors, load_weights
from rollout.weights.safetensors import safetensors_parts


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleSettings(), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (ScheduleSettings(warmup_steps=4), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        (ScheduleSettings(kind="linear", horizon_steps=5), [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        (
            ScheduleSettings(kind="linear", warmup_steps=2, horizon_steps=4, minimum_ratio=0.5),
            [0.5, 1.0, 0.75, 0.5, 0.5, 0.5],
        ),
        (
            ScheduleSettings(kind="cosine", horizon_steps=5),
            [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0, 0.0],
        ),
    ],
)
def test_schedules_follow_their_table(schedule, expected) -> None:
    got = [learning_rate(schedule, 1.0, step) for step in range(1, 7)]
    assert got == pytest.approx(expected, abs=1e-12)


@given(
    st.sampled_from(["constant", "cosine", "linear"]),
    st.integers(0, 20),
    st.integers(1, 50),
    st.floats(0, 1),
    st.integers(1, 100),
)
def test_the_rate_stays_between_zero_and_the_peak(kind, warmup, horizon, ratio, step) -> None:
    schedule = ScheduleSettings(
        kind=kind, warmup_steps=warmup, horizon_steps=horizon, minimum_ratio=ratio
    )
    assert 0 <= learning_rate(schedule, 2.0, step) <= 2.0 + 1e-12


def test_vectors_are_never_decayed() -> None:
    matrix, vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    settings = OptimizerSettings(kind="adamw", learning_rate=0.1, weight_decay=0.5)
    optimizer = build_optimizer([matrix, vector], settings)
    matrix.grad, vector.grad = torch.zeros(2, 2), torch.zeros(2)
    optimizer.step()
    # decoupled decay: 1 - 0.1 * 0.5
    assert torch.allclose(matrix, torch.full((2, 2), 0.95))
    assert torch.equal(vector, torch.ones(2))


@pytest.mark.parametrize("threads", [2])
def test_the_fused_update_does_not_depend_on_threads(threads) -> None:
    def run(num_threads: int) -> torch.Tensor:
        torch.set_num_threads(num_threads)
        draw = torch.Generator().manual_seed(1)
        parameter = torch.nn.Parameter(torch.randn(100_003, generator=draw))
        settings = OptimizerSettings(kind="adamw", learning_rate=0.1, weight_decay=0.1)
        optimizer = build_optimizer([parameter], settings)
        for _ in range(5):
            parameter.grad = torch.randn(100_003, generator=draw)
            optimizer.step()
        return parameter.detach()

    assert torch.equal(run(1), run(threads))


def test_the_fused_update_equals_adamw_by_hand() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    settings = OptimizerSettings(kind="adamw", learning_rate=0.1, epsilon=0.0)
    optimizer = build_optimizer([parameter], settings)
    parameter.grad = torch.tensor([3.0])
    optimizer.step()
    # first step: m_hat / sqrt(v_hat) = g / |g| = 1
    assert parameter.item() == pytest.approx(0.9)


@pytest.fixture
def low(model_path) -> Policy:
    return Policy(load_model(model_path), torch.bfloat16, Parallel())


def test_the_policy_is_the_cast_of_fp32_masters(low) -> None:
    assert {m.dtype for m in low.masters.values()} == {torch.float32}
    for name, parameter in low.model.named_parameters():
        assert torch.equal(parameter, low.masters[name].to(torch.bfloat16))
    frequencies = [b for n, b in low.model.named_buffers() if "inv_freq" in n]
    assert {b.dtype for b in frequencies} == {torch.float32}


def test_steps_too_small_for_bf16_still_add_up_in_the_masters(low) -> None:
    name = "model.norm.weight"
    master = low.masters[name]
    for _ in range(8):
        with torch.no_grad():
            master += 1e-3
        low.cast()
    served = low.weights()[name]
    assert served.dtype == torch.bfloat16
    assert torch.equal(served, torch.full_like(served, 1.0078125))


def test_gradients_of_a_bf16_model_are_summed_in_float32(low) -> None:
    low.zero_gradients()
    parameter = low.model.model.norm.weight
    for value in (1.0, 1e-3):
        (parameter.sum() * value).backward()
        assert parameter.grad is None
    gradient = low.masters["model.norm.weight"].grad
    expected = 1.0 + float(torch.tensor(1e-3, dtype=torch.bfloat16))
    assert gradient.tolist() == pytest.approx([expected] * 32, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_published_version_holds_what_the_forward_uses(model_path, tmp_path, dtype) -> None:
    policy = Policy(load_model(model_path), dtype, Parallel())
    store = FilesystemStore(tmp_path)
    version = publish(policy.weights(), store, lineage=2, step=5)
    assert (version.lineage, version.step) == (2, 5)
    tensors = load_weights(store.path(version.object))
    assert digest_tensors(tensors) == version.digest
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(tensors[name], parameter)


def test_parts_are_a_safetensors_file_whatever_the_dtype_and_shape() -> None:
    tensors = {
        "b": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),
        "a": torch.randn(3).to(torch.bfloat16),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 4),
        "bytes": torch.tensor([1, 2], dtype=torch.uint8),
    }
    loaded = load(b"".join(safetensors_parts(tensors)))
    assert set(loaded) == set(tensors)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert {name: t.dtype for name, t in loaded.items()} == {n: t.dtype for n, t in tensors.items()}


def test_tied_weights_are_published_once(tmp_path) -> None:
    uri = "rollout://tiny-qwen2?hidden=32&layers=1&heads=2&tied=1"
    model = load_model(resolve_model(uri, cache_dir=tmp_path).path)
    policy = Policy(model, torch.float32, Parallel())
    assert "lm_head.weight" not in policy.weights()
    assert "model.embed_tokens.weight" in policy.weights()


def test_a_bf16_run_resumes_to_the_same_chain(world, coordinator) -> None:
    world = replace(world, settings=replace(world.settings, dtype="BFloat16"))
    calm, calls = coordinator(steps_max=4), coordinator(steps_max=4)
    replace(world, folder=world.folder / "calm").run(calm)
    parts = world.parts(calls)
    from rollout.learner.loop import Watch, run_learner

    told = Watch(told_seconds=lambda: 60.0 if calls.committed == 2 else None)
    run_learner(parts, parts.session.start(1, "here"), told)
    assert calls.anchors[-1].step == 2
    world.run(calls)
    assert calls.records == calm.records
