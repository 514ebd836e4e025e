"""What a GPU shows: the learner's kernels, its share of the card, and whole steps against TRL's.

Needs one CUDA device (``ROLLOUT_GPU_REHEARSAL=1``: none; tiny sizes on the CPU, whose figures mean nothing).
One section alone: ``run.py gpu head`` (or attention, digest, mfu, sync, decode, sft-phases, sft, grpo).

Axes: N tokens of a row, V vocabulary, E hidden size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import shaped_model
import torch
from contest import PAIRS, make, ours, rates, speed, start, trl
from duel import fight
from embedded_decode import decode_figures
from figures import Figure, level, ratio
from jobs import Job, grpo_job, sft_job
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, PretrainedConfig
from turns import memory_bytes

from rollout.learner.config.optimizer import OptimizerSettings
from rollout.learner.forward import attention
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    PackedRow,
    SequenceTokens,
    build_group_row,
    build_sequence_row,
    prepare_model,
    token_logprobs,
)
from rollout.learner.hash_chain import digest_state
from rollout.learner.model.optim import build_optimizer
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import Policy, recompute_activations
from rollout.weights.digest import digest_tensors
from rollout.weights.host import host_tensors
from rollout.weights.publisher import name_whole

REHEARSAL = os.environ.get("ROLLOUT_GPU_REHEARSAL") == "1"
DEVICE = "cpu" if REHEARSAL else "cuda"
PEAK_FLOPS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
"""Dense bfloat16, of the data sheets."""
ROUNDS = 2 if REHEARSAL else 10
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def measure(section: str = "all") -> Iterator[Figure]:
    """All figures, or those of one section. Raises KeyError for an unknown one."""
    start()
    chosen = SECTIONS.values() if section == "all" else [SECTIONS[section]]
    for figures in chosen:
        yield from figures()


def attention_rows() -> Iterator[Figure]:
    """A layer's attention over rows of a GRPO batch, forward and backward: the flash kernel and the plain products."""
    shapes = [(300, 8, 200), (1024, 8, 512)] if not REHEARSAL else [(20, 2, 10)]
    for prompt, samples, new in shapes:
        row = _group_row(4, prompt, samples, new, vocab_size=1000).to(DEVICE)
        q, k, v = _heads(row.num_tokens)
        found = {
            name: _seconds(partial(_attend, calls, q, k, v, row))
            for name, calls in {"flash": None, "plain": _plain_rows}.items()
        }
        name = f"attention 4 x {samples} of {prompt}+{new}, plain / flash"
        yield ratio(name, found["flash"], found["plain"], ">= 1.0")
        yield level(f"{name}: flash", [1e3 * s for s in found["flash"]], "ms", "info")


def head_memory() -> Iterator[Figure]:
    """Loss and gradients of 4,096 tokens at 151,936 ids: the head in parts, and transformers' whole logits."""
    yield from _head_of(torch.float32, "head in parts", loss_bar=1e-5, gradient_bar=1e-5)
    if not REHEARSAL:
        yield from _head_of(torch.bfloat16, "head in bfloat16", loss_bar=1e-4, gradient_bar=4e-3)


def _head_of(
    dtype: torch.dtype, name: str, *, loss_bar: float, gradient_bar: float
) -> Iterator[Figure]:
    narrow = {"hidden_size": 128, "num_attention_heads": 2} if REHEARSAL else {}
    config = shaped_model.qwen2_half_billion(num_hidden_layers=1, **narrow)
    ids = torch.randint(3, config.vocab_size - 3, (4096,), device=DEVICE)
    whole = _model(config, dtype)
    whole_loss, whole_peak, whole_seconds = _loss_of_logits(whole, ids)
    gradient = whole.lm_head.weight.grad.float()
    del whole
    parts = _model(config, dtype)
    prepare_model(parts)
    loss, peak, seconds = _loss_in_parts(parts, ids)
    error = float((parts.lm_head.weight.grad - gradient).norm() / gradient.norm())
    difference = [abs(loss - whole_loss) / abs(whole_loss)]
    yield level(f"{name}: difference of the loss", difference, "relative", f"<= {loss_bar:g}")
    yield level(f"{name}: difference of its gradient", [error], "relative", f"<= {gradient_bar:g}")
    yield level(f"{name}: peak over transformers' loss", [peak / whole_peak], "x", "<= 0.25")
    yield ratio(f"{name}: seconds, transformers' / ours", seconds, whole_seconds, "info")


