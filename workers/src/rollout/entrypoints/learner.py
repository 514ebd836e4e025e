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
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rollout.common.grace_period import working_seconds
from rollout.common.stacks import heed_end
from rollout.entrypoints.config import begin_as, parse_arguments, run_process
from rollout.errors import CoordinatorError, DataError, RolloutError, RunFailed, SpecError
from rollout.learner.build import build_parts
from rollout.learner.context import LearnerContext
from rollout.learner.forward.memory import keep_freed_memory
from rollout.learner.heartbeat import Heart
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.parallel import Parallel, join
from rollout.learner.objectives.registry import build_settings
from rollout.learner.session import Session
from rollout.learner.standby.following import Held, News, stand_by, try_seat
from rollout.learner.standby.seat import find_seat
from rollout.learner.standby.still import StillPoint, Stood
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
        sequence=learner.sequence_parallel,
    )
    still = StillPoint(os.environ, parallel)
    watch = replace(watch, stands_still=still.is_wanted)
    try:
        stood = _call_and_live(config, parallel, clients, watch, None)
        while stood is not None:
            config = _stand_still(still, stood, config)
            stood = _call_and_live(config, parallel, clients, watch, stood)
    finally:
        parallel.close()


def _stand_still(still: StillPoint, stood: Stood, config: WorkerConfig) -> WorkerConfig:
    """Stay while an image is made; the configuration of the run that is gone on with. Raises SpecError."""
    log.info("learner stands still step=%d", stood.progress.step)
    told = still.stand(stood)
    return config if told is None else begin_as(WORKER, told)


def _call_and_live(
    config: WorkerConfig,
    parallel: Parallel,
    clients: list[CoordinatorClient],
    watch: Watch,
    stood: Stood | None,
) -> Stood | None:
    """``_live`` with a client of the coordinator, on rank 0; it is closed then, and no connection is left."""
    client = CoordinatorClient.open(config, "learner") if parallel.is_main else None
    clients[:] = [client] if client is not None else []
    try:
        return _live(config, parallel, client, watch, stood)
    finally:
        if client is not None:
            client.close()


def _live(
    config: WorkerConfig,
    parallel: Parallel,
    client: CoordinatorClient | None,
    watch: Watch,
    stood: Stood | None = None,
) -> Stood | None:
    """Stand by where another learner is the one; then start an incarnation, beat, train, and report how it ends.

    What it holds where it is to stand still; ``stood`` is what it goes on from then.
    """
    session = Session(client, WORKER, parallel)
    begins = (
        _wait_for_seat(config, parallel, client, session, watch)
        if stood is None
        else _begin_again(stood, config, session)
    )
    if begins is None:
        return None
    started = session.start(pid=os.getpid(), host=socket.gethostname())
    _require_beginning(begins, started)
    if client is None:
        reached = _train(config, parallel, session, started, watch, begins)
        return reached if isinstance(reached, Stood) else None
    client = client.as_worker(WORKER, started.incarnation)
    heart = Heart(client, started.heartbeat_seconds)
    try:
        with heart:
            watch = replace(watch, stepped=heart.say)
            reached = _train(config, parallel, session, started, watch, begins)
    except FOR_GOOD as error:
        _report(client, error)
        raise
    if isinstance(reached, Stood):
        heart.join()
        return reached
    log.info("learner ends reason=%s", reached)
    client.call(routes.LEARNER_OUTCOME, Outcome(ok=True, message=reached))
    return None


def _begin_again(stood: Stood, config: WorkerConfig, session: Session) -> _Beginning:
    held = Held(
        progress=stood.progress,
        fresh=False,
        lineage=stood.progress.lineage,
        step=stood.progress.step,
    )
    return _Beginning(parts=stood.begin(config, session), held=held)


def _train(
    config: WorkerConfig,
    parallel: Parallel,
    session: Session,
    started: LearnerStarted,
    watch: Watch,
    begins: _Beginning,
) -> str | Stood:
    """Until the run ends, for which reason, or until the learner is to stand still."""
    try:
        if begins.parts is not None and begins.held is not None:
            parts = begins.parts
            held = begins.held.progress if begins.held.serves(started) else None
        else:
            parts, held = build_parts(config, build_settings(config), parallel, session), None
        reached = run_learner(parts, started, watch, held)
        return reached if isinstance(reached, str) else Stood(parts=parts, progress=reached)
    except torch.OutOfMemoryError as error:
        raise RunFailed(
            f"the learner ran out of device memory ({str(error).splitlines()[0]}); lower"
            " train.microBatchTokens or set train.activationCheckpointing"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """What a learner has that begins: nothing, or what it is made of and the state that it held as it stood by."""

    parts: LearnerContext | None = None
    held: Held | None = None


def _wait_for_seat(
    config: WorkerConfig,
    parallel: Parallel,
    client: CoordinatorClient | None,
    session: Session,
    watch: Watch,
) -> _Beginning | None:
    """Begin, at once or after another learner, where there are two; None: nobody is needed any more."""
    calls = None if client is None else client.as_worker(WORKER)
    seat = find_seat(Path(config.layout.run_dir), os.environ) if parallel.is_main else None
    news = parallel.on_main(lambda: try_seat(calls, seat), News)
    if news.leave is not None:
        return None
    if news.begins:
        return _Beginning()
    parts = build_parts(config, build_settings(config), parallel, session)
    held = stand_by(parts, calls, seat, watch.told_seconds)
    return None if held is None else _Beginning(parts=parts, held=held)


def _require_beginning(begins: _Beginning, started: LearnerStarted) -> None:
    """Raises CoordinatorError where this process can only be replaced by a fresh one."""
    if begins.held is not None and not begins.held.can_begin(started):
        raise CoordinatorError(
            f"the standby's state after step {begins.held.step} is not the committed one, and no anchor is there to"
            " load: another process begins from the model's files"
        )


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
