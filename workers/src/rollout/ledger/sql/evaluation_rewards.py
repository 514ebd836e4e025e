"""What each reward said of an evaluation's answers: read from their bodies, for metrics beside accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollout.codec import decode_body
from rollout.ledger.sql import loading
from rollout.ledger.sql.transaction import Transaction

READ_TASKS = 512
"""Bodies that are in memory at a time."""


def evaluation_rewards(
    tx: Transaction, key: tuple[str, str, int, int]
) -> dict[int, tuple[Mapping[str, float], ...]]:
    """By prompt and sample; a prompt whose answers are not kept any more is left out."""
    rows = tx.execute(
        "SELECT task_id, ordinal FROM tasks WHERE kind = 'eval' AND evaluation = ? AND split = ?"
        " AND lineage = ? AND step = ? ORDER BY ordinal",
        key,
    ).fetchall()
    found: dict[int, tuple[Mapping[str, float], ...]] = {}
    for start in range(0, len(rows), READ_TASKS):
        ordinals: dict[str, int] = {row[0]: row[1] for row in rows[start : start + READ_TASKS]}
        for task_id, body in loading.read_bodies(tx, list(ordinals)).items():
            found[ordinals[task_id]] = _rewards(body)
    return dict(sorted(found.items()))


def _rewards(body: bytes) -> tuple[Mapping[str, float], ...]:
    made: Sequence[tuple[int, Mapping[str, float]]] = [
        (one.sample, one.rewards) for one in decode_body(body)
    ]
    return tuple(rewards for _, rewards in sorted(made, key=lambda item: item[0]))
