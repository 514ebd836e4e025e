"""How the tests of this folder are shared among workers: by file, all real nodes on one of them, the longest first.

Clusters of real nodes are the machine's largest: two workers that each have one would be slower than one after the
other. A long file that begins last keeps one worker waiting for the other.
"""

import pytest

REAL = "real-nodes"
LONG = (
    "test_watches_break_and_nothing_is_lost",
    "test_one_of_two_operators_writes",
    "test_every_call_may_fail",
    "test_the_control_plane_goes_and_comes_back",
    "test_the_operator_is_quiet",
    "test_two_runs_share_what_there_is",
    "test_the_webhook_guards_runs",
    "test_nobody_operates",
    "test_a_living_run_keeps_its_settings",
    "test_the_operator_may_die_at_any_call",
)
"""Of those without real nodes, the longest first."""


def group_of(item: pytest.Item) -> str:
    """The worker's share that a test belongs to: its file, or everything with real nodes."""
    return REAL if item.get_closest_marker("real_nodes") else item.path.stem


def rank_of(group: str) -> int:
    """When a share begins: real nodes, then the longest files, then the others."""
    order = (REAL, *LONG)
    return order.index(group) if group in order else len(order)


def share(items: list[pytest.Item]) -> None:
    """Give every test its share, and bring the shares into order; each file's tests stay as they are."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    items.sort(key=lambda item: rank_of(group_of(item)))
