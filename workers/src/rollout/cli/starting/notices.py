"""Runs of this machine end, saved, before its cloud takes the machine away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

SAVES = "SnapshotIfTime"


@contextmanager
def heeding_notices(documents: Sequence[Any]) -> Iterator[None]:
    """Where a run saves on notice (``snapshots.onPreemption``) and this is a cloud's machine, its notices are SIGTERM to us."""
    if not any(_saves(one.data) for one in documents):
        yield
        return
    from rollout.cli.output import print_note
    from rollout.clouds.notices import NoticeWatch, find_machine
    from rollout.supervisor.launch import observe_machine

    machine = find_machine(os.environ, accelerated=observe_machine().accelerators > 0)
    if machine is None:
        yield
        return
    with NoticeWatch(machine, heed=lambda _: os.kill(os.getpid(), signal.SIGTERM), note=print_note):
        yield


def _saves(document: dict[str, Any]) -> bool:
    snapshots = (document.get("spec") or {}).get("snapshots") or {}
    return snapshots.get("onPreemption") == SAVES
