"""Triton: what is asked of a row of logits in one pass over it, and the gradient of logits in another, in place.

Logits are half precision, everything computed of them float32. Imported only where tensors lie on a CUDA device.
Of the scored tokens, sorted by the row that predicts them, those of row u are ``starts[u]`` to ``starts[u + 1]``.
"""

from __future__ import annotations

import triton  # pyrefly: ignore[missing-import] - comes with torch for CUDA only
import triton.language as tl  # pyrefly: ignore[missing-import] - likewise

BARRED_LOGIT: tl.constexpr = tl.constexpr(-1e30)


@triton.jit(do_not_specialize=["first"])
def row_scores(
    logits,
    starts,
    order,
    targets,
    logprobs,
    lse,
    entropy,
    mean,
    barred_rows,
    barred_ids,
    first,
    vocab_size,
    scale,
    BARS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row a program, ``first`` + its number of all: log-sum-exp, entropy, mean and its tokens' log-probabilities."""
    row = tl.program_id(0)
    number = first + row
    values = logits + row.to(tl.int64) * vocab_size
    bars = False
    if BARS:
        bars = tl.load(barred_rows + number) != 0
    top = -float("inf")
    mass, tilted, total = 0.0, 0.0, 0.0
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        inside = ids < vocab_size
        x = tl.load(values + ids, inside, other=-float("inf")).to(tl.float32) * scale
        if BARS:
            x = tl.where(
                bars & (tl.load(barred_ids + ids, inside, other=0) != 0), BARRED_LOGIT * scale, x
            )
        higher = tl.maximum(top, tl.max(x, 0))
        shrink = tl.exp(top - higher)
        p = tl.exp(x - higher)
        known = tl.where(inside, x, 0.0)
        mass = mass * shrink + tl.sum(p, 0)
        tilted = tilted * shrink + tl.sum(p * known, 0)
        total += tl.sum(known, 0)
        top = higher
    log_mass = top + tl.log(mass)
    tl.store(lse + number, log_mass)
    tl.store(entropy + number, log_mass - tilted / mass)
    tl.store(mean + number, total / vocab_size - log_mass)
    for place in range(tl.load(starts + number), tl.load(starts + number + 1)):
        target = tl.load(targets + place)
        x = tl.load(values + target).to(tl.float32) * scale
        if BARS:
            x = tl.where(bars & (tl.load(barred_ids + target) != 0), BARRED_LOGIT * scale, x)
        tl.store(logprobs + tl.load(order + place), x - log_mass)


@triton.jit(do_not_specialize=["column"])
def logit_gradients(
    logits,
    starts,
    targets,
    grads,
    lse,
    entropy,
    grad_entropy,
    grad_mean,
    barred_rows,
    barred_ids,
    column,
    width,
    vocab_size,
    scale,
    ENTROPY: tl.constexpr,
    MEAN: tl.constexpr,
    BARS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Turn the logits [rows, width] of ids from ``column`` on into their gradients; one row's block a program.

    ``grads`` are those of the sorted tokens' log-probabilities.
    """
    row = tl.program_id(0)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < width
    places = logits + row.to(tl.int64) * width + ids
    x = tl.load(places, inside, other=0.0).to(tl.float32) * scale
    barred = ids < 0
    if BARS:
        bars = tl.load(barred_rows + row) != 0
        barred = bars & (tl.load(barred_ids + column + ids, inside, other=0) != 0)
        x = tl.where(barred, BARRED_LOGIT * scale, x)
    logp = x - tl.load(lse + row)
    p = tl.exp(logp)
    weight = 0.0
    chosen = tl.zeros([BLOCK], tl.float32)
    for place in range(tl.load(starts + row), tl.load(starts + row + 1)):
        grad = tl.load(grads + place)
        weight += grad
        chosen += tl.where(ids + column == tl.load(targets + place), grad, 0.0)
    if MEAN:
        of_mean = tl.load(grad_mean + row)
        weight += of_mean
        chosen += of_mean / vocab_size
    found = chosen - p * weight
    if ENTROPY:
        found -= p * (logp + tl.load(entropy + row)) * tl.load(grad_entropy + row)
    found = tl.where(barred, 0.0, found * scale)
    tl.store(places, found.to(logits.dtype.element_ty), inside)
