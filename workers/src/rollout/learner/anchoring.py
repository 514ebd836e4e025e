"""Saving anchors beside training: the state is copied at a step boundary, and written while the next steps are taken.

One save is under way at most; whoever begins the next waits for it. The coordinator hears of an anchor once it is
durable, between two steps, when nothing else of this learner is on its way into the store. A save that fails ends the
learner there, as one that held training up would have. Killed at any moment, only the unreported anchor is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

import torch

from rollout.errors import StoreError
from rollout.learner.checkpoint import (
    WEIGHTS,
    CapturedState,
    Progress,
    capture,
    copy_groups,
    state_groups,
    whole_groups,
    write_anchor,
)
from rollout.learner.context import LearnerContext
from rollout.protocol import routes
from rollout.protocol.messages import AnchorManifest, AnchorSaved
from rollout.types import WeightVersion
from rollout.weights.safetensors import safetensors_parts
from rollout.weights.staging import Groups, Staging

log = logging.getLogger(__name__)

SERVED = "served"
"""Copies of what is served where the masters alone do not say it; no object of an anchor."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A save under way. On ranks other than the first there is nothing in it but the progress.

    ``served``: the version's weights, where they may have to be stored and are not made of the masters.
    """

    captured: CapturedState
    served: Mapping[str, torch.Tensor]
    written: Future[AnchorManifest]


class Anchoring:
    """Owns the copy of the state and the thread that writes it. Leave the context when training ends."""

    def __init__(
        self, parts: LearnerContext, anchored: int, clock: Clock, wall_clock: Clock
    ) -> None:
        """``anchored``: the step of the last anchor there is; -1 without one."""
        self._parts, self._clock, self._wall_clock = parts, clock, wall_clock
        self._anchored, self._reported = anchored, max(anchored, 0)
        self._seconds = 0.0
        self._staging = Staging()
        self._save: Save | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="anchor")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A learner that fails does not wait for a disk: what is not reported does not count.
        self._pool.shutdown(wait=error is None, cancel_futures=True)

    def begin(self, progress: Progress) -> None:
        """Save the state of ``progress``; returns once it is copied. Call on every rank. Raises as ``poll``."""
        self._settle()
        began = self._clock()
        self._anchored = progress.step
        copies = self._copy(progress.version)
        if copies is None:
            save_anchor(self._parts, progress, self._wall_clock)
            self._seconds, self._reported = self._clock() - began, progress.step
            return
        served = copies.pop(SERVED, {})
        save = Save(
            captured=_capture(self._parts, progress, self._wall_clock, copies),
            served=served,
            written=Future(),
        )
        if self._parts.parallel.is_main:
            save = replace(save, written=self._pool.submit(self._write, save, began))
        self._save = save

    def poll(self) -> tuple[int, int] | None:
        """Report the save under way if it is durable; the version that is still needed for one. Call on every rank.

        Raises what the save failed with (StoreError, NoSpace), and CoordinatorError.
        """
        save = self._save
        if save is None:
            return None
        if self._parts.parallel.on_main(save.written.done, bool):
            self._settle()
            return None
        version = save.captured.manifest.version
        return version.lineage, version.step

    def keep_near(self, step: int, replay_steps_max: int | None) -> None:
        """Before ``step`` is taken: wait for the save under way if a restart would have to replay too many steps.

        Call on every rank. Raises as ``poll``.
        """
        if replay_steps_max is not None and step - self._reported > replay_steps_max:
            self._settle()

    def finish(self, progress: Progress, seconds_left: float | None) -> None:
        """End what is under way, then save ``progress`` if it is not, and there is time. Call on every rank.

        ``seconds_left`` None: there is. An anchor is taken to last as long as the one before; the first one of a
        process is tried: one that is not done in time never was.
        """
        if self._save is not None:
            began = self._clock()
            self._settle()
            waited = self._clock() - began
            seconds_left = None if seconds_left is None else seconds_left - waited
        if progress.step != self._anchored and self._has_time(seconds_left):
            save_anchor(self._parts, progress, self._wall_clock)
            self._anchored = progress.step

    def _has_time(self, left: float | None) -> bool:
        """Rank 0 decides for all."""
        if left is None:
            return True
        fits = self._parts.parallel.on_main(lambda: self._seconds < left, bool)
        log.info("told to go seconds=%.1f anchor_seconds=%.1f saves=%s", left, self._seconds, fits)
        return fits

    def _copy(self, version: WeightVersion) -> dict[str, Mapping[str, torch.Tensor]] | None:
        """The state copied to the host: on other ranks than the first nothing; None on all where memory is scarce."""
        parts, parallel = self._parts, self._parts.parallel
        groups = state_groups(parts.trainer)
        if parts.trainer.policy.serves_merged and not is_stored(parts, version):
            groups[SERVED] = parts.trainer.policy.weights()
        copies = self._staging.place(groups) if parallel.is_main else {}
        if not parallel.on_main(lambda: copies is not None, bool) or copies is None:
            return None
        copy_groups(groups, copies)
        return dict(copies)

    def _write(self, save: Save, began: float) -> AnchorManifest:
        """On rank 0, in the thread."""
        try:
            manifest = _write(self._parts, save)
        except StoreError:
            log.exception("anchor not saved step=%d", save.captured.manifest.step)
            raise
        self._seconds = self._clock() - began
        return manifest

    def _settle(self) -> None:
        """Wait for the save under way, and report it."""
        save, self._save = self._save, None
        if save is None:
            return
        saved = _saved(self._parts, save.written.result)
        write_again = partial(_write, self._parts, save)
        _report(self._parts, saved, partial(_saved, self._parts, write_again))
        self._reported = saved.manifest.step


def save_anchor(parts: LearnerContext, progress: Progress, wall_clock: Clock) -> None:
    """Save an anchor with the weights of its version, and tell the coordinator; call on every rank. Raises StoreError."""

    def save() -> AnchorSaved:
        _store_missing(parts, progress)
        groups = whole_groups(state_groups(parts.trainer))
        captured = _capture(parts, progress, wall_clock, groups)
        return _saved(parts, lambda: write_anchor(parts.place, captured))

    _report(parts, save(), save)


def is_stored(parts: LearnerContext, version: WeightVersion) -> bool:
    """Whether every object of the version is in the store; call on every rank."""
    return parts.parallel.on_main(lambda: all(map(parts.store.has, version.objects)), bool)


def _capture(
    parts: LearnerContext, progress: Progress, wall_clock: Clock, tensors: Groups
) -> CapturedState:
    return capture(
        parts.trainer,
        progress,
        tensors,
        identity=parts.identity,
        created_at=wall_clock(),
    )


def _saved(parts: LearnerContext, written: Callable[[], AnchorManifest]) -> AnchorSaved:
    return AnchorSaved(manifest=parts.parallel.on_main(written, AnchorManifest))


def _report(parts: LearnerContext, saved: AnchorSaved, again: Callable[[], AnchorSaved]) -> None:
    saved, _ = parts.session.offer(routes.ANCHOR, saved, again)
    log.info("anchor saved name=%s chain=%s", saved.manifest.name, saved.manifest.chain)


def _write(parts: LearnerContext, save: Save) -> AnchorManifest:
    """The version's weights, unless they are there or an object of the anchor; then the anchor."""
    policy, captured = parts.trainer.policy, save.captured
    there = all(map(parts.store.has, captured.manifest.version.objects))
    if not there and not policy.serves_masters:
        weights = save.served
        if not policy.serves_merged:
            weights = policy.weights_of(captured.tensors[WEIGHTS])
        parts.store.put_parts(safetensors_parts(weights))
    return write_anchor(parts.place, captured)


def _store_missing(parts: LearnerContext, progress: Progress) -> None:
    """Store the version's weights whole unless they are there; call on every rank."""
    if not is_stored(parts, progress.version):
        weights = parts.trainer.policy.weights()
        parts.parallel.on_main(lambda: parts.store.put_parts(safetensors_parts(weights)), str)
