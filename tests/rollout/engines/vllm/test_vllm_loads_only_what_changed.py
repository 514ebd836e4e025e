"""A version that changed little is loaded module by module, and is then served as if loaded whole.

One exact server: each prompt alone, no prefix cache, so that two loads of equal weights agree bit by bit. Servers are shared with other files; every test loads what it needs.
"""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from mirror_memory import flip_in_memory

from rollout.actor.weight_loader import WeightLoader
from rollout.engines.vllm.engine import REPORT, VllmEngine
from rollout.engines.vllm.wire import LoadAnswer, build_generate_body, build_update_body
from rollout.errors import EngineError, VersionRefused
from rollout.objects.filesystem import FilesystemStore
from rollout.types import GenerateRequest, SamplingParams, WeightVersion
from rollout.weights.digest import digest_tensors, load_weights, save_weights
from rollout.weights.mirror import WeightFiles
from rollout.weights.publisher import Publisher
from rollout.weights.raw import open_raw, parse_header
from rollout_vllm.modules import find_modules, plan_partial

from .conftest import Policy, ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("vllm"),
]

Tensors = dict[str, torch.Tensor]
KEY = "model.layers.0.self_attn.k_proj.weight"
UP = "model.layers.1.mlp.up_proj.weight"
EMBEDDINGS = "model.embed_tokens.weight"
NORM = "model.layers.1.input_layernorm.weight"
ORACLE_PROMPTS = 16


class Version:
    """``first`` with some tensors changed, as a file."""

    def __init__(self, first: Policy, step: int, folder: Path, *names: str) -> None:
        self.tensors = change(load_weights(first.weights), *names)
        self.path = folder / f"changed-{step}"
        save_weights(self.tensors, self.path)
        self.version = WeightVersion(
            lineage=0, step=step, digest=digest_tensors(self.tensors), object=f"blake3:{step}"
        )
        self.changed = frozenset(names)


def change(tensors: Tensors, *names: str) -> Tensors:
    """The named tensors with a random part of their elements drawn anew."""
    draw = torch.Generator().manual_seed(7)
    new = dict(tensors)
    for name in names:
        noise = torch.randn(tensors[name].shape, generator=draw) * tensors[name].std().clamp(1e-3)
        new[name] = tensors[name] + noise * (torch.rand(noise.shape, generator=draw) < 0.2)
    return new


async def load_whole(engine: VllmEngine, policy: Policy | Version) -> str:
    path = policy.weights if isinstance(policy, Policy) else policy.path
    return await engine.load(policy.version, path)


async def report(engine: VllmEngine):
    answer = await engine._server.call("/collective_rpc", body=REPORT, seconds_max=60)
    return msgspec.json.decode(answer, type=LoadAnswer).results[0]


async def oracle(engine: VllmEngine) -> list[tuple]:
    """Tokens and logprobs of fixed prompts, one after the other."""
    prompts = [ask(5 + length, 1, max_new_tokens=4) for length in range(ORACLE_PROMPTS)]
    groups = [(await engine.generate([prompt]))[0] for prompt in prompts]
    return [(c.token_ids, c.logprobs) for group in groups for c in group]


@pytest.mark.parametrize(
    ("names", "num_loaded"),
    [
        ((KEY,), 6),
        ((UP,), 2),
        ((NORM,), 1),
        ((EMBEDDINGS,), 1),
        (("lm_head.weight",), 1),
        ((KEY, UP, EMBEDDINGS), 9),
    ],
)
async def test_changed_modules_alone_give_what_a_whole_load_gives(
    exact_engine, untied_policies, tmp_path, names, num_loaded
):
    first, new = untied_policies.first, Version(untied_policies.first, 7, tmp_path, *names)
    await load_whole(exact_engine, new)
    wanted = await oracle(exact_engine)
    await load_whole(exact_engine, first)
    before = await oracle(exact_engine)

    digest = await exact_engine.load(new.version, new.path, new.changed)

    assert digest == new.version.digest
    assert (await report(exact_engine)).num_loaded == num_loaded
    found = await oracle(exact_engine)
    assert found == wanted
    assert found != before


async def test_the_oracle_tells_swapped_layers_and_a_missing_fused_part(
    exact_engine, untied_policies, tmp_path
):
    first = untied_policies.first
    tensors = load_weights(first.weights)
    await load_whole(exact_engine, first)
    right = await oracle(exact_engine)
    again = await oracle(exact_engine)
    swapped = {swap_layers(name): tensor for name, tensor in tensors.items()}
    without_key = tensors | {KEY: torch.zeros_like(tensors[KEY])}
    wrong = []
    for number, one in enumerate((swapped, without_key)):
        path = tmp_path / f"wrong-{number}"
        save_weights(one, path)
        version = replace(first.version, step=number, digest=digest_tensors(one))
        await exact_engine.load(version, path)
        wrong.append(await oracle(exact_engine))

    assert again == right
    assert all(found != right for found in wrong)


def swap_layers(name: str) -> str:
    for old, new in ((".layers.0.", ".layers.1."), (".layers.1.", ".layers.0.")):
        if old in name:
            return name.replace(old, new)
    return name


