"""A LoRA run's versions are adapters: one name each in the server, hashed, and what the learner computes with."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from rollout.engines.vllm.command import AdapterSettings
from rollout.engines.vllm.engine import VllmEngine
from rollout.errors import EngineError
from rollout.learner.model.adapter import LoraSettings, adapter_tensors, add_adapter, merged_weights
from rollout.models.resolve import resolve_model
from rollout.types import WeightVersion
from rollout.weights.digest import digest_tensors, save_weights
from rollout.weights.verify import FLOAT32_GAP_MAX, max_logprob_gap, plain_logprobs

from .conftest import Policies, Policy, ask, load_sharp, settings_for

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("vllm"),
]

LORA = LoraSettings(rank=4, alpha=8, targets=("Attention", "Mlp"))
SLOTS = 3
NUM_VERSIONS = SLOTS + 2


@pytest.fixture(scope="session")
def adapters(tmp_path_factory) -> tuple[Path, list[Policy]]:
    """A model folder, and versions of one adapter over it; the first changes nothing."""
    folder = tmp_path_factory.mktemp("adapters")
    source = resolve_model("rollout://tiny-qwen2?tied=0", cache_dir=folder).path
    base = load_sharp(source)
    model_dir = folder / "base"
    shutil.copytree(source, model_dir)
    save_weights(base.state_dict(), model_dir / "model.safetensors")
    add_adapter(base, LORA, seed=3)
    return model_dir, [publish(base, model_dir, step, folder) for step in range(NUM_VERSIONS)]


def publish(model, model_dir: Path, step: int, folder: Path) -> Policy:
    """Draw the adapter anew, publish it, and merge it for the learner's own forward."""
    draw = torch.Generator().manual_seed(step)
    masters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, parameter in masters.items():
            if step and "lora_B" in name:
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=draw))
    tensors = adapter_tensors(masters)
    weights = folder / f"adapter-{step}"
    save_weights(tensors, weights)
    named = {"digest": digest_tensors(tensors), "object": f"blake3:{step}"}
    dense = type(model).from_pretrained(model_dir, dtype=torch.float32).eval()
    dense.load_state_dict(merged_weights(model))
    return Policy(
        model=dense, version=WeightVersion(lineage=0, step=step, **named), weights=weights
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(adapters, tmp_path_factory):
    model_dir, versions = adapters
    policies = Policies(
        model_dir=model_dir, first=versions[0], stepped=versions[1], other=versions[2]
    )
    plain = settings_for(policies, tmp_path_factory.mktemp("adapter"), exact=False)
    room = AdapterSettings(rank=LORA.rank, alpha=LORA.alpha, slots=SLOTS)
    engine = VllmEngine(replace(plain, adapter=room))
    await engine.start()
    yield engine
    await engine.stop()


async def gap(engine: VllmEngine, policy: Policy, prompt_length: int = 6) -> float:
    request = ask(prompt_length, 4)
    (group,) = await engine.generate([request])
    assert {span.step for c in group for span in c.spans} == {engine.version.step}
    scored = plain_logprobs(policy.model, request.prompt_ids, [c.token_ids for c in group])
    return max_logprob_gap([c.logprobs for c in group], scored)


async def test_each_version_is_the_learners_and_none_is_the_one_before(engine, adapters):
    _, versions = adapters
    for number, one in enumerate(versions):
        assert await engine.load(one.version, one.weights) == one.version.digest
        found = await gap(engine, one)
        print(f"max |actor - learner| of adapter {number}: {found:.2e}")
        assert found <= FLOAT32_GAP_MAX
        if number:
            assert await gap(engine, versions[number - 1]) > FLOAT32_GAP_MAX


async def test_every_load_has_a_name_of_its_own_and_the_oldest_goes(engine, adapters):
    _, versions = adapters
    shelf = engine._shelf
    for one in (versions[1], versions[2], versions[1]):
        await engine.load(one.version, one.weights)

    names = list(shelf._names)
    assert len(set(names)) == len(names) == SLOTS
    assert [name.partition("-")[0] for name in names] == ["0.1", "0.2", "0.1"]
    assert sorted(path.name for path in (engine._server.private_dir / "adapters").iterdir()) == (
        sorted(names)
    )


async def test_no_token_comes_from_a_prefix_of_another_version(engine, adapters):
    _, versions = adapters
    for one in versions[1:3]:
        await engine.load(one.version, one.weights)
        assert await gap(engine, one, prompt_length=300) <= FLOAT32_GAP_MAX


async def test_a_flipped_bit_is_found_and_the_adapter_is_never_sampled_from(
    engine, adapters, tmp_path
):
    _, (_, one, *_) = adapters
    data = bytearray(one.weights.read_bytes())
    data[-7] ^= 1
    (tmp_path / "flipped").write_bytes(data)

    digest = await engine.load(one.version, tmp_path / "flipped")

    assert digest not in ("", one.version.digest)
    assert engine.version is None
    with pytest.raises(EngineError, match="call load first"):
        await engine.generate([ask(4)])
    assert await engine.load(one.version, one.weights) == one.version.digest
    assert await gap(engine, one) <= FLOAT32_GAP_MAX
