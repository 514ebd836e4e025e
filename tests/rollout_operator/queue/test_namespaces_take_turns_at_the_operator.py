"""The work queue is fair: a namespace with thousands of keys holds up the key of another by one of its own."""

from hypothesis import given
from hypothesis import strategies as st

from rollout_operator.controller.queue import Key, KeyQueue, Turns


def key(namespace, number):
    return Key(namespace=namespace, name=f"r-{number}", kind="RolloutRun")


async def test_a_namespace_with_thousands_of_keys_delays_another_by_one_key_a_worker():
    queue = KeyQueue()
    for number in range(5000):
        queue.put(key("crowd", number))
    in_hand = [await queue.get() for _ in range(16)]
    queue.put(key("quiet", 0))

    following = [await queue.get() for _ in range(2)]

    assert {one.namespace for one in in_hand} == {"crowd"}
    assert key("quiet", 0) in following


async def test_keys_of_one_namespace_come_in_the_order_in_which_they_were_put():
    queue = KeyQueue()
    for number in (3, 1, 2):
        queue.put(key("a", number))
        queue.put(key("b", number))
    taken = [await queue.get() for _ in range(6)]
    assert [one.name for one in taken if one.namespace == "a"] == ["r-3", "r-1", "r-2"]
    assert [one.namespace for one in taken] == ["a", "b"] * 3


KEYS = st.builds(key, st.sampled_from("abc"), st.integers(0, 5))


@given(st.lists(st.one_of(KEYS, st.none()), max_size=60))
def test_every_key_comes_once_and_nobody_waits_for_two_of_another_namespace(steps):
    turns, waiting = Turns(), {}
    since: dict[str, list[str]] = {}
    for step in steps:
        if step is not None:
            turns.add(step, 0.0)
            waiting[step] = None
            since.setdefault(step.namespace, [])
        elif waiting:
            taken, _ = turns.take()
            del waiting[taken]
            for namespace, seen in since.items():
                if namespace != taken.namespace:
                    seen.append(taken.namespace)
            since.pop(taken.namespace)
            if any(one.namespace == taken.namespace for one in waiting):
                since[taken.namespace] = []
        assert len(turns) == len(waiting)
        assert all(len(seen) == len(set(seen)) for seen in since.values())
    assert {turns.take()[0] for _ in range(len(turns))} == set(waiting)
