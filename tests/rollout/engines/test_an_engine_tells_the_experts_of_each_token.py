"""The experts that the embedded engine tells are those that a plain forward takes, however a token was computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.errors import EngineError
from rollout.learner.model.policy import load_model
from rollout.models.experts.families import routers_of
from rollout.models.resolve import resolve_model
from rollout.types import ExpertRoutes, GenerateRequest, SamplingParams, WeightVersion
from rollout.weights.digest import digest_tensors, save_weights

LAYERS, TOP_K = 2, 3
MARGIN = 1e-3
"""Of logits: what lies nearer may be ordered otherwise by rounding."""


def model_of(experts: int) -> Path:
    sizes = f"hidden=32&layers={LAYERS}&heads=2&intermediate=32&context=96&top_k={TOP_K}"
    return Path(resolve_model(f"rollout://tiny-qwen3-moe?{sizes}&experts={experts}").path)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """What a learner publishes of the model, by its number of experts."""

    def publish(experts):
        model = load_model(model_of(experts)).eval()
        noise = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.copy_(torch.randn(parameter.shape, generator=noise) * 0.2)
        path = tmp_path_factory.mktemp(f"experts-{experts}") / "model.safetensors"
        save_weights(dict(model.named_parameters()), path)
        return model, path

    return publish


@pytest.fixture
def started(weights):
    async def start(experts=8, **options):
        model, path = weights(experts)
        engine = EmbeddedEngine(model_of(experts), **options)
        digest = digest_tensors(dict(model.named_parameters()))
        version = WeightVersion(lineage=0, step=1, digest=digest, object=digest)
        assert await engine.load(version, path) == digest
        return engine, model

    return start


def request(seed: int, length: int, size: int = 4, **options) -> GenerateRequest:
    draw = torch.Generator().manual_seed(seed)
    sampling = SamplingParams(max_new_tokens=14, stop_token_ids=tuple(range(0, 256, 9)))
    return GenerateRequest(
        prompt_ids=tuple(torch.randint(250, (length,), generator=draw).tolist()),
        seeds=tuple(100 * seed + n for n in range(size)),
        sampling=sampling,
        **({"routes_from": 0} | options),
    )


@torch.no_grad()
def check(model: torch.nn.Module, ids: tuple[int, ...], routes: ExpertRoutes) -> None:
    """Routes are what one plain forward over the whole sequence takes, wherever rounding does not decide."""
    found: list[tuple[torch.Tensor, ...]] = []
    hooks = [
        router.register_forward_hook(lambda module, args, output: found.append(output))
        for _, router in routers_of(model)
    ]
    model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    logits = torch.stack([output[0] for output in found], dim=1)
    first = logits.topk(TOP_K + 1).values
    clear = (first[..., :-1] - first[..., 1:]).amin(-1) > MARGIN
    assert clear.float().mean() > 0.9
    taken = torch.stack([output[2] for output in found], dim=1)
    assert torch.equal(told(routes)[clear], taken[clear])


def told(routes: ExpertRoutes) -> torch.Tensor:
    """[positions, layers, experts of a token]."""
    assert (routes.num_layers, routes.top_k) == (LAYERS, TOP_K)
    kind = torch.int16 if routes.wide else torch.uint8
    return torch.frombuffer(bytearray(routes.chosen), dtype=kind).view(-1, LAYERS, TOP_K).long()


@pytest.mark.parametrize("experts", [8, 300])
async def test_prompts_and_samples_have_the_experts_of_a_plain_forward(started, experts):
    engine, model = await started(experts)
    asked = [request(1, 20), request(2, 3), request(3, 20)]

    drawn = await engine.generate(asked)

    lengths = {len(sample.token_ids) for group in drawn for sample in group}
    assert len(lengths) > 3, "samples left the batch at different times"
    for one, group in zip(asked, drawn, strict=True):
        for sample in group:
            computed = (one.prompt_ids + sample.token_ids)[:-1]
            assert sample.routes.wide == (experts > 256)
            check(model, computed, sample.routes)


async def test_a_later_turn_tells_what_is_not_known_yet(started):
    engine, model = await started()
    (first,) = (await engine.generate([request(1, 20, size=1)]))[0]
    known = first.routes.num_positions
    begun = request(1, 20).prompt_ids + first.token_ids + (7, 8)
    later = replace(request(4, 1, size=1), prompt_ids=begun, routes_from=known)

    (second,) = (await engine.generate([later]))[0]

    whole = replace(first.routes, chosen=first.routes.chosen + second.routes.chosen)
    check(model, (begun + second.token_ids)[:-1], whole)


async def test_an_interrupted_sample_tells_those_of_the_tokens_it_has(started, monkeypatch):
    engine, model = await started()
    from rollout.engines.embedded.module import ModuleBatch

    step = ModuleBatch.step

    def interrupting(self, tokens_S):
        engine.interrupt()
        return step(self, tokens_S)

    monkeypatch.setattr(ModuleBatch, "step", interrupting)
    asked = replace(request(5, 9), sampling=SamplingParams(max_new_tokens=14))

    (group,) = await engine.generate([asked])

    assert {sample.finish for sample in group} == {"interrupted"}
    for sample in group:
        computed = (asked.prompt_ids + sample.token_ids)[:-1]
        check(model, computed, sample.routes)


async def test_telling_them_changes_no_sample_and_is_not_done_unasked(started):
    engine, _ = await started()
    asked = request(1, 20)

    (routed,), (plain,) = [
        await engine.generate([one]) for one in (asked, replace(asked, routes_from=None))
    ]

    assert {sample.routes for sample in plain} == {None}
    assert [replace(sample, routes=None) for sample in routed] == list(plain)


async def test_a_model_without_experts_has_none_to_tell(publish_model, tiny_model, tmp_path):
    version, path = publish_model(tiny_model("qwen2"), tmp_path / "dense")
    for name in ("qwen2", "mistral"):
        version, path = publish_model(tiny_model(name), tmp_path / name)
        engine = EmbeddedEngine(tmp_path / name)
        await engine.load(version, path)

        with pytest.raises(EngineError, match=r"experts"):
            await engine.generate([replace(request(1, 4), prompt_ids=(1, 2, 3))])
