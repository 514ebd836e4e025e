"""An adapter version becomes a dense model in float32, once, and the same one that the learner computed with."""

import pytest
import torch

from rollout.errors import StoreError
from rollout.learner.model.adapter import merge
from rollout.weights.digest import load_weights, save_weights
from rollout.weights.lora import A, B
from rollout.weights.merging import merge_adapter

Q, NORM = "model.layers.0.self_attn.q_proj", "model.norm.weight"
SCALE = 2.0


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def write(folder, dtype, layer=Q):
    base = {f"{Q}.weight": draw(24, 16).to(dtype), NORM: draw(16).to(dtype)}
    adapter = {
        f"base_model.model.{layer}{A}": draw(4, 16),
        f"base_model.model.{layer}{B}": draw(24, 4),
    }
    save_weights(base, folder / "base.safetensors")
    save_weights(adapter, folder / "adapter.safetensors")
    return base, adapter


def merged(folder):
    bases = sorted(folder.glob("base*.safetensors"))
    return load_weights(merge_adapter(bases, folder / "adapter.safetensors", SCALE, folder))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_sum_is_the_learners_and_nothing_else_moves(tmp_path, dtype):
    base, adapter = write(tmp_path, dtype)
    a, b = adapter.values()

    found = merged(tmp_path)

    wanted = merge(base[f"{Q}.weight"], a, b, SCALE)
    assert found[f"{Q}.weight"].dtype == dtype
    torch.testing.assert_close(found[f"{Q}.weight"], wanted)
    assert torch.equal(found[NORM], base[NORM])
    assert torch.equal(load_weights(tmp_path / "base.safetensors")[NORM], base[NORM])


def test_an_adapter_of_another_model_is_refused(tmp_path):
    write(tmp_path, torch.float32, layer="model.layers.7.mlp.up_proj")

    with pytest.raises(StoreError, match=r"changes model\.layers\.7\.mlp\.up_proj\.weight"):
        merged(tmp_path)


def test_a_base_in_several_files_is_merged_as_one(tmp_path):
    base, _ = write(tmp_path, torch.bfloat16)
    whole = merged(tmp_path)
    (tmp_path / "merged.safetensors").unlink()
    (tmp_path / "base.safetensors").unlink()
    for number, (name, tensor) in enumerate(base.items()):
        save_weights({name: tensor}, tmp_path / f"base-{number}.safetensors")

    found = merged(tmp_path)

    assert set(found) == set(whole)
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


def test_a_base_without_weights_is_refused(tmp_path):
    write(tmp_path, torch.float32)
    (tmp_path / "base.safetensors").unlink()

    with pytest.raises(StoreError, match="the model that it is merged into has no weights"):
        merged(tmp_path)
