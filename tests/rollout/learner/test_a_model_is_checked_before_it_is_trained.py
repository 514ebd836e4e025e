"""A run starts only where the forward that trains its model is the model's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, Phi3Config, Phi3ForCausalLM, set_seed

from rollout.errors import RunFailed
from rollout.learner.forward import attention, check
from rollout.learner.forward.check import check_forward
from rollout.learner.forward.packed_rows import prepare_model
from rollout.learner.model.parallel import Parallel

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def build(window=None, dtype=torch.float32):
    set_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    prepare_model(model)
    return model.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 8])
def test_a_sound_model_passes_and_no_random_number_is_used(window, dtype):
    model = build(window, dtype)
    before = torch.get_rng_state()

    found = check_forward(model, dtype, Parallel())

    assert found is not None
    assert found.gap_nats <= found.limit_nats
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_that_packed_rows_forget_ends_the_run(monkeypatch, dtype):
    model = build(8, dtype)
    rows = attention.rows_attention

    def forgets(*args, sliding_window=None, **kwargs):
        del sliding_window
        return rows(*args, **kwargs)

    attention.AttentionInterface.register(attention.IMPLEMENTATION, forgets)
    try:
        with pytest.raises(RunFailed, match=r"mistral.*differ by .* nats.*nothing was trained"):
            check_forward(model, dtype, Parallel())
    finally:
        attention.register()


def test_packed_logprobs_that_are_no_numbers_end_the_run(monkeypatch):
    real = check.token_logprobs

    def broken(model, row):
        return replace(real(model, row), logprobs_C=real(model, row).logprobs_C * torch.nan)

    monkeypatch.setattr(check, "token_logprobs", broken)

    with pytest.raises(RunFailed, match="differ by inf"):
        check_forward(build(), torch.float32, Parallel())


def test_a_model_whose_own_forward_gives_no_numbers_is_left_to_the_step_that_names_the_tensor():
    model = build()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)

    assert check_forward(model, torch.float32, Parallel()).gap_nats == 0.0


def test_the_ranks_decide_together(monkeypatch):
    def other_rank_differs(self, tensor):
        tensor[0] = 1.0

    monkeypatch.setattr(Parallel, "maximum", other_rank_differs)

    with pytest.raises(RunFailed, match="differ by 1 nats"):
        check_forward(build(), torch.float32, Parallel())


def test_a_check_outgrows_small_windows():
    longest = max(
        len(group.prompt_ids) + len(one)
        for group in check._groups(build(8))
        for one in group.completion_ids
    )

    assert longest > 8


def test_frequencies_of_one_sequence_do_not_depend_on_another():
    from rollout.learner.forward.packed_rows import GroupTokens, build_group_row, token_logprobs
    from rollout.learner.forward.reference import plain_group_logprobs

    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 32,
    }
    set_seed(0)
    config = Phi3Config(
        **SIZES,
        original_max_position_embeddings=32,
        pad_token_id=0,
        sliding_window=None,
        rope_parameters=rope,
    )
    model = Phi3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    prepare_model(model)
    answer = (20, 21, 22, 23, 2)
    short = GroupTokens(prompt_ids=tuple(range(3, 13)), completion_ids=(answer,))
    long = GroupTokens(prompt_ids=tuple(range(3, 43)), completion_ids=(answer, answer[:3]))

    with torch.no_grad():
        packed = token_logprobs(model, build_group_row([short, long])).logprobs_C
        alone = [plain_group_logprobs(model, [one]).logprobs_C for one in (short, long)]

    assert (packed - torch.cat(alone)).abs().max() <= 5e-6


def test_a_sharded_model_is_checked_as_a_whole(tmp_path):
    from torch import distributed
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model = build(8)
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=mesh)
        found = check_forward(model, torch.float32, Parallel(sharded=True))
        gathered = [name for name, one in model.named_parameters() if not isinstance(one, DTensor)]
    finally:
        distributed.destroy_process_group()

    assert found is not None
    assert found.passes
    assert gathered == [], "who reads them next would keep their storage from being freed"
