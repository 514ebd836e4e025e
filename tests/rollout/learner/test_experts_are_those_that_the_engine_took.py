"""A row with routes is computed by the experts that it is given, whatever the gate would choose now."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import zoo_kit
from peft import LoraConfig, get_peft_model
from zoo_kit import GROUPS, VOCAB, gradient_gap, gradients

from rollout.learner.config.policy import PolicySettings
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    build_group_row,
    prepare_model,
    token_logprobs,
)
from rollout.learner.hash_chain import digest_groups
from rollout.learner.model.policy import recompute_activations
from rollout.learner.objectives.completions import Completions
from rollout.learner.objectives.packing import Chunk
from rollout.learner.objectives.plan import MicroBatch
from rollout.models.experts.families import ROUTED, router_shape, routers_of
from rollout.types import ExpertRoutes, Trajectory, TrajectoryGroup

EXPERTS, TOP_K, LAYERS = 4, 2, 4
GOLDEN = "2cffe8cf50c732259326b7953771d97055ab647b7930401bc35b0f4706a92545"
FORM = ExpertRoutes(num_layers=LAYERS, top_k=TOP_K, wide=False)


def drawn(seed: int, positions: int) -> bytes:
    """Routes that no gate has chosen."""
    draw = random.Random(seed)
    return b"".join(bytes(draw.sample(range(EXPERTS), TOP_K)) for _ in range(positions * LAYERS))


def routed(seed: int, group: GroupTokens) -> GroupTokens:
    """The group with routes, those of the prompt the same in all samples."""
    prompt = drawn(seed, len(group.prompt_ids))
    return replace(
        group,
        routes=tuple(
            replace(FORM, chosen=prompt + drawn(seed + 1 + n, len(completion) - 1))
            for n, completion in enumerate(group.completion_ids)
        ),
    )


ROUTED_GROUPS = tuple(routed(100 * n, group) for n, group in enumerate(GROUPS))


def forced(model: torch.nn.Module, groups: tuple[GroupTokens, ...]) -> torch.Tensor:
    """Every sequence alone, by a gate that was rewritten to take the given experts: what a replay must equal."""
    found = []
    routers = [router for _, router in routers_of(model)]
    for group in groups:
        for completion, routes in zip(group.completion_ids, group.routes, strict=True):
            whole = torch.tensor([group.prompt_ids + completion])
            told = torch.tensor(list(routes.chosen)).view(-1, LAYERS, TOP_K)
            for layer, router in enumerate(routers):
                router.forward = _gate(router, told[:, layer])
            logits = model(input_ids=whole[:, :-1], use_cache=False).logits[0].float()
            picked = logits.log_softmax(-1).gather(1, whole[0, 1:, None])[:, 0]
            found.append(picked[len(group.prompt_ids) - 1 :])
    return torch.cat(found)


def _gate(router: torch.nn.Module, ids: torch.Tensor):
    def forward(hidden_states):
        logits = hidden_states.reshape(-1, router.hidden_dim) @ router.weight.T
        odds = logits.exp()
        chosen = torch.stack([odds[n, row] for n, row in enumerate(ids)])
        share = chosen if getattr(router, "norm_topk_prob", True) else odds
        return logits, chosen / share.sum(-1, keepdim=True), ids

    return forward


def built(kind: str = "qwen3_moe") -> torch.nn.Module:
    model = zoo_kit.build(kind)
    prepare_model(model)
    return model


def logprobs(model, groups) -> torch.Tensor:
    return token_logprobs(model, build_group_row(groups)).logprobs_C


@pytest.mark.parametrize("kind", ROUTED)
def test_given_experts_with_the_gates_own_weights_and_gradients_through_them(kind):
    model, reference = built(kind), zoo_kit.build(kind)
    want = forced(reference, ROUTED_GROUPS)

    got = logprobs(model, ROUTED_GROUPS)

    assert gap(got, want) < 1e-4
    found, wanted = gradients(model, got), gradients(reference, want)
    assert any(float(one.norm()) > 0 for name, one in found.items() if "mlp.gate." in name)
    assert gradient_gap(found, wanted) < 1e-3
    assert gap(got, logprobs(model, GROUPS)) > 0.1


def test_one_sample_at_a_time_and_recomputed_layers_take_the_same_experts():
    model = built()
    whole = logprobs(model, ROUTED_GROUPS)
    wanted = gradients(model, whole)
    alone = [
        replace(group, completion_ids=(completion,), routes=(routes,))
        for group in ROUTED_GROUPS
        for completion, routes in zip(group.completion_ids, group.routes, strict=True)
    ]

    cut = torch.cat([logprobs(model, [one]) for one in alone])
    recompute_activations(model)
    again = logprobs(model, ROUTED_GROUPS)

    assert gap(cut, whole) < 1e-4
    assert torch.equal(again, whole)
    assert gradient_gap(gradients(model, again), wanted) < 1e-3


def test_an_adapter_leaves_the_replay_as_it_is():
    model = built()
    whole = logprobs(model, ROUTED_GROUPS)

    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))

    assert gap(logprobs(adapted, ROUTED_GROUPS), whole) < 1e-5
    assert gap(logprobs(adapted, GROUPS), whole) > 0.1


@torch.no_grad()
def taken(model: torch.nn.Module, ids: tuple[int, ...]) -> ExpertRoutes:
    """Those of a plain forward."""
    found: list[torch.Tensor] = []
    hooks = [
        router.register_forward_hook(lambda module, args, output: found.append(output[2]))
        for _, router in routers_of(model)
    ]
    model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return replace(FORM, chosen=torch.stack(found, dim=1).to(torch.uint8).numpy().tobytes())


def own_routes(model: torch.nn.Module, group: GroupTokens) -> GroupTokens:
    """The group with the experts that the model takes as it is."""
    whole = ((*group.prompt_ids, *completion[:-1]) for completion in group.completion_ids)
    return replace(group, routes=tuple(taken(model, ids) for ids in whole))


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).detach().abs().max())


@pytest.mark.parametrize("kind", ROUTED)
def test_a_models_own_experts_replayed_change_no_bit(kind):
    model = built(kind)
    groups = [own_routes(zoo_kit.build(kind), group) for group in GROUPS]

    assert torch.equal(logprobs(model, groups), logprobs(model, GROUPS))


def test_a_gate_that_was_moved_since_takes_the_engines_experts_all_the_same():
    model, engine = built(), zoo_kit.build("qwen3_moe")
    groups = [own_routes(engine, group) for group in GROUPS]
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for one in (model, engine):
            noise.manual_seed(3)
            for _, router in routers_of(one):
                router.weight.add_(torch.randn(router.weight.shape, generator=noise) * 0.3)

    want = forced(engine, tuple(groups))
    replayed, chosen_anew = logprobs(model, groups), logprobs(model, GROUPS)

    assert gap(replayed, want) < 1e-4
    assert gap(chosen_anew, want) > 0.1


def test_positions_behind_the_routes_take_the_gates_choice():
    model = built()
    own = [own_routes(zoo_kit.build("qwen3_moe"), group) for group in GROUPS]
    group = own[0]
    known = len(group.prompt_ids) + 4
    short = tuple(replace(one, chosen=one.part(0, known)) for one in group.routes)

    assert torch.equal(logprobs(model, [replace(group, routes=short)]), logprobs(model, [group]))


@pytest.mark.parametrize(
    "form",
    [replace(FORM, top_k=1), replace(FORM, num_layers=2, top_k=4), replace(FORM, top_k=4)],
    ids=["too few experts", "other layers", "too many experts"],
)
def test_routes_of_another_model_are_refused(form):
    model = built()
    group = routed(0, GROUPS[1])
    told = tuple(
        replace(form, chosen=drawn(n, 12)[: 11 * form.position_bytes] * 2) for n in range(2)
    )

    with pytest.raises((ValueError, IndexError)):
        logprobs(model, [replace(group, routes=told)])


def test_routes_of_some_samples_of_a_row_only_are_refused():
    with pytest.raises(ValueError, match="for all samples of a row, or for none"):
        build_group_row([ROUTED_GROUPS[0], GROUPS[1]])


def sample(number: int, routes: bytes | None, prompt=(5, 6, 7), tokens=(8, 9)) -> Trajectory:
    told = {} if routes is None else {"routes": replace(FORM, chosen=routes)}
    return Trajectory(
        ordinal=0,
        sample=number,
        prompt_ids=prompt,
        token_ids=tokens,
        actor_logprobs=(-1.0,) * len(tokens),
        loss_mask=(1,) * len(tokens),
        spans=(),
        rewards={},
        reward=float(number),
        ending="stop",
        **told,
    )


def completions(settings: PolicySettings, *samples: Trajectory) -> Completions:
    group = TrajectoryGroup(ordinal=0, trajectories=samples)
    return Completions([group], torch.device("cpu"), settings)


def test_a_prompt_is_shared_by_samples_that_were_computed_by_the_same_experts(policy_settings):
    prompt, other = drawn(1, 3), drawn(2, 3)
    same = [sample(n, prompt + drawn(10 + n, 1)) for n in range(2)]
    apart = [sample(0, prompt + drawn(10, 1)), sample(1, other + drawn(11, 1))]
    micro = MicroBatch(chunks=(Chunk(group=0, samples=(0, 1)),))

    shared, split = (completions(policy_settings, *some) for some in (same, apart))

    assert (shared.shapes()[0].prompt_tokens, shared.row(micro).num_tokens) == (3, 5)
    assert (split.shapes()[0].prompt_tokens, split.row(micro).num_tokens) == (0, 8)
    got = split.row(micro).routes
    assert got[:4].flatten().tolist() == list(prompt + drawn(10, 1))
    assert got[4:].flatten().tolist() == list(other + drawn(11, 1))


def test_other_models_than_the_policy_take_their_own_experts(policy_settings):
    model = built()
    known = completions(policy_settings, *[sample(n, drawn(n, 4)) for n in range(2)])
    micro = MicroBatch(chunks=(Chunk(group=0, samples=(0, 1)),))

    routed_ones = known.score(model, [[micro]], policy_settings)
    others = known.score(model, [[micro]], policy_settings, routed=False)

    plain = logprobs(model, [GroupTokens(prompt_ids=(5, 6, 7), completion_ids=((8, 9),))])
    assert known.longer_row(micro).routes is None
    assert torch.allclose(others[0, 0], plain, atol=1e-5)
    assert not torch.allclose(routed_ones[0, 0], plain, atol=1e-2)


def test_what_a_step_learns_from_is_named_with_its_routes():
    def digest(*routes: bytes | None) -> str:
        made = tuple(sample(n, one) for n, one in enumerate(routes))
        return digest_groups([TrajectoryGroup(ordinal=0, trajectories=made)])

    one, other = drawn(1, 4), drawn(2, 4)
    found = {digest(None, None), digest(one, one), digest(one, other), digest(other, one)}
    assert len(found) == 4
    # As it was before there were routes: chains of other models are those of earlier releases.
    assert digest(None, None) == GOLDEN


def test_the_tiny_types_have_as_many_experts_as_the_tests_give_them():
    for kind in ROUTED:
        shape = router_shape(zoo_kit.build(kind))
        assert (shape.layers, shape.experts, shape.top_k) == (LAYERS, EXPERTS, TOP_K)
    assert VOCAB == 64
