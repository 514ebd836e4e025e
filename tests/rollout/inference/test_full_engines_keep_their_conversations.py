"""Under load a request waits for the engine that has its prompt, as long as that is cheaper than computing it again, and nobody starves of it."""

from hypothesis import given
from hypothesis import strategies as st
from routing_kit import build_world, seek

from rollout.inference.gateway.rules.placing import OVERTAKEN_SECONDS_MAX, PATIENCE_SECONDS_MAX
from rollout.inference.gateway.rules.queueing import SLACK_TOKENS, Queued

JUST = 1e-6

requests = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),  # whose beginning it has
        st.sampled_from(["k1", "k2", "k3"]),
        st.integers(0, 40),  # blocks of its own
        st.floats(0.1, 8),  # seconds with an engine
        st.integers(1, 5000),  # tokens
        st.floats(0, 1),  # seconds since the one before
    ),
    min_size=1,
    max_size=60,
)


def play(world, given_requests):
    """All of them, each at its time; yields whenever something has happened."""
    at, sought = 0.0, []
    for text, key, tail, seconds, tokens, gap in given_requests:
        at += gap
        while world.advance(at):
            yield sought
        world.now = at
        sought.append(world.come(seek(text, 20, tail, key, seconds), key, tokens))
        yield sought
    while world.advance():
        yield sought


def warm(world, *texts):
    """Each engine has computed one of these beginnings, and answers a long request of it now."""
    for engine, text in zip(world.engines, texts, strict=True):
        others = [one for one in world.engines if one is not engine]
        for one in others:
            one.ready = False
        for _ in range(engine.slots):
            world.come(seek(text, 20, seconds=100.0))
        for one in others:
            one.ready = True


def free(world, name):
    """One request of this engine ends."""
    [engine] = [one for one in world.engines if one.name == name]
    engine.requests -= 1
    world.look()


def test_a_place_goes_to_the_one_whose_prompt_is_there_and_not_to_the_first_in_line():
    world = build_world()
    warm(world, "x", "y")
    first, second = world.come(seek("x", 20)), world.come(seek("y", 20))
    free(world, "b")
    assert (first.engine, second.engine) == ("", "b")
    free(world, "a")
    assert first.engine == "a"


def test_who_has_no_home_takes_what_another_lets_go():
    world = build_world()
    warm(world, "x", "y")
    sticky, new = world.come(seek("x", 20)), world.come(seek("new", 20))
    free(world, "b")
    assert (sticky.engine, new.engine) == ("", "b")


def test_a_home_that_stays_full_is_waited_for_as_long_as_computing_again_would_take():
    world = build_world()
    warm(world, "x", "y")
    short, long = world.come(seek("x", 2)), world.come(seek("x", 20))
    world.engines[1].slots = 3
    world.look()
    assert (short.engine, long.engine) == ("", "")
    while world.advance(50.0):
        pass
    assert 0 < short.placed_at < long.placed_at <= PATIENCE_SECONDS_MAX + JUST
    assert (short.engine, long.engine) == ("b", "b")


def test_whoever_is_overtaken_for_long_goes_before_all_that_have_more_to_gain():
    world = build_world()
    warm(world, "x", "y")
    one = world.come(seek("x", 100))
    while one.placed_at < 0 and world.now < 60:
        world.come(seek("y", 20))
        world.now += 0.5
        free(world, "b")
    assert one.engine == "b"
    assert OVERTAKEN_SECONDS_MAX <= one.placed_at <= OVERTAKEN_SECONDS_MAX + 1.5
    assert len(world.placed) > 30


def test_a_home_that_is_lost_is_waited_for_no_more():
    world = build_world()
    warm(world, "x", "y")
    one = world.come(seek("x", 20))
    free(world, "b")
    assert one.engine == ""
    world.engines[0].ready = False
    world.engines[0].forget()
    world.look()
    assert one.engine == "b"


def test_samples_of_one_prompt_are_computed_once():
    world = build_world(num=4, slots=8)
    group = [world.come(seek("g", 20)) for _ in range(8)]
    assert len({one.engine for one in group}) == 1


def test_samples_of_one_prompt_that_had_to_wait_come_together_too():
    world = build_world(num=2, slots=4)
    warm(world, "x", "y")
    group = [world.come(seek("g", 30)) for _ in range(4)]
    for _ in range(4):
        free(world, "a")
        free(world, "b")
    assert len({one.engine for one in group}) == 1


@given(requests, st.integers(1, 4), st.integers(1, 3))
def test_all_are_served_and_no_place_is_free_for_longer_than_patience_while_any_wait(
    given_requests, num, slots
):
    world = build_world(num, slots)
    idle_since, sought = None, []
    for sought in play(world, given_requests):  # noqa: B007 - all of them, in the end
        idle = world.queue.requests > 0 and any(one.has_room for one in world.engines)
        idle_since = (world.now if idle_since is None else idle_since) if idle else None
        assert idle_since is None or world.now - idle_since <= PATIENCE_SECONDS_MAX + JUST
    assert all(one.placed_at >= 0 for one in sought)
    assert len(world.placed) == len(given_requests)
    assert (world.queue.requests, world.queue.tokens) == (0, 0)


@given(requests, st.integers(2, 4))
def test_who_has_let_a_place_go_is_the_next_to_take_one_when_its_patience_is_over(
    given_requests, num
):
    world = build_world(num)
    for sought in play(world, [(*one[:1], "k", *one[2:]) for one in given_requests]):
        impatient = [
            one
            for one in sought
            if one.placed_at < 0 and world.now - one.seeker.passed_at > PATIENCE_SECONDS_MAX + JUST
        ]
        room = any(one.has_room for one in world.engines)
        assert not (impatient and room)


@given(st.integers(2, 4), st.integers(0, 3), st.integers(64, 4000), st.integers(64, 4000))
def test_keys_that_wait_have_as_many_tokens_whoever_has_more_cached(num, favoured, ours, theirs):
    world = build_world(num)
    texts = [chr(97 + place) for place in range(num)]
    warm(world, *texts)
    world.served.clear()
    for _ in range(60):
        for key, tokens, sought in (
            ("sticky", ours, seek(texts[favoured % num], 20)),
            ("other", theirs, seek("other", 0, 20, "o")),
        ):
            world.queue.push(Queued(key=key, tokens=tokens, size_bytes=1, item=sought))
    while world.advance() and len(world.queue._lanes) == 2:
        had = [world.served.get(key, 0) for key in ("sticky", "other")]
        assert abs(had[0] - had[1]) <= SLACK_TOKENS + max(ours, theirs)


def test_a_home_is_waited_for_longer_where_others_would_be_held_up():
    waited = []
    for busy in (False, True):
        world = build_world(num=2, slots=4)
        warm(world, "x", "y")
        if not busy:
            world.engines[1].requests = 0
        one = world.come(seek("x", 20))
        world.engines[1].requests = min(world.engines[1].requests, 3)
        world.look()
        while one.placed_at < 0 and world.advance(50.0):
            pass
        waited.append(one.placed_at)
    assert 0 < 2 * waited[0] < waited[1] <= PATIENCE_SECONDS_MAX + JUST