def model_flops_utilization() -> Iterator[Figure]:
    """The learner's own step on Qwen3-0.6B's shape, prime-rl's published one: 11.1 % at 16K, 26.8 % at 65K."""
    config = _small(shaped_model.qwen3_point_six_billion)
    for num_tokens in (64, 128) if REHEARSAL else (16_384, 65_536):
        policy = _policy(config)
        recompute_activations(policy.model)
        row = _sequence_row(num_tokens, config.vocab_size).to(DEVICE)
        step = partial(_step, policy, row)
        step()
        if not REHEARSAL:
            torch.cuda.reset_peak_memory_stats()
        seconds = [_timed(step) for _ in range(min(ROUNDS, 5))]
        flops = _flops(config, num_tokens)
        peak = PEAK_FLOPS.get(_device_name(), 1e12)
        shares = [100 * flops / peak / s for s in seconds]
        name = f"model FLOPs utilization, 0.6B, one sequence of {num_tokens}"
        yield level(name, shares, "%", "info")
        yield level(f"{name}: tokens/s", [num_tokens / s for s in seconds], "tokens/s", "info")
        yield level(f"{name}: peak memory", [_peak_gib()], "GiB", "info")
        del policy, step


def sync() -> Iterator[Figure]:
    """Naming a version of half a billion parameters: from the device to the host, and its digest."""
    config = _small(shaped_model.qwen2_half_billion)
    model = _model(config, torch.bfloat16)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    host_tensors(weights)
    copies = [_timed(lambda: host_tensors(weights)) for _ in range(ROUNDS)]
    host = host_tensors(weights)
    digests = [_timed(lambda: digest_tensors(host)) for _ in range(ROUNDS)]
    yield level("weights to the host", [1e3 * s for s in copies], "ms", "info")
    yield level("digest of the weights", [1e3 * s for s in digests], "ms", "info")


def digests() -> Iterator[Figure]:
    """Naming the state that Exact names every step, masters and AdamW's two of 0.5B: where it lies, and on the host."""
    config = _small(shaped_model.qwen2_half_billion)
    policy = _policy(config)
    _step(policy, _sequence_row(16, config.vocab_size).to(DEVICE))
    states = [(n, policy.optimizer.state[p]) for n, p in policy.masters.items()]
    state = {f"{name}/{entry}": one for name, held in states for entry, one in held.items()}
    state |= {name: p.detach() for name, p in policy.masters.items()}
    weights = policy.weights()
    size = sum(one.nbytes for one in state.values())
    found = digest_state(state, b"r" * 32)
    device = _seconds(partial(digest_state, state, b"r" * 32))
    versions = _seconds(partial(digest_tensors, weights))
    names = _seconds(partial(name_whole, weights))
    host = dict(host_tensors(state))
    theirs = _seconds(partial(digest_state, host, b"r" * 32))
    differs = int(found != digest_state(host, b"r" * 32))
    differs += digest_tensors(weights) != digest_tensors(host_tensors(weights))
    yield level("digest: names that differ from the host's", [differs], "of 2", "<= 0")
    yield level(
        f"digest of the state, {size / 1e9:.2f} GB", [1e3 * s for s in device], "ms", "<= 20"
    )
    yield level("digest of the state", [size / 1e9 / s for s in device], "GB/s", "info")
    yield level("digest of the weights", [1e3 * s for s in versions], "ms", "info")
    yield level("digest of the weights' file", [1e3 * s for s in names], "ms", "info")
    yield ratio("digest of the state: seconds, host's threads over ours", device, theirs, "info")


def sft_phases() -> Iterator[Figure]:
    """What a step of 32 rows of 512 tokens is made of, in two packed rows; the largest kernels go to the log."""
    config = _small(shaped_model.qwen2_half_billion)
    policy = _policy(config)
    rows = [_packed_row(2 if REHEARSAL else 16, 512, config.vocab_size).to(DEVICE)] * 2

    def learn() -> None:
        policy.zero_gradients()
        for row in rows:
            stats = token_logprobs(policy.model, row, entropy=True)
            (-stats.logprobs_C.mean()).backward()

    def update() -> None:
        policy.sum_gradients()
        policy.update(policy.optimizer, policy.gradient_norm(), max_norm=1.0)

    @torch.no_grad()
    def forward() -> None:
        token_logprobs(policy.model, rows[0], entropy=True)

    for name, phase in {"forward of one": forward, "both ways": learn, "update": update}.items():
        spent = [1e3 * s for s in _seconds(phase)]
        yield level(f"sft 32 x 512, in two rows: {name}", spent, "ms", "info")
    yield level("sft 32 x 512, in two rows: peak memory", [_peak_gib()], "GiB", "info")
    if not REHEARSAL:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            learn()
            update()
            _synchronize()
        table = found.key_averages().table(
            sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=60
        )
        print(table, flush=True)


