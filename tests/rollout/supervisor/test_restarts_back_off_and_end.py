from hypothesis import given
from hypothesis import strategies as st

from rollout.common.restarts import GiveUp, ProcessEnd, Restart, RestartRules, plan_restart


def crash(started_at: float, lived: float, code: int = 1, error: str = "") -> ProcessEnd:
    return ProcessEnd(started_at=started_at, ended_at=started_at + lived, code=code, error=error)


def test_a_process_that_lived_long_is_started_again_at_once():
    assert plan_restart("actor-0", [crash(0, 100, -9)], RestartRules()) == Restart(at=100)


def test_quick_deaths_back_off_twice_as_long_each_time():
    endings = [crash(0, 1), crash(2, 1), crash(4, 1)]
    rules = RestartRules(backoff_seconds=0.5)

    waits = [
        plan_restart("learner", endings[:n], rules).at - endings[n - 1].ended_at for n in (1, 2, 3)
    ]

    assert waits == [0.5, 1.0, 2.0]


def test_a_long_life_ends_the_streak():
    rules = RestartRules(backoff_seconds=0.5)
    endings = [crash(0, 1), crash(2, 1), crash(4, 60), crash(70, 1)]

    assert plan_restart("learner", endings, rules) == Restart(at=71.5)


def test_more_deaths_than_retries_give_up_and_name_the_process():
    endings = [crash(n, 0.5, -9) for n in range(4)]

    decision = plan_restart("actor-1", endings, RestartRules(retries_max=3))

    assert isinstance(decision, GiveUp)
    assert "actor-1" in decision.reason
    assert "SIGKILL" in decision.reason


def test_the_same_last_words_three_times_are_enough():
    endings = [crash(n, 0.5, error=f"error: ledger.db is broken at page {n}") for n in range(3)]

    assert isinstance(plan_restart("learner", endings[:2], RestartRules()), Restart)
    assert isinstance(plan_restart("learner", endings, RestartRules()), GiveUp)
    other = [*endings[:2], crash(9, 0.5, error="error: something else")]
    assert isinstance(plan_restart("learner", other, RestartRules()), Restart)


def test_a_full_disk_is_not_tried_again():
    endings = [crash(0, 100, error="error: no space left to write objects/staging/77-9a")]

    assert isinstance(plan_restart("learner", endings, RestartRules()), GiveUp)


def test_deaths_without_a_word_are_not_the_same_error():
    endings = [crash(n, 0.5, -9) for n in range(5)]

    assert isinstance(plan_restart("learner", endings, RestartRules()), Restart)


def test_deaths_long_ago_do_not_count():
    endings = [crash(0, 1), crash(10, 1), crash(10_000, 1)]

    assert isinstance(plan_restart("actor-0", endings, RestartRules(retries_max=1)), Restart)


@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=30))
def test_a_wait_never_exceeds_its_bound(lives):
    rules = RestartRules(retries_max=100)
    at, endings = 0.0, []
    for lived in lives:
        endings.append(crash(at, lived))
        decision = plan_restart("actor-0", endings, rules)
        wait = decision.at - endings[-1].ended_at
        assert 0 <= wait <= rules.backoff_seconds_max + 1e-9
        at = decision.at
