"""RolloutSnapshots that schedules of a run have made, as the store knows them. Reads; decides nothing."""

from __future__ import annotations

import json
from typing import Literal

from rollout_api.names import LABEL_RUN_UID, LABEL_SCHEDULE
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.run.index.references import SNAPSHOT
from rollout_operator.run.plan.model import MadeSnapshot

WORDS_MAX = 300


def find_made(store: Store, run: Stored) -> tuple[MadeSnapshot, ...]:
    """Those that bear a schedule's label and this run's UID, the oldest first."""
    named = (store.find(key) for key in store.index.referrers(run.key) if key.kind == SNAPSHOT)
    made = (_read(one, run.uid) for one in named if one is not None)
    found = [one for one in made if one is not None]
    return tuple(sorted(found, key=lambda one: (one.created, one.name)))


def is_made(stored: Stored | None) -> bool:
    """Whether an object is a schedule's."""
    return stored is not None and stored.key.kind == SNAPSHOT and LABEL_SCHEDULE in stored.labels()


def _read(stored: Stored, uid: str) -> MadeSnapshot | None:
    labels = stored.labels()
    if labels.get(LABEL_RUN_UID) != uid or LABEL_SCHEDULE not in labels:
        return None
    state, words = _state(stored)
    return MadeSnapshot(
        name=stored.key.name,
        uid=stored.uid,
        version=stored.version,
        schedule=labels[LABEL_SCHEDULE],
        created=stored.facts.created,
        state=state,
        deleting=stored.deleting,
        retained=json.loads(stored.spec).get("deletionPolicy") != "Delete",
        words=words,
    )


def _state(stored: Stored) -> tuple[Literal["Active", "Complete", "Failed"], str]:
    if not stored.facts.finished:
        return "Active", ""
    said = {one["type"]: one for one in stored.read_status().get("conditions", ())}
    failed = said.get("Failed", {})
    if failed.get("status") != "True":
        return "Complete", ""
    return "Failed", f"{failed.get('reason')}: {failed.get('message')}"[:WORDS_MAX]
