"""Whether a candidate is worse than what serves: one rule for whoever watches it and for whoever decides. Pure."""

from __future__ import annotations

from rollout_api.v1alpha1.inference.endpoint import CanaryFigures, CanaryGuard, CanarySide

MAX_FAILED_SHARE, MAX_FIRST_BYTE_RATIO = 0.01, 1.5
"""Of a guard that does not say."""
FIRST_BYTES_MIN = 20
"""Requests of what serves, below which its percentile says nothing."""


def find_worse(figures: CanaryFigures, guard: CanaryGuard) -> str:
    """What the candidate does worse than ``guard`` allows, for people; empty: nothing, or too few requests to say."""
    ours, theirs = figures.candidate, figures.serving
    if ours.requests < guard.min_requests:
        return ""
    return _find_failures(ours, theirs, guard) or _find_slowness(ours, theirs, guard)


def _find_failures(ours: CanarySide, theirs: CanarySide, guard: CanaryGuard) -> str:
    most = MAX_FAILED_SHARE if guard.max_failed_share is None else guard.max_failed_share
    share, beside = ours.failed_share or 0.0, theirs.failed_share or 0.0
    if share - beside <= most:
        return ""
    return (
        f"it failed {share:.1%} of {ours.requests} requests, what serves {beside:.1%}"
        f" (maxFailedShare {most:g})"
    )


def _find_slowness(ours: CanarySide, theirs: CanarySide, guard: CanaryGuard) -> str:
    most = guard.max_first_byte_ratio or MAX_FIRST_BYTE_RATIO
    first, beside = ours.first_byte_p95, theirs.first_byte_p95
    if theirs.requests < FIRST_BYTES_MIN or not beside or first is None or first / beside <= most:
        return ""
    return (
        f"its first byte took {first:.3g} s at the 95th percentile, that of what serves"
        f" {beside:.3g} s: {first / beside:.2f}x (maxFirstByteRatio {most:g})"
    )


def describe_side(side: CanarySide) -> str:
    """For people."""
    first = "" if side.first_byte_p95 is None else f", first byte p95 {side.first_byte_p95:.3g} s"
    return f"{side.requests} requests, {side.failed_share or 0.0:.1%} failed{first}"
