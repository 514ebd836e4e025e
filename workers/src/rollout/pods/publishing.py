"""Beside a coordinator without a learner: the child that gives the run its one weight version.

It is started again with back-off while the coordinator works, ``limits.retries`` times; after that the
coordinator's container ends with its exit code, for the kubelet and the operator to act on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rollout.common.restarts import GiveUp, ProcessEnd, RestartRules, plan_restart
from rollout.ledger.opening import DSN_VARIABLE
from rollout.pods.child import run_child

log = logging.getLogger(__name__)

MODULE = "rollout.entrypoints.model"
EXIT_INPUT = 2
"""Bad input stays bad: what it said is in the coordinator's outcome."""


@dataclass(slots=True, kw_only=True)
class Published:
    """How the child ended for good; ``over`` is set where the coordinator is to end with it."""

    over: threading.Event = field(default_factory=threading.Event)
    code: int = 0


@contextmanager
def publishing(
    config: Path, environment: Mapping[str, str], retries_max: int, told: threading.Event
) -> Iterator[Published]:
    """Have the version published while the block runs. The ledger's connection string stays with the coordinator."""
    made, left = Published(), threading.Event()
    own = {name: value for name, value in environment.items() if name != DSN_VARIABLE}

    def work() -> None:
        made.code = _publish(config, own, RestartRules(retries_max=retries_max), told, left)
        if made.code:
            made.over.set()

    worker = threading.Thread(target=work, daemon=True, name="publishing")
    worker.start()
    try:
        yield made
    finally:
        left.set()
        worker.join()


def _publish(
    config: Path,
    environment: Mapping[str, str],
    rules: RestartRules,
    told: threading.Event,
    left: threading.Event,
) -> int:
    """Until it succeeded, was told to go, or cannot: the exit code that says which."""
    endings: list[ProcessEnd] = []
    while not told.is_set() and not left.is_set():
        began = time.monotonic()
        code = run_child(MODULE, ("--config", str(config)), environment, told, left)
        if not code:
            return 0
        endings.append(ProcessEnd(started_at=began, ended_at=time.monotonic(), code=code))
        step = plan_restart("the model's publisher", endings[-rules.retries_max - 1 :], rules)
        if isinstance(step, GiveUp) or code == EXIT_INPUT:
            return 0 if told.is_set() or left.is_set() else code
        left.wait(max(0.0, step.at - time.monotonic()))
    return 0
