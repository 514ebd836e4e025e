"""Usage and tables of prices, as tests make them up."""

from __future__ import annotations

from hypothesis import strategies as st

from rollout.costs.prices import PriceTable, load_table
from rollout.costs.usage import Lifetime, RunUsage

HOUR = 3_600_000
JANUARY = 1_767_225_600_000
"""2026-01-01T00:00:00Z, in milliseconds."""
POD = {"pods": 1, "requests": [{"cpu": "4", "memory": "8Gi"}, {"nvidia.com/gpu": "1"}]}

TABLE = """
currency: EUR
prices:
  - {machine: "*", from: 2026-01-01, perHour: "0.35"}
  - {machine: "*", from: 2026-02-14, perHour: "0.41"}
  - {resource: cpu, from: 2026-01-01, perHour: "0.033"}
  - {resource: memory, from: 2026-01-01, perHour: "0.0041"}
  - {resource: nvidia.com/gpu, from: 2026-01-01, perHour: "2.10"}
  - {resource: nvidia.com/gpu, from: 2026-03-01, perHour: "1.99"}
"""


def table(text: str = TABLE) -> PriceTable:
    return load_table("prices.yaml", text)


def stay(begin: int, end: int, worker: str = "actor-0", **place: object) -> Lifetime:
    return Lifetime(worker=worker, role="actor", span=(begin, end), place=place or POD)


def used(*stays: Lifetime, run: str = "r", **further: object) -> RunUsage:
    return RunUsage(run=run, uid=run, stays=stays, **further)


def spans(low: int = JANUARY, high: int = JANUARY + 100 * 24 * HOUR) -> st.SearchStrategy:
    """From and to, over several months and changes of price."""
    return st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda pair: (min(pair), max(pair))
    )
