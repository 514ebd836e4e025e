"""The learner process: ``python -m rollout.entrypoints.learner --config W``, alone or under torchrun.

Rank 0 talks to the coordinator. SIGTERM: it ends at the next step boundary, and saves an anchor first where
``snapshots.onPreemption: SnapshotIfTime`` and the grace period leave time for it. What ends a run for good (a loss that is not finite, a manifest that
cannot be done) is reported before the process ends; anything else ends the process, and a new one goes
on from the last anchor.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from rollout.common.grace_period import working_seconds
from rollout.common.stacks import heed_end
from rollout.entrypoints.config import begin_as, parse_arguments, run_process
from rollout.errors import DataError, RolloutError, RunFailed, SpecError
from rollout.learner.build import build_parts
from rollout.learner.forward.memory import keep_freed_memory
from rollout.learner.heartbeat import Heart
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.parallel import Parallel, join
from rollout.learner.objectives.registry import build_settings
from rollout.learner.session import Session
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.messages import Failed, LearnerStarted, Outcome
from rollout_api.worker import WorkerConfig

log = logging.getLogger(__name__)

WORKER = "learner"

FOR_GOOD = (RunFailed, SpecError, DataError)
"""Failures that the next process would only repeat."""


def main() -> None:
    """Run one learner process to its end."""
    config = begin_as(WORKER, parse_arguments(__doc__).config)
    clients: list[CoordinatorClient] = []
    watch = Watch(told_seconds=_heed_signals(config.learner_grace_seconds, clients))
    apply_numerics(threads=config.threads, exact=config.spec.numerics.mode == "Exact")
    keep_freed_memory()
    learner = config.spec.learner
    fsdp = learner.strategy.fsdp
    parallel = join(
        sharded=fsdp is not None and learner.num_processes > 1,
        reshards=fsdp is None or fsdp.reshard_after_forward,
    )
    client = CoordinatorClient.open(config, "learner") if parallel.is_main else None
    clients += [client] if client is not None else []
    try:
        _live(config, parallel, client, watch)
    finally:
        parallel.close()
        if client is not None:
            client.close()


def _live(
    config: WorkerConfig, parallel: Parallel, client: CoordinatorClient | None, watch: Watch
) -> None:
    """Start an incarnation, beat, train, and report how it ends."""
    session = Session(client, WORKER, parallel)
    started = session.start(pid=os.getpid(), host=socket.gethostname())
    if client is None:
        _train(config, parallel, session, started, watch)
        return
    client = client.as_worker(WORKER, started.incarnation)
    heart = Heart(client, started.heartbeat_seconds)
    try:
        with heart:
            reason = _train(config, parallel, session, started, replace(watch, stepped=heart.say))
    except FOR_GOOD as error:
        _report(client, error)
        raise
    log.info("learner ends reason=%s", reason)
    client.call(routes.LEARNER_OUTCOME, Outcome(ok=True, message=reason))


def _train(
    config: WorkerConfig,
    parallel: Parallel,
    session: Session,
    started: LearnerStarted,
    watch: Watch,
) -> str:
    try:
        parts = build_parts(config, build_settings(config), parallel, session)
        return run_learner(parts, started, watch)
    except torch.OutOfMemoryError as error:
        raise RunFailed(
            f"the learner ran out of device memory ({str(error).splitlines()[0]}); lower"
            " train.microBatchTokens or set train.activationCheckpointing"
        ) from error


def _report(client: CoordinatorClient, error: RolloutError) -> None:
    """Tell the coordinator that the run is over."""
    failed = Failed(kind=type(error).__name__, message=str(error))
    try:
        client.call(routes.FAILED, failed)
    except RolloutError as second:
        log.warning("could not report the failure error=%s", second)


def _heed_signals(
    grace_seconds: float, clients: Sequence[CoordinatorClient]
) -> Callable[[], float | None]:
    """The first SIGTERM or SIGINT ends the run's loop at the next boundary, the second at once.

    Gives the seconds that are left for saving since then; None while there was none.
    """
    told_at: list[float] = []

    def tell() -> None:
        told_at.append(time.monotonic())
        for client in clients:
            client.tell_to_go()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    def told_seconds() -> float | None:
        if not told_at:
            return None
        return max(0.0, told_at[0] + working_seconds(grace_seconds) - time.monotonic())

    heed_end(tell)
    return told_seconds


if __name__ == "__main__":
    code = run_process(main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking torch down decently takes a second and saves nothing
