"""What stands in for the learner's Triton kernels where there is no Triton: the same ones, written out in torch."""

from __future__ import annotations

import torch

BARRED = -1e30


class Kernel:
    """Called as Triton's are, for all programs at once."""

    def __init__(self, work):
        self._work = work

    def __getitem__(self, grid):
        def call(*args, num_warps=4, **constants):
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


def _norm_rows(grid, block, x, weight, out, scales, num_rows, size, eps, ROWS):
    assert size <= block
    assert (grid[0] - 1) * ROWS < num_rows <= grid[0] * ROWS
    scales.copy_((x.float().square().mean(-1) + eps).rsqrt())
    out.copy_(weight * (x.float() * scales[:, None]).to(x.dtype))


def _norm_gradients(grid, block, grad, x, weight, scales, grad_x, sums, num_rows, size, ROWS):
    given, unit = grad.view(x.shape).float(), x.float() * scales[:, None]
    terms = given * unit.to(x.dtype).float()
    for program in range(grid[0]):
        taken = [row for row in range(num_rows) if row // ROWS % grid[0] == program]
        sums[program] = terms[taken].sum(0)
    inner = given * weight.float()
    shared = (inner * unit).mean(-1, keepdim=True)
    grad_x.copy_((inner - unit * shared) * scales[:, None])


def _gate_values(grid, block, gate, up, out, count):
    assert (grid[0] - 1) * block < count <= grid[0] * block
    out.copy_(torch.nn.functional.silu(gate) * up)


def _gate_gradients(grid, block, grad, gate, up, grad_gate, grad_up, count):
    share = gate.float().sigmoid()
    outer = (grad.view(up.shape) * up).float()
    grad_gate.copy_(outer * share * (1 + gate.float() * (1 - share)))
    grad_up.copy_(grad.view(up.shape) * torch.nn.functional.silu(gate))


class TorchKernels:
    row_scores = Kernel(_row_scores)
    logit_gradients = Kernel(_logit_gradients)
    norm_rows = Kernel(_norm_rows)
    norm_gradients = Kernel(_norm_gradients)
    gate_values = Kernel(_gate_values)
    gate_gradients = Kernel(_gate_gradients)
