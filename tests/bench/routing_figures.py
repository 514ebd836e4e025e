"""Where a gateway sends requests, in simulated time: ours beside round robin and smg's documented rule, on traces it was not tuned to.

Four engines of ``routing_engine.py``. The rule's numbers were chosen on ``routing_trace.CHATS``, seeds 1 to 8, and on 20 drawn mixtures of such kinds; what is reported is four traces of ``AGENTS``, which were
drawn once the rule stood: their seeds begin with the digits of the commit that has it. Users come in one a second; ``FULL_USERS`` keep all engines full, ``HALF_USERS`` do not. No clock is read: the
figures are the same on a busy machine, but for the rule's own processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from figures import Figure, level
from routing_engine import SimulatedEngine
from routing_policies import Ours, Policy, RoundRobin, SmgCacheAware
from routing_race import Outcome, race
from routing_trace import AGENTS, Trace, draw_trace

RULE_COMMIT = 0x6F9CEB6A
SEEDS = tuple(range(RULE_COMMIT, RULE_COMMIT + 4))
TRACES_DIGEST = "214550c83a2b9efceab4dc71b9a2d175"
"""Of what is drawn, so that it is known when another Python draws other traces."""
FULL_USERS, HALF_USERS = 96, 24
CONVERSATIONS = 400
KEYS = 6

Build = Callable[[Sequence[SimulatedEngine]], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """All traces by each policy."""

    ours: tuple[Outcome, ...]
    robin: tuple[Outcome, ...]
    smg: tuple[Outcome, ...]


def measure() -> Iterator[Figure]:
    """Throughput over round robin's, time to the first token over smg's rule's, with and without shared beginnings."""
    full = [_draw(seed, FULL_USERS) for seed in SEEDS]
    drawn = blake2b("".join(one.digest for one in full).encode(), digest_size=16).hexdigest()
    assert drawn == TRACES_DIGEST, f"other traces: {drawn}"
    yield from _shared("full", _play(full))
    yield from _shared("half full", _play([_draw(seed, HALF_USERS) for seed in SEEDS]), bar="info")
    alone = _play([one.alone() for one in full])
    yield level(
        "full, nothing shared: throughput over round robin",
        _throughput(alone.ours, alone.robin),
        "x",
        ">= 0.98",
    )
    yield level("full, nothing shared: TTFT p90 over smg's rule", _waits(alone, 0.9), "x", "info")
    yield level("processor time of the rule a request", _cost(full), "us", "info")


def _shared(load: str, runs: Runs, bar: str = "") -> Iterator[Figure]:
    name = f"{load}, shared beginnings"
    yield level(
        f"{name}: throughput over round robin",
        _throughput(runs.ours, runs.robin),
        "x",
        bar or ">= 1.5",
    )
    yield level(f"{name}: TTFT p90 over smg's rule", _waits(runs, 0.9), "x", bar or "<= 1")
    yield level(f"{name}: TTFT p50 over smg's rule", _waits(runs, 0.5), "x", "info")
    yield level(
        f"{name}: throughput over smg's rule", _throughput(runs.ours, runs.smg), "x", "info"
    )
    for side in ("ours", "robin", "smg"):
        found: tuple[Outcome, ...] = getattr(runs, side)
        yield level(f"{name}: cached, {side}", [one.cached for one in found], "share", "info")
        waits = [one.first_token_seconds(0.9) for one in found]
        yield level(f"{name}: TTFT p90, {side}", waits, "s", "info")


def _play(traces: Sequence[Trace]) -> Runs:
    sides: dict[str, Build] = {"ours": Ours, "robin": RoundRobin, "smg": SmgCacheAware}
    return Runs(
        **{side: tuple(race(one, build) for one in traces) for side, build in sides.items()}
    )


def _draw(seed: int, users: int) -> Trace:
    return draw_trace("agents", seed, AGENTS, users=users, num=CONVERSATIONS, keys=KEYS)


def _throughput(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> list[float]:
    return [a.throughput / b.throughput for a, b in zip(ours, theirs, strict=True)]


def _waits(runs: Runs, share: float) -> list[float]:
    pairs = zip(runs.ours, runs.smg, strict=True)
    return [a.first_token_seconds(share) / b.first_token_seconds(share) for a, b in pairs]


def _cost(traces: Sequence[Trace]) -> list[float]:
    """What ``Ours`` takes more than ``RoundRobin``, of the same simulation."""
    spent = []
    for trace in traces[:3]:
        seconds = []
        for build in (RoundRobin, Ours):
            began = time.process_time()
            outcome = race(trace, build)
            seconds.append((time.process_time() - began) / len(outcome.requests))
        spent.append((seconds[1] - seconds[0]) * 1e6)
    return spent
