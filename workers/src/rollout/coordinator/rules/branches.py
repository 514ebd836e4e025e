"""Whether the rows of an episode that has several are ones that a learner can use: looked at before anything is kept.

Their numbers are looked at with those of first rows (``numbers``), their experts by ``models.experts.routes``.
"""

from __future__ import annotations

from rollout.coordinator.plan import RunPlan
from rollout.ledger.records import NewTask
from rollout.turns import ROWS_MAX
from rollout.types import Branch, Trajectory


def check_branches(made: Trajectory, task: NewTask, plan: RunPlan) -> str:
    """What is wrong with a trajectory's further rows; empty when nothing is, or when it has none."""
    further = made.rows[1:]
    if made.branches == ():
        return f"sample {made.sample}: branches are empty: expected them left out"
    if not further:
        return ""
    if wrong := _refusal(task, plan):
        return f"sample {made.sample}: several rows of one episode: {wrong}"
    if len(made.rows) > ROWS_MAX:
        return f"sample {made.sample}: {len(made.rows)} rows: expected at most {ROWS_MAX}"
    wrong = (_check_row(row) for row in further)
    found = next(((n, one) for n, one in enumerate(wrong) if one), None)
    return f"sample {made.sample}: branch {found[0]}: {found[1]}" if found else ""


def _refusal(task: NewTask, plan: RunPlan) -> str:
    if plan.infer is not None:
        return "an inference run answers a row of its data once"
    if task.kind == "train" and not plan.train.branches:
        return "the algorithm of this run learns from one: take grpo or distill"
    return ""


def _check_row(row: Branch | Trajectory) -> str:
    if len({len(row.token_ids), len(row.actor_logprobs), len(row.loss_mask)}) != 1:
        return "tokens, logprobs and mask differ in length"
    if not row.prompt_ids:
        return "no prompt: expected what the policy read before its first token"
    return "" if 1 in row.loss_mask else "nothing of it was sampled: expected it left out"
