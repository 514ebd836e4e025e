"""Many events of one object are one piece of work; kopf writes nothing onto objects."""

import asyncio

import kopf
import pytest

from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.handlers import apply_settings, register
from rollout_operator.run.index.store import RunStore
from rollout_operator.settings import Settings, parse_settings


async def test_a_key_waits_once_however_many_events_name_it():
    queue = KeyQueue()
    for name in ("a", "b", "a", "a"):
        queue.put(Key(namespace="n", name=name, kind="RolloutRun"))

    assert [(await queue.get()).name, (await queue.get()).name] == ["a", "b"]
    assert len(queue) == 0


async def test_get_waits_for_a_key():
    queue = KeyQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()

    queue.put(Key(namespace="n", name="late", kind="RolloutRun"))

    assert (await waiting).name == "late"


def test_only_event_handlers_are_registered():
    registry = kopf.OperatorRegistry()
    register(registry, RunStore(), Settings())

    assert not registry._changing.get_all_handlers()
    assert len(registry._watching.get_all_handlers()) == 6


def test_in_namespaced_mode_nothing_of_the_cluster_is_watched():
    registry = kopf.OperatorRegistry()
    register(registry, RunStore(), Settings(namespaces=("a",)))

    assert len(registry._watching.get_all_handlers()) == 5


def test_kopf_posts_no_events_of_its_own():
    target = kopf.OperatorSettings()
    apply_settings(target, Settings())
    assert target.posting.enabled is False


def test_kopf_copies_no_object_to_compare_it():
    target = kopf.OperatorSettings()
    apply_settings(target, Settings())
    body = kopf.Body({"metadata": {"name": "a"}, "spec": {"seed": 1}})
    assert target.persistence.diffbase_storage.build(body=body, extra_fields=()) == {}
    assert target.persistence.diffbase_storage.fetch(body=body) is None


def test_settings_name_the_bad_variable():
    with pytest.raises(ValueError, match="ROLLOUT_HEALTH_PORT is 'x'"):
        parse_settings({"ROLLOUT_HEALTH_PORT": "x"})


def test_settings_split_namespaces():
    assert parse_settings({"ROLLOUT_NAMESPACES": "a, b,"}).namespaces == ("a", "b")
