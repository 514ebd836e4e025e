"""Which tails of the pods' output are kept: bad ends and starts without a last word, so many and no more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.coordinator.rules.evidence import (
    HELD_MAX,
    KEPT_OF_RUN_MAX,
    KEPT_OF_WORKER_MAX,
    SILENT_SECONDS,
    EvidenceState,
    restore,
    settle,
    take,
)
from rollout.errors import CoordinatorError
from rollout.protocol.messages import EVIDENCE_BYTES_MAX, Evidence

ACTOR = ("actor", "run-actors-0")
FIRST, SECOND = "0" * 16, "1" * 16


def say(state, moment, text="", start=FIRST, now=0.0, sender=ACTOR, **more):
    found = take(state, sender, Evidence(start=start, moment=moment, text=text), now, **more)
    return [(kept.tail.moment, kept.tail.text) for kept in found]


def test_a_bad_end_is_kept_once_however_often_it_is_told():
    state = EvidenceState()

    assert say(state, "running", "a") == []
    assert say(state, "failed", "a\nTraceback", now=5) == [("failed", "a\nTraceback")]
    assert say(state, "failed", "a\nTraceback", now=6) == []
    assert settle(state, 1000) == []


@pytest.mark.parametrize("moment", ["clean", "left"])
def test_an_end_that_was_good_or_asked_for_leaves_nothing(moment):
    state = EvidenceState()
    say(state, "running", "a")
    say(state, "told", "a, stacks", now=5)

    assert say(state, moment, now=6) == []
    assert settle(state, 1000) == []


@pytest.mark.parametrize("moment", ["clean", "left"])
def test_who_was_told_to_go_because_nothing_moved_is_kept_however_it_ends(moment):
    state = EvidenceState()
    say(state, "told", "stacks", stuck=True)

    assert say(state, moment, now=6) == [(moment, "stacks")]


def test_a_start_that_another_one_follows_without_a_word_is_kept():
    state = EvidenceState()
    say(state, "running", "all is well")

    assert say(state, "running", "anew", start=SECOND, now=9) == [("running", "all is well")]


def test_at_the_end_those_are_kept_who_were_told_and_those_who_fell_silent():
    state = EvidenceState()
    say(state, "running", "alive", now=SILENT_SECONDS, sender=("actor", "a"))
    say(state, "running", "silent", sender=("actor", "b"))
    say(state, "told", "stacks", now=SILENT_SECONDS, sender=("learner", "c"))
    say(state, "running", "stacks and more", now=SILENT_SECONDS + 2, sender=("learner", "c"))

    kept = settle(state, SILENT_SECONDS + 3)

    assert [(one.sender[1], one.tail.text) for one in kept] == [
        ("b", "silent"),
        ("c", "stacks and more"),
    ]


def test_roles_do_not_speak_for_each_other():
    state = EvidenceState()
    say(state, "running", "mine", sender=("learner", "x"))

    assert say(state, "clean", sender=("actor", "x")) == []
    assert say(state, "failed", "mine", sender=("learner", "x"), now=5) == [("failed", "mine")]


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        (("actor", "../../etc"), Evidence(start=FIRST, moment="failed", text="x")),
        (("actor", "a" * 300), Evidence(start=FIRST, moment="failed", text="x")),
        (ACTOR, Evidence(start="../x", moment="failed", text="x")),
        (ACTOR, Evidence(start=FIRST, moment="failed", text="é" * EVIDENCE_BYTES_MAX)),
    ],
)
def test_what_nobody_of_ours_says_is_refused(sender, said):
    state = EvidenceState()

    with pytest.raises(CoordinatorError, match="evidence of"):
        take(state, sender, said, 0.0)
    assert not state.held


def test_what_the_ledger_has_counts():
    state = restore({"actor/run-actors-0": KEPT_OF_WORKER_MAX, "learner/l": 1})

    assert say(state, "failed", "x") == []
    assert say(state, "failed", "x", sender=("learner", "l")) == [("failed", "x")]
    assert state.num_dropped == 1


WORDS = st.tuples(
    st.sampled_from(["actor", "learner"]),
    st.integers(0, 30),
    st.integers(0, 5),
    st.sampled_from(["running", "told", "failed", "left", "clean"]),
    st.booleans(),
)


@given(words=st.lists(WORDS, max_size=300))
@settings(max_examples=50, deadline=None)
def test_no_words_keep_more_than_there_is_room_for(words):
    state, kept = EvidenceState(), []
    for now, (role, worker, start, moment, stuck) in enumerate(words):
        said = Evidence(start=f"{start:08x}", moment=moment, text="x")
        kept += take(state, (role, f"w{worker}"), said, float(2 * now), stuck=stuck)
    kept += settle(state, 1e9)

    by_worker = [one.sender for one in kept]
    assert len(kept) <= KEPT_OF_RUN_MAX
    assert all(by_worker.count(one) <= KEPT_OF_WORKER_MAX for one in set(by_worker))


@pytest.mark.parametrize("moment", ["running", "clean"])
def test_names_without_end_fill_no_memory(moment):
    state = EvidenceState()
    for number in range(HELD_MAX):
        say(state, moment, sender=("actor", f"w{number}"))

    with pytest.raises(CoordinatorError, match="all there is room for"):
        say(state, moment, sender=("actor", "one-more"))
    say(state, "running", "mine", sender=("actor", "w0"), start=SECOND, now=9)
    assert len(state.held.keys() | state.ended.keys()) == HELD_MAX
