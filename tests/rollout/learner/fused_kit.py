"""What stands in for the head's Triton kernels where there is no Triton: the same two, written out in torch."""

from __future__ import annotations

import torch

BARRED = -1e30


class Kernel:
    """Called as Triton's are, for all programs at once."""

    def __init__(self, work):
        self._work = work

    def __getitem__(self, grid):
        def call(*args, **constants):
            block = constants.pop("BLOCK")
            assert block & (block - 1) == 0
            self._work(grid, block, *args, **constants)

        return call


def _scaled(logits, rows, ids, scale, bars, barred_rows, barred_ids):
    x = logits.float()
    if bars:
        x = x.masked_fill((barred_rows[rows, None] & barred_ids[ids]).bool(), BARRED)
    return x * scale


def _row_scores(
    grid,
    block,
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
    BARS,
):
    assert grid == (len(logits),)
    rows = slice(first, first + len(logits))
    x = _scaled(logits, rows, slice(None), scale, BARS, barred_rows, barred_ids)
    logp = x.log_softmax(-1)
    lse[rows], mean[rows] = x.logsumexp(-1), logp.mean(-1)
    entropy[rows] = -(logp.exp() * logp).sum(-1)
    for row in range(len(logits)):
        places = slice(int(starts[first + row]), int(starts[first + row + 1]))
        logprobs[order[places]] = logp[row, targets[places]]


def _logit_gradients(
    grid,
    block,
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
    ENTROPY,
    MEAN,
    BARS,
):
    assert logits.shape == (grid[0], width)
    assert (grid[1] - 1) * block < width <= grid[1] * block
    rows, ids = slice(None), slice(column, column + width)
    logp = _scaled(logits, rows, ids, scale, BARS, barred_rows, barred_ids) - lse[:, None]
    weight, chosen = torch.zeros_like(lse), torch.zeros_like(logp)
    for row in range(len(logits)):
        for place in range(int(starts[row]), int(starts[row + 1])):
            weight[row] += grads[place]
            if 0 <= targets[place] - column < width:
                chosen[row, targets[place] - column] += grads[place]
    if MEAN:
        weight, chosen = weight + grad_mean, chosen + grad_mean[:, None] / vocab_size
    found = chosen - logp.exp() * weight[:, None]
    if ENTROPY:
        found -= logp.exp() * (logp + entropy[:, None]) * grad_entropy[:, None]
    if BARS:
        found = found.masked_fill((barred_rows[:, None] & barred_ids[ids]).bool(), 0.0)
    logits.copy_(found * scale)


class TorchKernels:
    row_scores = Kernel(_row_scores)
    logit_gradients = Kernel(_logit_gradients)