def decode() -> Iterator[Figure]:
    """The embedded engine's decode step: CUDA graphs over the same steps started one by one."""
    folder = Path(_model_uri().removeprefix("file://"))
    tokens, rounds = (12, 2) if REHEARSAL else (256, 4)
    yield from decode_figures(folder, torch.device(DEVICE), tokens=tokens, rounds=rounds)


def sft() -> Iterator[Figure]:
    """Rows of 512 tokens, 32 a step."""
    yield from _duel("sft", make(_sft_job), "tokens", ">= 1.0")


def grpo() -> Iterator[Figure]:
    """4 prompts of 256 tokens, 8 samples of 256."""
    yield from _duel("grpo 4 x 8 of 256+256", make(_grpo_job), "samples", ">= 1.2")


def grpo_fast() -> Iterator[Figure]:
    """The same, with ours in Fast."""
    job = replace(make(_grpo_job), mode="Fast")
    yield from _duel("grpo 4 x 8 of 256+256, Fast", job, "samples", "info")


SECTIONS: dict[str, Callable[[], Iterator[Figure]]] = {
    "attention": attention_rows,
    "head": head_memory,
    "mfu": model_flops_utilization,
    "digest": digests,
    "sync": sync,
    "decode": decode,
    "sft-phases": sft_phases,
    "sft": sft,
    "grpo": grpo,
    "grpo-fast": grpo_fast,
}


def _duel(name: str, job: Job, unit: str, bar: str) -> Iterator[Figure]:
    found = fight({"ours": ours(job), "trl": trl(job)}, [PAIRS])
    yield speed(f"{name}, 0.5B on one GPU, {unit}/s vs TRL", found, unit, bar)
    yield from rates(name, found, unit)
    for side, turns in found.turns.items():
        for phase in turns[0].get("phases", {}):
            spent = [1e3 * turn["phases"][phase] for turn in turns]
            yield level(f"{name}, {side}: {phase}", spent, "ms", "info")
        peaks = [turn["device_peak_bytes"] / 2**30 for turn in turns]
        yield level(f"{name}, {side}: peak device memory", peaks, "GiB", "info")


def _sft_job(folder: Path) -> Job:
    job = sft_job(folder, tokens=32 if REHEARSAL else 512, model=_model_uri())
    rows = 4 if REHEARSAL else 32
    job = replace(job, batch_size=rows, trl_rows=rows)
    return job if REHEARSAL else replace(job, device="cuda")


def _grpo_job(folder: Path) -> Job:
    prompt, new, prompts = (16, 8, 2) if REHEARSAL else (256, 256, 4)
    job = grpo_job(folder, prompt, new, _model_uri())
    job = replace(job, prompts_per_step=prompts)
    return job if REHEARSAL else replace(job, device="cuda")


@dataclass(slots=True)
class _Kept:
    """The model on disk, for as long as this process lives."""

    folder: TemporaryDirectory | None = None


_kept = _Kept()


def _model_uri() -> str:
    if _kept.folder is None:
        _kept.folder = TemporaryDirectory(prefix="rollout-bench-gpu-")
        config = _small(shaped_model.qwen2_half_billion)
        shaped_model.write_model(Path(_kept.folder.name), config, DEVICE)
    return f"file://{_kept.folder.name}"


def _small(shape: Callable[..., PretrainedConfig], **more: int) -> PretrainedConfig:
    return shape(**((SMALL | {"head_dim": 16} if REHEARSAL else {}) | more))


def _model(config: PretrainedConfig, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).train()


def _policy(config: PretrainedConfig) -> Policy:
    model = _model(config, torch.float32)
    prepare_model(model)
    policy = Policy(model, torch.bfloat16, Parallel(device=torch.device(DEVICE)))
    policy.optimizer = build_optimizer(
        policy.masters.values(), OptimizerSettings(kind="adamw", learning_rate=1e-5)
    )
    with torch.no_grad():  # the model is asked once what its logits are
        token_logprobs(model, _sequence_row(16, config.vocab_size).to(DEVICE))
    return policy


def _step(policy: Policy, row: PackedRow) -> None:
    policy.zero_gradients()
    stats = token_logprobs(policy.model, row, entropy=True)
    (-stats.logprobs_C.mean()).backward()
    policy.sum_gradients()
    policy.update(policy.optimizer, policy.gradient_norm(), max_norm=1.0)


def _flops(config: PretrainedConfig, num_tokens: int) -> float:
    """Of one sequence, forward and backward without what is computed again: 6 a parameter and token, and attention."""
    size = config.head_dim * config.num_attention_heads
    layer = config.hidden_size * (
        size
        + 2 * config.head_dim * config.num_key_value_heads
        + size
        + 3 * config.intermediate_size
    )
    parameters = config.num_hidden_layers * layer + config.vocab_size * config.hidden_size
    pairs = num_tokens * num_tokens / 2
    return 6 * parameters * num_tokens + 12 * config.num_hidden_layers * size * pairs


