"""The queue of a version is bounded and fair by tokens, whatever comes and goes."""

from hypothesis import given
from hypothesis import strategies as st

from rollout.inference.gateway.rules.queueing import (
    COST_TOKENS_MAX,
    COST_TOKENS_MIN,
    IDLE_KEYS_MAX,
    SLACK_TOKENS,
    FairQueue,
    QueueBounds,
    Queued,
)


def queued(key, tokens=100, item=None, size=1):
    return Queued(key=key, tokens=tokens, size_bytes=size, item=item)


def pop(queue):
    """The next one in turn gets its place; None where nothing waits."""
    for found in queue.candidates(1):
        queue.take(found)
        return found
    return None


def drain(queue):
    while (one := pop(queue)) is not None:
        yield one


def test_one_keys_requests_come_in_their_order():
    queue = FairQueue(QueueBounds())
    for place in range(5):
        queue.push(queued("a", item=place))
    assert [one.item for one in drain(queue)] == [0, 1, 2, 3, 4]


def test_a_key_with_a_long_line_does_not_hold_up_another():
    queue = FairQueue(QueueBounds())
    for _ in range(100):
        queue.push(queued("greedy", tokens=2000))
    queue.push(queued("small", tokens=2000))
    keys = [one.key for one in drain(queue)]
    assert keys.index("small") <= SLACK_TOKENS // 2000 + 1
    assert len(keys) == 101


def test_tokens_are_shared_and_not_requests():
    queue = FairQueue(QueueBounds())
    for _ in range(200):
        queue.push(queued("large", tokens=20_000))
        queue.push(queued("small", tokens=2000))
    first = [pop(queue) for _ in range(110)]
    small = sum(one.tokens for one in first if one.key == "small")
    large = sum(one.tokens for one in first if one.key == "large")
    assert 0.7 < small / large < 1.4


def test_it_is_full_by_requests_and_by_bytes():
    queue = FairQueue(QueueBounds(requests_max=2, bytes_max=10))
    assert queue.push(queued("a", size=9))
    assert not queue.push(queued("b", size=2))
    assert queue.push(queued("b", size=1))
    assert not queue.push(queued("c", size=0))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10**9), st.booleans()), max_size=60)
)
def test_everything_that_stays_comes_out_once_and_the_counts_end_at_nothing(entries):
    queue = FairQueue(QueueBounds())
    stays = []
    for key, tokens, leaves in entries:
        one = queued(key, tokens=tokens)
        assert queue.push(one)
        if leaves:
            queue.remove(one)
        else:
            stays.append(one)
    out = list(drain(queue))
    assert sorted(map(id, out)) == sorted(map(id, stays))
    assert (queue.requests, queue.tokens) == (0, 0)


def test_a_key_that_comes_back_has_not_saved_up_and_has_not_paid_off():
    queue = FairQueue(QueueBounds())
    for _ in range(10):
        queue.push(queued("stays", tokens=20_000))
    queue.push(queued("leaves", tokens=100_000))
    assert {pop(queue).key for _ in range(2)} == {"stays", "leaves"}
    for _ in range(2):
        pop(queue)
    queue.push(queued("leaves", tokens=100_000))
    queue.push(queued("comes", tokens=20_000))
    order = ["stays", "comes", "stays", "stays", "leaves"]
    assert [pop(queue).key for _ in order] == order


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 10**9)), max_size=80))
def test_whoever_goes_is_of_a_key_that_has_had_little_more_than_any_that_waits(entries):
    queue, served = FairQueue(QueueBounds()), {}
    for key, tokens in entries:
        queue.push(queued(key, tokens=tokens))
    waiting = [key for key, _ in entries]
    while (found := list(queue.candidates(64))) != []:
        taken = found[-1]
        least = min(served.get(key, 0) for key in waiting)
        assert served.get(taken.key, 0) <= least + SLACK_TOKENS
        queue.take(taken)
        waiting.remove(taken.key)
        cost = min(max(taken.tokens, COST_TOKENS_MIN), COST_TOKENS_MAX)
        served[taken.key] = served.get(taken.key, 0) + cost
    assert waiting == []


def test_many_keys_that_come_and_go_leave_nothing_behind():
    queue = FairQueue(QueueBounds())
    queue.push(queued("stays", tokens=10**9))
    for place in range(2000):
        queue.push(queued(f"k{place}", tokens=1))
        assert pop(queue).key != "stays" or place == 0
        assert len(queue._idle) <= IDLE_KEYS_MAX
    while pop(queue) is not None:
        pass
    assert not queue._idle
    assert not queue._lanes
