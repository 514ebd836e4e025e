"""QLoRA: what the learner computes with is what is served, whatever it holds in memory; adapters learn over it."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
import torch
from msgspec import structs
from row_kit import OFFLINE, make_rows
from safetensors.torch import load_file
from torch import nn

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.preference.dpo import DpoSettings
from rollout.errors import SpecError
from rollout.learner.config.preference import PairSettings
from rollout.learner.forward.packed_rows import GroupTokens, build_group_row, token_logprobs
from rollout.learner.loop import run_learner
from rollout.learner.model.adapter import (
    PROJECTIONS,
    AdapterOff,
    LoraSettings,
    add_adapter,
    build_lora,
    merged_weights,
    quantise_base,
)
from rollout.learner.model.four_bits import packing_of, quantise, restore
from rollout.learner.model.parallel import CPU, Parallel
from rollout.learner.model.policy import DTYPES, Policy, freeze, load_model
from rollout.protocol import messages as m
from rollout.types import Message
from rollout_api.v1alpha1.run import RolloutRunSpec

LORA = LoraSettings(rank=4, alpha=8, targets=("Attention", "Mlp"), quantization="NF4")
ROW = build_group_row([GroupTokens(prompt_ids=(5, 6, 7), completion_ids=((8, 9, 2), (10, 2)))])
NAMES = frozenset().union(*PROJECTIONS.values())
WIDEST_GAP = 0.304 / 2
"""Half the widest gap between two neighbours of NF4's table (-1 and -0.6962)."""


