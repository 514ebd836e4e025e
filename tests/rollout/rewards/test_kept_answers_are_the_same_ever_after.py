"""The cache of a source: by content, bounded, shared, the same after a restart, and never believed when it is damaged."""

from __future__ import annotations

import itertools
import sqlite3

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_runners import Told, away, calls, samples

from rollout.errors import RewardUnavailable
from rollout.rewards.cache import RewardCache
from rollout.rewards.values import Valued


def moody():
    """A source that says something else at every call."""
    count = itertools.count(1)
    return Told(lambda texts: [float(next(count)) for _ in texts])


def values(found):
    return [one.values["mine"] for one in found]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rewards" / "mine.sqlite"


def test_a_restarted_actor_says_what_the_first_one_said(path):
    first = calls(moody(), path, cache_entries=9)
    said = values(first.score(samples("a", "b", "a")))
    first.close()
    runner = moody()
    again = calls(runner, path, cache_entries=9).score(samples("b", "a", "c"))

    assert said == [1.0, 2.0, 1.0]
    assert values(again)[:2] == [2.0, 1.0]
    assert runner.asked == [["c"]]
    assert [one.costs for one in again] == [{"cached": 1.0}, {"cached": 1.0}, {"cached": 0.0}]


def test_two_actors_who_ask_at_once_end_with_one_answer(path):
    other = calls(Told([7.0]), path, cache_entries=9)

    def meanwhile(texts):
        other.score(samples(*texts))
        return [8.0]

    assert values(calls(Told(meanwhile), path, cache_entries=9).score(samples("a"))) == [7.0]


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"tone": "kind"}},
        {"per_group": True},
        {"counts": "score"},
    ],
)
def test_another_source_is_asked_anew(path, change):
    calls(Told([1.0, 2.0]), path, cache_entries=9).score(samples("a", "b"))
    said = [{"score": 3.0}, {"score": 4.0}]
    found = calls(Told(said), path, cache_entries=9, **change).score(samples("a", "b", groups="gg"))
    assert values(found) == [3.0, 4.0]


def test_a_function_that_was_edited_is_asked_anew(path, tmp_path):
    file = tmp_path / "m.py"
    file.write_text("one")
    calls(Told([1.0]), path, cache_entries=9, folders=(tmp_path,)).score(samples("a"))
    file.write_text("two")
    assert values(
        calls(Told([2.0]), path, cache_entries=9, folders=(tmp_path,)).score(samples("a"))
    ) == [2.0]


def test_the_oldest_answers_go_first(path):
    one = calls(moody(), path, cache_entries=3)
    for text in "abcd":
        one.score(samples(text))
    assert len(one._cache) == 3
    assert values(one.score(samples("b", "c", "d"))) == [2.0, 3.0, 4.0]
    assert values(one.score(samples("a"))) == [5.0]


def test_what_was_lost_is_not_kept_and_what_the_others_got_is(path):
    runner = Told(away(1, values=[1.0, None]), [2.0])
    one = calls(runner, path, cache_entries=9)
    with pytest.raises(RewardUnavailable):
        one.score(samples("a", "b"))
    assert values(one.score(samples("a", "b"))) == [1.0, 2.0]
    assert runner.asked == [["a", "b"], ["b"]]


def test_an_equal_sample_is_lost_with_the_one_that_was_asked(path):
    with pytest.raises(RewardUnavailable) as caught:
        calls(Told(away(0, values=[None, 2.0])), path, cache_entries=9).score(
            samples("a", "b", "a")
        )
    assert caught.value.lost == (0, 2)


def damage(path, change):
    with sqlite3.connect(path) as file:
        change(file)
    file.close()


def poison(key, raw):
    return blake3(key + raw).digest(), raw


def forged(values):
    def change(file):
        raw = msgspec.msgpack.encode([{"values": values, "costs": {}}])
        for (key,) in file.execute("SELECT key FROM answers").fetchall():
            file.execute(
                "UPDATE answers SET mark = ?, answer = ? WHERE key = ?", (*poison(key, raw), key)
            )

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.execute("UPDATE answers SET answer = randomblob(40)"),
        lambda file: file.execute("UPDATE answers SET mark = zeroblob(32)"),
        lambda file: file.execute("UPDATE answers SET answer = 'text', mark = 5"),
        lambda file: file.execute("DROP TABLE answers"),
        forged({"mine": float("nan")}),
        forged({"mine": float("inf")}),
        forged({"other": 1.0}),
        forged({}),
    ],
)
def test_a_damaged_or_foreign_entry_is_asked_again(path, change):
    first = calls(Told([1.0]), path, cache_entries=9)
    first.score(samples("a"))
    first.close()
    damage(path, change)
    told = Told([1.0])
    one = calls(told, path, cache_entries=9)

    assert values(one.score(samples("a"))) == [1.0]
    assert values(one.score(samples("a"))) == [1.0]
    assert len(told.asked) <= 1


@given(st.binary(max_size=300), st.integers(0, 4096))
@settings(deadline=None, max_examples=40)
def test_no_bytes_in_the_file_break_a_run_or_become_a_reward(tmp_path_factory, junk, place):
    path = tmp_path_factory.mktemp("cache") / "mine.sqlite"
    first = calls(Told([1.0]), path, cache_entries=9)
    first.score(samples("a"))
    first.close()
    whole = bytearray(path.read_bytes())
    whole[place : place + len(junk)] = junk
    path.write_bytes(whole)

    assert values(calls(Told([1.0]), path, cache_entries=9).score(samples("a"))) == [1.0]


def test_a_folder_that_cannot_be_written_costs_the_cache_and_not_the_run(tmp_path):
    (tmp_path / "mine.sqlite").mkdir()
    one = calls(moody(), tmp_path / "mine.sqlite", cache_entries=9)
    assert values(one.score(samples("a"))) == [1.0]
    assert values(one.score(samples("a"))) == [2.0]


def test_an_answer_of_any_size_is_used_and_a_huge_one_is_not_kept(path):
    cache = RewardCache(path, 9, "mine")
    huge = [Valued(values={"mine": 1.0, **{f"mine/{n:05}": 0.5 for n in range(60_000)}})]
    assert cache.put({b"k": huge}) == {b"k": huge}
    assert len(cache) == 0
