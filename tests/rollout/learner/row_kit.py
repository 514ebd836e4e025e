"""Rows that every offline algorithm reads, and the settings of one of each kind."""

from __future__ import annotations

from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.preference.reward_model import RewardModelSettings
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.config.sft import SftSettings
from rollout.protocol import messages as m


def make_rows(step: int) -> m.Batch:
    def row(n: int) -> dict:
        messages = [{"role": "user", "content": f"{n % 7}+{n % 7}="}]
        answer = str(2 * (n % 7))
        told = {"answer": answer, "chosen": answer, "rejected": "?", "label": n % 2 > 0}
        return {"messages": messages, **told}

    ordinals = range(4 * step, 4 * step + 4)
    return m.Batch(
        step=step,
        ids=tuple((f"r/{n}",) for n in ordinals),
        rows=tuple(m.DataRow(ordinal=n, row=row(n)) for n in ordinals),
        cursor=m.Cursor(next_ordinal=ordinals.stop),
    )


OFFLINE = {
    "sft": SftSettings(loss="CompletionOnly", packing=True, max_length=16),
    "dpo": PairSettings(loss=DpoSettings(), max_length=16),
    "kto": LabelSettings(loss=KtoSettings(), max_length=16),
    "rm": RewardSettings(loss=RewardModelSettings(), max_length=16, seed=3),
}
