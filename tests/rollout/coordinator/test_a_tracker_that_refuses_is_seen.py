"""A tracker that takes one kind of what it is told and refuses another is in trouble until it takes that one again."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rollout.coordinator.duties.tracking import tell

KINDS = ("steps", "events")


def refuse() -> None:
    raise OSError("no room")


@given(calls=st.lists(st.tuples(st.integers(0, 1), st.sampled_from(KINDS), st.booleans())))
def test_what_it_takes_of_one_kind_says_nothing_of_another(calls):
    run = SimpleNamespace(trackers=[object(), object()], bad_trackers={})
    last = {}

    for index, kind, taken in calls:
        tell(run, index, kind, (lambda: None) if taken else refuse)
        last[index, kind] = taken

    refused = {key for key, taken in last.items() if not taken}
    assert run.bad_trackers == {f"object {i} {kind}": "object: no room" for i, kind in refused}
