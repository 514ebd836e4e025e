"""A suspension that arrives late ends the attempt that it was meant for, and no later one."""

from types import SimpleNamespace

from rollout_operator.run.coordinator import stop_order


def observed(attempt):
    children = {}
    if attempt is not None:
        children["StatefulSet", "a-coordinator"] = SimpleNamespace(attempt=attempt)
    return SimpleNamespace(name="a", children=children)


def test_the_order_names_the_attempt_of_the_coordinators_workload():
    assert stop_order(observed(3), "Suspended") == {"reason": "Suspended", "attempt": 3}


def test_where_no_attempt_is_known_whichever_hears_it_stops():
    assert stop_order(observed(0), "Suspended") == {"reason": "Suspended"}
    assert stop_order(observed(None), "Suspended") == {"reason": "Suspended"}
