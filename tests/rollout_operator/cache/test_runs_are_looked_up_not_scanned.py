"""What is asked of many runs at once is kept by the store, and is what a scan of all of them would find."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_operator.controller.queue import Key
from rollout_operator.run.index.store import RunStore

REASONS = ("RuntimeNotFound", "InvalidSpec", "Running", "Succeeded")
NAMES = ("a", "b", "c")
STATUSES = st.sampled_from(
    [
        {},
        *({"conditions": [{"type": "Ready", "status": "False", "reason": one}]} for one in REASONS),
        {"conditions": [{"type": "Suspended", "status": "True", "reason": "Suspended"}]},
        {
            "conditions": [
                {"type": "Finished", "status": "True", "reason": "Failed"},
                {"type": "Ready", "status": "False", "reason": "InvalidSpec"},
            ]
        },
    ]
)


def live(name, uid, version, status, upstream):
    meta = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(version)}
    spec = {"model": {"fromRun": {"name": upstream}}} if upstream else {}
    return {"metadata": meta, "spec": spec, "status": status}


CHANGES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["put", "drop"]), STATUSES, st.sampled_from(["", *NAMES])),
    max_size=20,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(CHANGES)
def test_the_index_says_what_a_scan_would_say(changes):
    store, there, uids = RunStore(), {}, dict.fromkeys(NAMES, 0)
    for version, (name, verb, status, upstream) in enumerate(changes, 1):
        document = live(name, f"{name}{uids[name]}", version, status, upstream)
        if verb == "put":
            store.put_object("RolloutRun", document)
            there[name] = document
        else:
            store.drop_object("RolloutRun", document)
            there.pop(name, None)
            uids[name] += 1

    for reason in REASONS:
        assert set(store.index.waiting((reason,), "n")) == {
            Key(namespace="n", name=name, kind="RolloutRun")
            for name, one in there.items()
            if waits(one, reason)
        }
    for upstream in NAMES:
        assert {key.name for key in store.index.referrers(Key(namespace="n", name=upstream, kind="RolloutRun"))} == {
            name for name, one in there.items() if one["spec"].get("model") == {"fromRun": {"name": upstream}}
        }  # fmt: skip
    assert store.index.num_at_work == sum(works(one) for one in there.values())
    assert sum(store.index.by_ready().values()) == len(there)


def waits(one, reason):
    conditions = one["status"].get("conditions", ())
    over = any(c["type"] == "Finished" for c in conditions)
    return not over and any(c["reason"] == reason for c in conditions)


def works(one):
    return not {c["type"] for c in one["status"].get("conditions", ())} & {"Finished", "Suspended"}


def test_only_runs_are_looked_up():
    store = RunStore()
    found = {"conditions": [{"type": "Ready", "status": "False", "reason": "InvalidSpec"}]}
    store.put_object("RolloutRuntime", live("a", "u", 1, found, ""))
    assert store.index.waiting(("InvalidSpec",), "") == []
    assert store.index.by_ready() == {}


def test_a_run_that_has_finished_waits_for_nothing_and_wakes_those_that_start_from_it():
    store = RunStore()
    over = {"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}]}
    store.put_object("RolloutRun", live("a", "a", 1, over, ""))
    store.put_object("RolloutRun", live("b", "b", 2, {}, "a"))
    store.put_object("RolloutRun", live("c", "c", 3, {}, "b"))
    assert store.index.referrers(Key(namespace="n", name="a", kind="RolloutRun")) == [
        Key(namespace="n", name="b", kind="RolloutRun")
    ]
    assert store.index.referrers(Key(namespace="other", name="a", kind="RolloutRun")) == []