def logprobs(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return token_logprobs(model, ROW).logprobs_C


@pytest.fixture
def quantised(world):
    return replace(world, settings=replace(world.settings, lora=LORA))


def is_projection(name: str) -> bool:
    return name.split(".")[-2] in NAMES and name.endswith(".weight")


def test_step_0_serves_the_restored_model_not_the_files(quantised, model_path) -> None:
    served = quantised.parts(None).trainer.policy.weights()
    files = dict(load_model(model_path).named_parameters())
    assert {name: t.shape for name, t in served.items()} == {n: p.shape for n, p in files.items()}
    for name, given in files.items():
        if not is_projection(name):
            assert torch.equal(served[name], given)
            continue
        blocks = given.detach().reshape(-1, 64)
        error = (served[name].reshape(-1, 64) - blocks).abs().amax(1)
        assert (error <= WIDEST_GAP * blocks.abs().amax(1) + 1e-7).all()
        assert error.max() > 0


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_what_is_served_computes_what_the_learner_computes(
    quantised, model_path, coordinator, dtype
) -> None:
    world = replace(quantised, settings=replace(quantised.settings, dtype=dtype))
    parts = world.run(calls := coordinator(steps_max=3))
    served = load_file(parts.store.path(calls.records[3].version.object))
    assert {t.dtype for t in served.values()} == {DTYPES[dtype]}
    dense = load_model(model_path)
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            parameter.copy_(served[name])
    learner = parts.trainer.policy.model
    assert torch.equal(logprobs(freeze(dense, DTYPES[dtype])), logprobs(learner))
    assert not torch.equal(logprobs(AdapterOff(learner)), logprobs(learner))


@pytest.mark.parametrize("targets", [("Attention",), ("Attention", "Mlp")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_over_the_restored_dense_model(model_path, targets, dtype) -> None:
    settings = replace(LORA, targets=targets)
    packed, dense = load_model(model_path), load_model(model_path)
    quantise_base(packed, settings, dtype, CPU)
    for model in (packed, dense):
        add_adapter(model, settings, seed=1)
        Policy(model, dtype, Parallel())
    restored = merged_weights(packed)
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            if "lora_" not in name:
                parameter.copy_(restored[name.replace(".base_layer.", ".")])
    found, wanted = gradient_of(packed), gradient_of(dense)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def gradient_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of an adapter that already says something."""
    draw = torch.Generator().manual_seed(4)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for parameter in trained.values():
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=draw)
    token_logprobs(model, ROW).logprobs_C.sum().backward()
    return {name: p.grad for name, p in trained.items()}


def test_four_bits_and_a_half_are_held_and_no_dense_weight_is_kept(quantised) -> None:
    model = quantised.parts(None).trainer.policy.model
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    layers = [layer for layer in linear if packing_of(layer.weight)]
    assert len(layers) == 2 * 7
    values = sum(layer.in_features * layer.out_features for layer in layers)
    held = sum(
        layer.weight.nbytes + packing_of(layer.weight).state.absmax.nbytes for layer in layers
    )
    assert held * 8 == values * 4.5
    sizes = {layer.in_features * layer.out_features for layer in layers}
    kept = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        token_logprobs(model, ROW).logprobs_C.sum().backward()
    assert not [t.shape for t in kept if t.numel() in sizes and t.ndim == 2]


KL = GrpoSettings(kl_coefficient=0.1)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", *OFFLINE])
def test_a_kill_at_step_5_of_10_leads_to_the_same_chain(
    quantised, policy_settings, ppo_settings, coordinator, algorithm
) -> None:
    chosen = {"grpo": replace(policy_settings, loss=KL), "ppo": ppo_settings, **OFFLINE}[algorithm]
    world = replace(quantised, settings=replace(quantised.settings, algorithm=chosen))
    make = {"make": make_rows} if algorithm in OFFLINE else {}

    def live(calls, folder: str) -> None:
        parts = replace(world, folder=world.folder / folder).parts(calls)
        if parts.reference is not None:
            parts = replace(parts, reference=AdapterOff(parts.trainer.policy.model))
        run_learner(parts, parts.session.start(1, "here"), world.watch)

    live(calm := coordinator(steps_max=10, **make), "calm")
    live(calls := coordinator(steps_max=5, **make), "killed")
    assert calls.committed == 5
    del calls.anchors[-1]  # as after a kill: the last anchor lies some steps back
    calls.steps_max = 10
    live(calls, "killed")
    assert calls.records == calm.records
    assert not calls.forks


@pytest.mark.parametrize("shape", [(32, 48), (33, 200), (5, 7), (64, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_shape_is_restored_to_the_nearest_of_sixteen_values(shape, dtype) -> None:
    model = nn.ModuleDict({"q_proj": nn.Linear(*reversed(shape), bias=False)})
    given = model["q_proj"].weight.detach().to(dtype).float().flatten()
    quantise(model, NAMES, dtype, CPU)
    weight = model["q_proj"].weight
    restored = restore(weight, packing_of(weight))
    assert restored.shape == shape
    assert restored.dtype == dtype
    table = packing_of(weight).state.code
    assert len(table) == 16
    blocks = nn.functional.pad(given, (0, -len(given) % 64)).view(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    nearest = (table * scale)[:, None] - blocks[..., None]
    wanted = nearest.abs().amin(-1).flatten()[: len(given)]
    error = (restored.float().flatten() - given).abs()
    assert (error - wanted).abs().max() <= float(scale.max()) * (
        1e-6 + (dtype != torch.float32) / 2**8
    )


def swapped(step: int) -> m.Batch:
    batch = make_rows(step)
    rows = tuple(
        m.DataRow(
            ordinal=one.ordinal,
            row={**one.row, "chosen": one.row["rejected"], "rejected": one.row["chosen"]},
        )
        for one in batch.rows
    )
    return structs.replace(batch, rows=rows)


def test_an_adapter_learns_over_four_bits_and_the_control_learns_the_opposite(
    quantised, coordinator
) -> None:
    fast = replace(quantised.settings.optimizer, learning_rate=1e-2)
    pairs = PairSettings(loss=DpoSettings(beta=1.0), max_length=16)
    world = replace(
        quantised, settings=replace(quantised.settings, algorithm=pairs, optimizer=fast)
    )
    margins = []
    for name, make in (("right", make_rows), ("swapped", swapped)):
        calls = coordinator(steps_max=20, make=make)
        parts = replace(world, folder=world.folder / name).parts(calls)
        parts = replace(parts, reference=AdapterOff(parts.trainer.policy.model))
        run_learner(parts, parts.session.start(1, "here"), world.watch)
        first, last = calls.metrics[0], calls.metrics[-1]
        assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
        assert last["loss"] < 0.8 * first["loss"]
        margins.append(_prefers(parts.trainer.policy.model, parts.renderer))
    right, opposite = margins
    assert right > opposite + 0.5


def _prefers(model: nn.Module, renderer) -> float:
    """How much likelier a digit is than the question mark, in nats, after the first prompt."""
    prompt = renderer.render_prompt([Message(role="user", content="4+4=")])
    ids = [renderer.tokenizer.encode(text)[:1] for text in ("8", "?")]
    row = build_group_row([GroupTokens(prompt_ids=prompt, completion_ids=tuple(ids))])
    with torch.no_grad():
        digit, mark = token_logprobs(model, row).logprobs_C.tolist()
    return digit - mark


def config_of(**learner):
    spec = RolloutRunSpec.model_validate(
        {
            "model": {"uri": "rollout://tiny-qwen2", "lora": {"quantization": "NF4"}},
            "train": {"algorithm": {"sft": {}}, "data": {"jsonl": {"uri": "x.jsonl"}}},
            "learner": learner,
        }
    )
    return type("Config", (), {"spec": spec})


def test_shards_and_a_missing_library_are_refused_by_field(monkeypatch) -> None:
    assert build_lora(config_of(processesPerNode=2)).quantization == "NF4"
    with pytest.raises(SpecError, match=r"lora\.quantization: weights in 4 bits are not sharded"):
        build_lora(config_of(processesPerNode=2, strategy={"fsdp": {}}))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(SpecError, match=r"lora\.quantization: bitsandbytes is not installed"):
        build_lora(config_of())
