"""What the engine loads is what it names, and a bad file never serves."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.errors import EngineError
from rollout.types import WeightVersion

VERSION = WeightVersion(lineage=0, step=2, digest="", object="")


async def test_one_flipped_bit_changes_the_digest(tiny_model, start_engine, tmp_path):
    engine = await start_engine(tiny_model("qwen2"))
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    save_file(tensors, tmp_path / "same.safetensors")
    bits = tensors["model.norm.weight"].view(torch.int32)
    bits[5] ^= 1
    save_file(tensors, tmp_path / "flipped.safetensors")

    same = await engine.load(VERSION, tmp_path / "same.safetensors")
    flipped = await engine.load(VERSION, tmp_path / "flipped.safetensors")

    assert same != flipped


async def test_a_new_version_is_what_is_sampled_from(
    tiny_model, start_engine, publish_model, request_of, tmp_path
):
    engine = await start_engine(tiny_model("qwen2", seed=0))
    [before] = await engine.generate([request_of(5)])
    version, weights = publish_model(tiny_model("qwen2", seed=1), tmp_path / "next", step=2)

    await engine.load(version, weights)

    [after] = await engine.generate([request_of(5)])
    fresh = EmbeddedEngine(tmp_path / "next")
    await fresh.load(version, weights)
    [expected] = await fresh.generate([request_of(5)])
    assert engine.version == version
    assert after == expected != before


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
async def test_what_becomes_of_the_file_does_not_reach_weights_that_were_verified(
    kind, tiny_model, start_engine, request_of, tmp_path
):
    engine = await start_engine(tiny_model(kind))
    file = tmp_path / "model" / "model.safetensors"
    with file.open("r+b") as written:
        head = 8 + int.from_bytes(written.read(8), "little")
        written.seek(head)
        written.write(bytes(file.stat().st_size - head))
    [answer] = await engine.generate([request_of(5)])

    untouched = await start_engine(tiny_model(kind))
    [expected] = await untouched.generate([request_of(5)])
    assert answer == expected


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
async def test_a_missing_tensor_is_named_and_the_engine_serves_nothing(
    kind, tiny_model, start_engine, request_of, tmp_path
):
    engine = await start_engine(tiny_model(kind))
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "short.safetensors")

    with pytest.raises(EngineError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        await engine.load(VERSION, tmp_path / "short.safetensors")

    assert engine.version is None
    with pytest.raises(EngineError, match="before any weights"):
        await engine.generate([request_of(3)])


async def test_a_truncated_file_is_an_engine_error(tiny_model, start_engine, tmp_path):
    engine = await start_engine(tiny_model("qwen2"))
    whole = (tmp_path / "model" / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(EngineError, match="cannot read weights"):
        await engine.load(VERSION, tmp_path / "cut.safetensors")


async def test_a_folder_without_a_configuration_is_an_engine_error(tmp_path):
    with pytest.raises(EngineError, match=r"config\.json"):
        await EmbeddedEngine(tmp_path).start()


async def test_stopping_twice_is_fine(tiny_model, start_engine):
    engine = await start_engine(tiny_model("qwen2"))

    await engine.stop()
    await engine.stop()

    assert engine.version is None
