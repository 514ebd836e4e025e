"""When a run that is blocked is looked at again: soon at first, the seldomer the longer it is; at once when what it rests on changes."""

from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st
from worlds import PLATFORM, RING, SPEC, World

from rollout_api.conditions import Reason
from rollout_operator.controller.queue import BACKOFF_SECONDS_MAX, Key
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.plan.model import REST_SECONDS, Blocked

TOOLS = {"builtin": {"name": "arithmetic"}, "tools": ["python_exec"]}
RUN = {"name": "run", "namespace": "ns", "uid": "uid-0001", "resourceVersion": "2", "generation": 1}
RUNTIME = {"name": "default", "uid": "runtime", "resourceVersion": "1", "generation": 1}
BOXED = {"allowedNamespaces": {"from": "All"}, "sandbox": {"userNamespaces": True}}


@given(
    first=st.sampled_from([5.0, 10.0, 30.0, 300.0, REST_SECONDS]),
    ages=st.lists(st.integers(0, 10**7), min_size=2).map(sorted),
)
def test_the_pause_grows_with_the_time_that_it_has_stood_there_up_to_that_of_work_that_fails(
    first, ages
):
    gate = Blocked(reason=Reason.NO_STORAGE_CLASS, message="none", retry_seconds=first)
    world = World(gate=gate)
    assert world.tick().requeue_seconds == first
    began, pauses = world.now, []
    for age in ages:
        world.now = began + timedelta(seconds=age)
        pauses.append(world.plan().requeue_seconds)
    assert pauses == sorted(pauses)
    for age, pause in zip(ages, pauses, strict=True):
        assert first <= pause <= max(first, BACKOFF_SECONDS_MAX)
        assert pause <= max(first, 0.1 * (age + 1))


def test_sandboxes_that_may_be_made_from_now_on_are_seen_at_the_next_look():
    store, platforms = RunStore(), [PLATFORM, replace(PLATFORM, sandboxes=True)]
    store.put_object("ClusterRolloutRuntime", {"metadata": RUNTIME, "spec": BOXED})
    spec = {**SPEC, "train": {**SPEC["train"], "environment": TOOLS}}
    store.put_object("RolloutRun", {"metadata": RUN, "spec": spec})
    observer = Observer(
        client=Mock(),
        store=store,
        platform=lambda: platforms[0],
        asker=Mock(),
        keyring=lambda: RING,
    )
    stored = store.find(Key(namespace="ns", name="run", kind="RolloutRun"))

    before = observer.look(stored).gate
    platforms.pop(0)

    assert before is not None and before.reason == "NoSandbox", before
    assert before.retry_seconds == REST_SECONDS
    assert observer.look(stored).gate is None
