"""LoRA: what moves, what actors are served, what an anchor holds, what the reference is, what PEFT can load."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from row_kit import OFFLINE, make_rows
from safetensors.torch import load_file

from rollout.algorithms.grpo import GrpoSettings
from rollout.errors import SpecError
from rollout.learner.forward.packed_rows import GroupTokens, build_group_row, token_logprobs
from rollout.learner.loop import run_learner
from rollout.learner.model.adapter import AdapterOff, LoraSettings, add_adapter
from rollout.learner.model.policy import DTYPES, freeze, load_model
from rollout.weights.digest import digest_tensors

LORA = LoraSettings(rank=4, alpha=8, targets=("Attention", "Mlp"))
ROW = build_group_row([GroupTokens(prompt_ids=(5, 6, 7), completion_ids=((8, 9, 2), (10, 2)))])


def logprobs(model) -> torch.Tensor:
    with torch.no_grad():
        return token_logprobs(model, ROW).logprobs_C


@pytest.fixture
def adapted(world):
    return replace(world, settings=replace(world.settings, lora=LORA))


@pytest.fixture
def base(model_path):
    return load_model(model_path)


def test_only_the_adapter_moves_and_begins_at_nothing(adapted, base, coordinator) -> None:
    parts = adapted.parts(coordinator(steps_max=0))
    masters = parts.trainer.policy.masters
    assert len(masters) == 2 * 2 * 7  # A and B of seven projections in two layers
    assert all("lora_" in name for name in masters)
    served = parts.trainer.policy.weights()
    assert {name: tuple(t.shape) for name, t in served.items()} == {
        name: tuple(p.shape) for name, p in base.named_parameters()
    }
    assert all(torch.equal(served[name], p) for name, p in base.named_parameters())
    seeds = [adapted, adapted, replace(adapted, settings=replace(adapted.settings, seed=8))]
    one, again, other = (w.parts(None).trainer.policy.full_masters() for w in seeds)
    name = next(n for n in one if "lora_A" in n)
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], other[name])


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_what_is_served_computes_what_the_learner_computes(
    adapted, base, coordinator, dtype
) -> None:
    world = replace(adapted, settings=replace(adapted.settings, dtype=dtype))
    parts = world.run(calls := coordinator(steps_max=3))
    served = load_file(parts.store.path(calls.records[3].version.object))
    assert {t.dtype for t in served.values()} == {DTYPES[dtype]}
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            parameter.copy_(served[name])
    dense = freeze(base, DTYPES[dtype])
    assert torch.equal(logprobs(dense), logprobs(parts.trainer.policy.model))
    start = freeze(load_model(world.model_path), DTYPES[dtype])
    assert (logprobs(dense) - logprobs(start)).abs().max() > 1e-3


def test_the_reference_is_the_model_with_its_adapter_off(adapted, base, coordinator) -> None:
    parts = adapted.run(coordinator(steps_max=3))
    model = parts.trainer.policy.model
    assert torch.equal(logprobs(AdapterOff(model)), logprobs(base))
    assert not torch.equal(logprobs(model), logprobs(base))
    assert all(p.requires_grad == ("lora_" in name) for name, p in model.named_parameters())


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_an_anchor_holds_the_adapter_and_a_resume_meets_the_chain(
    adapted, ppo_settings, coordinator, algorithm
) -> None:
    world = adapted
    if algorithm == "ppo":
        world = replace(world, settings=replace(world.settings, algorithm=ppo_settings))
    calm = coordinator(steps_max=5)
    replace(world, folder=world.folder / "calm").run(calm)
    calls = coordinator(steps_max=2)
    world.run(calls)
    anchored = load_file(world.parts(None).store.path(calls.anchors[-1].objects["weights"]))
    assert all("lora_" in name for name in anchored)
    calls.anchors.clear()
    for steps in (4, 5):
        calls.steps_max = steps
        world.run(calls)
    assert calls.records == calm.records
    assert not calls.forks


def test_for_vllm_a_version_is_the_adapter_itself_and_a_resume_meets_the_chain(
    adapted, coordinator
) -> None:
    world = replace(adapted, settings=replace(adapted.settings, lora=replace(LORA, served=True)))
    calm = coordinator(steps_max=4)
    parts = replace(world, folder=world.folder / "calm").run(calm)
    version = calm.records[4].version
    stored = load_file(parts.store.path(version.object))
    assert digest_tensors(stored) == version.digest
    left = load_file(world.folder / "calm" / "adapter" / "adapter_model.safetensors")
    assert stored.keys() == left.keys()
    assert all(torch.equal(stored[name], left[name]) for name in left)
    assert {t.dtype for t in stored.values()} == {torch.float32}

    calls = coordinator(steps_max=2)
    world.run(calls)
    calls.anchors.clear()
    calls.steps_max = 4
    world.run(calls)
    assert calls.records == calm.records
    assert not calls.forks


def test_peft_loads_what_a_run_leaves(adapted, coordinator, model_path) -> None:
    from peft import PeftModel

    parts = adapted.run(coordinator(steps_max=2))
    loaded = PeftModel.from_pretrained(load_model(model_path), str(adapted.folder / "adapter"))
    gap = logprobs(loaded) - logprobs(parts.trainer.policy.model)
    assert gap.abs().max() < 2e-6


def test_the_adapters_gradient_is_pefts(adapted, model_path) -> None:
    """The layer's own backward, in low rank, against autograd through PEFT's forward."""
    from peft.tuners.lora import Linear

    found = []
    for own in (True, False):
        model = load_model(model_path)
        add_adapter(model, LORA, seed=1)
        draw = torch.Generator().manual_seed(4)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = 0.1 * torch.randn(parameter.shape, generator=draw)
        for module in model.modules():
            if isinstance(module, Linear) and not own:
                del module.forward
        token_logprobs(model, ROW).logprobs_C.sum().backward()
        parts = [p.grad.flatten() for _, p in model.named_parameters() if p.requires_grad]
        found.append(torch.cat(parts))
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-5


def test_a_model_without_such_projections_is_refused() -> None:
    odd = torch.nn.Sequential(torch.nn.Linear(3, 3))
    with pytest.raises(SpecError, match=r"spec\.model\.lora\.targets: Sequential has none"):
        add_adapter(odd, LORA, seed=0)


def test_a_run_does_not_feel_which_reference_it_has(adapted, policy_settings, coordinator) -> None:
    algorithm = replace(policy_settings, loss=GrpoSettings(kl_coefficient=0.1))
    world = replace(adapted, settings=replace(adapted.settings, algorithm=algorithm))
    chains = []
    for name in ("copy", "switch"):
        calls = coordinator(steps_max=3)
        parts = replace(world, folder=world.folder / name).parts(calls)
        if name == "switch":
            parts = replace(parts, reference=AdapterOff(parts.trainer.policy.model))
        run_learner(parts, parts.session.start(1, "here"), world.watch)
        chains.append(calls.chain())
    assert chains[0] == chains[1]


@pytest.mark.parametrize("algorithm", OFFLINE)
def test_learning_from_rows_takes_an_adapter_too(adapted, coordinator, algorithm) -> None:
    settings = replace(adapted.settings, algorithm=OFFLINE[algorithm])
    world = replace(adapted, settings=settings)
    calm = coordinator(steps_max=4, make=make_rows)
    parts = replace(world, folder=world.folder / "calm").run(calm)
    trained = parts.trainer.policy.masters
    assert {name for name in trained if "lora_" not in name} == (
        {"score.weight"} if algorithm == "rm" else set()
    )
    calls = coordinator(steps_max=3, make=make_rows)
    world.run(calls)
    calls.steps_max = 4
    world.run(calls)
    assert calls.records == calm.records
    assert (world.folder / "adapter" / "adapter_config.json").is_file()
