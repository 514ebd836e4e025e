"""The queue of a version is bounded and fair by tokens, whatever comes and goes."""

from hypothesis import given
from hypothesis import strategies as st

from rollout.inference.gateway.rules.queueing import QUANTUM_TOKENS, FairQueue, QueueBounds, Queued


def queued(key, tokens=100, item=None, size=1):
    return Queued(key=key, tokens=tokens, size_bytes=size, item=item)


def drain(queue):
    while (one := queue.pop()) is not None:
        yield one


def test_one_keys_requests_come_in_their_order():
    queue = FairQueue(QueueBounds())
    for place in range(5):
        queue.push(queued("a", item=place))
    assert [one.item for one in drain(queue)] == [0, 1, 2, 3, 4]


def test_a_key_with_a_long_line_does_not_hold_up_another():
    queue = FairQueue(QueueBounds())
    for _ in range(100):
        queue.push(queued("greedy", tokens=QUANTUM_TOKENS))
    queue.push(queued("small", tokens=QUANTUM_TOKENS))
    keys = [one.key for one in drain(queue)]
    assert keys.index("small") <= 2
    assert len(keys) == 101


def test_tokens_are_shared_and_not_requests():
    queue = FairQueue(QueueBounds())
    for _ in range(200):
        queue.push(queued("large", tokens=10 * QUANTUM_TOKENS))
        queue.push(queued("small", tokens=QUANTUM_TOKENS))
    first = [queue.pop() for _ in range(110)]
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
