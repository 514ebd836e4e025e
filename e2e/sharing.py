"""How the tests of this folder are shared among workers: by file, all real nodes on one of them, the longest first.

Clusters of real nodes are the machine's largest: two workers that each have one would be slower than one after the
other. The attacks of tenants share one installation of the chart. A long file that begins last keeps one worker
waiting for the other.
"""

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
REAL = "real-nodes"
TENANTS = "tenants"
"""A folder whose files are one share."""
LONG = (
    TENANTS,
    "test_watches_break_and_nothing_is_lost",
    "test_every_call_may_fail",
    "test_the_webhook_guards_runs",
    "test_one_of_two_operators_writes",
    "test_the_kinds_come_with_the_chart",
    "test_the_control_plane_goes_and_comes_back",
    "test_people_work_with_the_commands",
    "test_the_operator_is_quiet",
    "test_the_charts_upgrade_under_living_runs",
    "test_runs_that_cannot_start_say_why",
    "test_nobody_operates",
    "test_a_living_run_keeps_its_settings",
    "test_the_operator_may_die_at_any_call",
)
"""Of shares without real nodes, the longest first."""


@cache
def group_of(file: Path) -> str:
    """The worker's share that the tests of a file belong to: the file, its folder, or everything with real nodes."""
    if file.parent.name == TENANTS:
        return TENANTS
    return REAL if "mark.real_nodes" in file.read_text() else file.stem


def scope_of(nodeid: str) -> str:
    """The share of a test, by its id."""
    return group_of(ROOT / nodeid.partition("::")[0])


def rank_of(group: str) -> int:
    """When a share begins: real nodes, then the longest files, then the others."""
    order = (REAL, *LONG)
    return order.index(group) if group in order else len(order)


def sort_by_share(items: list[pytest.Item]) -> None:
    """Bring the shares into order; each file's tests stay as they are."""
    items.sort(key=lambda item: rank_of(group_of(item.path)))


class ByShare(LoadScopeScheduling):
    """Hands whole shares to workers. xdist's own ``loadgroup`` marks ids in a way that pytest 9.2 does not read."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