def _group_row(groups: int, prompt: int, samples: int, new: int, vocab_size: int) -> PackedRow:
    def ids(seed: int, count: int) -> tuple[int, ...]:
        noise = torch.Generator().manual_seed(seed)
        return tuple(torch.randint(3, vocab_size - 3, (count,), generator=noise).tolist())

    return build_group_row(
        [
            GroupTokens(
                prompt_ids=ids(g, prompt),
                completion_ids=tuple(ids(100 * g + s, new - s) for s in range(samples)),
            )
            for g in range(groups)
        ]
    )


def _sequence_row(num_tokens: int, vocab_size: int) -> PackedRow:
    noise = torch.Generator().manual_seed(0)
    ids = torch.randint(3, vocab_size - 3, (num_tokens + 1,), generator=noise).tolist()
    scored = (0, *(1,) * num_tokens)
    return build_sequence_row([SequenceTokens(token_ids=tuple(ids), scored=scored)])


def _packed_row(count: int, length: int, vocab_size: int) -> PackedRow:
    noise = torch.Generator().manual_seed(0)
    ids = torch.randint(3, vocab_size - 3, (count, length), generator=noise).tolist()
    scored = (0, *(1,) * (length - 1))
    return build_sequence_row([SequenceTokens(token_ids=tuple(one), scored=scored) for one in ids])


def _heads(num_tokens: int) -> tuple[torch.Tensor, ...]:
    noise = torch.Generator(DEVICE).manual_seed(0)
    sizes = ((14, 64), (2, 64), (2, 64))
    return tuple(
        torch.randn(
            1, n, num_tokens, d, generator=noise, device=DEVICE, dtype=torch.bfloat16
        ).requires_grad_()
        for n, d in sizes
    )


def _plain_rows(query: torch.Tensor, *rest: object) -> bool:
    del query, rest
    return False


def _attend(
    fits: Callable | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, row: PackedRow
) -> None:
    kept = attention.fits
    attention.fits = fits or kept
    try:
        out, _ = attention.rows_attention(
            torch.nn.Identity(), q, k, v, None, rollout_layout=row.layout
        )
        out.backward(torch.ones_like(out))
    finally:
        attention.fits = kept


def _loss_of_logits(model: torch.nn.Module, ids: torch.Tensor) -> tuple[float, float, list[float]]:
    def once() -> torch.Tensor:
        model.zero_grad()
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        loss = cross_entropy(logits, ids[1:])
        loss.backward()
        return loss

    return _peak_and_seconds(once)


def _loss_in_parts(model: torch.nn.Module, ids: torch.Tensor) -> tuple[float, float, list[float]]:
    tokens = SequenceTokens(token_ids=tuple(ids.tolist()), scored=(0, *(1,) * (len(ids) - 1)))
    row = build_sequence_row([tokens]).to(DEVICE)
    with torch.no_grad():  # the model is asked once what its logits are
        few = SequenceTokens(token_ids=tokens.token_ids[:9], scored=tokens.scored[:9])
        token_logprobs(model, build_sequence_row([few]).to(DEVICE))

    def once() -> torch.Tensor:
        model.zero_grad()
        loss = -token_logprobs(model, row).logprobs_C.mean()
        loss.backward()
        return loss

    return _peak_and_seconds(once)


def _peak_and_seconds(once: Callable[[], torch.Tensor]) -> tuple[float, float, list[float]]:
    """The loss, the most bytes beyond what lay there before, and the seconds of some rounds."""
    loss = float(once().detach())
    _synchronize()
    if REHEARSAL:
        before = memory_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # what is resident now is the peak so far
    else:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    seconds = [_timed(once) for _ in range(ROUNDS)]
    peak = memory_bytes("VmHWM") if REHEARSAL else torch.cuda.max_memory_allocated()
    return loss, peak - before, seconds


def _seconds(work: Callable[[], object]) -> list[float]:
    work()
    return [_timed(work) for _ in range(ROUNDS)]


def _timed(work: Callable[[], object]) -> float:
    _synchronize()
    began = time.perf_counter()
    work()
    _synchronize()
    return time.perf_counter() - began


def _synchronize() -> None:
    if not REHEARSAL:
        torch.cuda.synchronize()


def _peak_gib() -> float:
    return 0.0 if REHEARSAL else torch.cuda.max_memory_allocated() / 2**30


def _device_name() -> str:
    return "" if REHEARSAL else torch.cuda.get_device_name()
