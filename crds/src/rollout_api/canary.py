"""Whether a candidate is worse than what serves: one rule for whoever watches it and for whoever decides. Pure."""

from __future__ import annotations

from rollout_api.v1alpha1.inference.endpoint import CanaryFigures, CanaryGuard, CanarySide

FIRST_BYTES_MIN = 20
"""Requests of what serves, below which its percentile says nothing."""


def find_worse(figures: CanaryFigures, guard: CanaryGuard) -> str:
    """What the candidate does worse than ``guard`` allows, for people; empty: nothing, or too few requests to say."""
    ours, theirs = figures.candidate, figures.serving
    if ours.requests < guard.min_requests:
        return ""
    excess = ours.failed_share - theirs.failed_share
    if excess > guard.max_failed_share:
        return (
            f"it failed {ours.failed_share:.1%} of {ours.requests} requests, what serves {theirs.failed_share:.1%}"
            f" (maxFailedShare {guard.max_failed_share:g})"
        )
    if (
        theirs.requests < FIRST_BYTES_MIN
        or not theirs.first_byte_p95
        or ours.first_byte_p95 is None
    ):
        return ""
    ratio = ours.first_byte_p95 / theirs.first_byte_p95
    if ratio > guard.max_first_byte_ratio:
        return (
            f"its first byte took {ours.first_byte_p95:.3g} s at the 95th percentile, that of what serves"
            f" {theirs.first_byte_p95:.3g} s: {ratio:.2f}x (maxFirstByteRatio {guard.max_first_byte_ratio:g})"
        )
    return ""


def describe_side(side: CanarySide) -> str:
    """For people."""
    first = "" if side.first_byte_p95 is None else f", first byte p95 {side.first_byte_p95:.3g} s"
    return f"{side.requests} requests, {side.failed_share:.1%} failed{first}"