async def test_a_change_that_nobody_named_is_found_by_the_digest(
    exact_engine, untied_policies, tmp_path
):
    first, new = untied_policies.first, Version(untied_policies.first, 7, tmp_path, KEY, UP)
    await load_whole(exact_engine, first)

    digest = await exact_engine.load(new.version, new.path, frozenset({KEY}))

    assert digest != new.version.digest
    assert exact_engine.version is None
    with pytest.raises(EngineError, match="call load first"):
        await exact_engine.generate([ask(4)])
    assert await load_whole(exact_engine, new) == new.version.digest


@pytest.mark.parametrize("place", [0.05, 0.3, 0.6, 0.99])
async def test_a_flipped_bit_in_any_changed_module_is_found(
    exact_engine, untied_policies, tmp_path, place
):
    first = untied_policies.first
    names = sorted(load_weights(first.weights))
    new = Version(first, 7, tmp_path, *names)
    data = bytearray(new.path.read_bytes())
    data[int(place * len(data))] ^= 0x10
    new.path.write_bytes(data)
    await load_whole(exact_engine, first)

    partial = await exact_engine.load(new.version, new.path, new.changed)
    whole = await load_whole(exact_engine, new)

    assert new.version.digest not in (partial, whole)
    assert exact_engine.version is None


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_mirror_that_rots_sends_the_actor_back_to_a_dense_base(
    exact_engine, untied_policies, tmp_path, in_memory
):
    store = FilesystemStore(tmp_path / "objects")
    publisher = Publisher(store, size_bytes_min=0)
    files = WeightFiles(store, tmp_path / "mirror", in_memory=in_memory)
    tensors, versions = load_weights(untied_policies.first.weights), []
    for number, names in enumerate([(), (KEY,), (UP,)]):
        tensors = change(tensors, *names)
        stored = publisher.store(tensors)
        named = {"object": stored.object, "bases": stored.bases}
        versions.append(
            WeightVersion(lineage=0, step=number, digest=digest_tensors(tensors), **named)
        )
    reports = []
    activator = WeightLoader(exact_engine, files, reports.append)

    await activator.activate(versions[0])
    await activator.activate(versions[1])
    assert (await report(exact_engine)).num_loaded == 6
    rot(files.path(versions[1].object), UP, in_memory=in_memory)
    await activator.activate(versions[2])
    await activator.settle()

    assert [one.ok for one in reports] == [True, True, False, True]
    assert exact_engine.version == activator.verified == versions[2]
    assert files.num_rebuilt == 1
    found = await oracle(exact_engine)
    await exact_engine.load(versions[2], files.path(versions[2].object))
    assert found == await oracle(exact_engine)


def rot(path: Path, name: str, *, in_memory: bool) -> None:
    """One bit of a tensor's last element is another."""
    if not in_memory:
        with open_raw(path, writable=True) as raw:
            raw[name][-1] ^= 1
        return
    header, body = parse_header(np.fromfile(path, np.uint8))
    flip_in_memory(os.getpid(), header[name]["data_offsets"][1] - len(body) - 1)


async def test_tokens_are_given_for_the_version_that_is_served_alone(exact_engine, untied_policies):
    await load_whole(exact_engine, untied_policies.first)
    body = build_generate_body(
        GenerateRequest(
            prompt_ids=(1, 2, 3), seeds=(1,), sampling=SamplingParams(max_new_tokens=2)
        ),
        1,
    )
    call = exact_engine._server.call

    async def refused(version: str | None) -> bool:
        try:
            await call("/inference/v1/generate", body=body, seconds_max=60, version=version)
        except VersionRefused:
            return True
        return False

    assert await refused(None)
    assert await refused("0.99")
    assert not await refused("0.0")
    for resumed in (None, "0.0"):
        for path, asked in (
            ("/start_weight_update", None),
            ("/finish_weight_update", {}),
            ("/resume", None),
        ):
            version = resumed if path == "/resume" else None
            await call(path, body=asked, seconds_max=60, version=version)
        assert await refused("0.0") == (resumed is None)


MODULES = frozenset({"model.layers.0.self_attn.qkv_proj", "model.norm", "lm_head"})
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}


def owners(*names: str) -> dict[str, str | None]:
    return find_modules(names, PACKED, MODULES)


async def test_a_tensor_of_no_known_module_means_the_whole_model():
    found = owners("model.norm.weight", "model.layers.0.experts.3.w1.weight", "rotary")

    assert found["model.norm.weight"] == "model.norm"
    assert plan_partial(frozenset({"model.norm.weight"}), found) == {"model.norm"}
    assert plan_partial(frozenset({"model.norm.weight", "rotary"}), found) is None
    assert plan_partial(frozenset({"never heard of"}), found) is None


async def test_parts_of_a_fused_module_go_together():
    parts = [
        f"model.layers.0.self_attn.{part}_proj.{kind}"
        for part in "qkv"
        for kind in ("weight", "bias")
    ]

    assert set(owners(*parts).values()) == {"model.layers.0.self_attn.qkv_proj"}


async def test_changes_since_another_version_than_the_loaded_one_are_refused(
    exact_engine, untied_policies, tmp_path
):
    first, new = untied_policies.first, Version(untied_policies.first, 7, tmp_path, KEY)
    await load_whole(exact_engine, new)
    body = build_update_body(new.path, new.changed, first.version)
    call = exact_engine._server.call

    await call("/start_weight_update", seconds_max=60)
    with pytest.raises(EngineError, match="500"):
        await call("/update_weights", body=body, seconds_max=60)

    assert exact_engine.version is None
