from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed

from rollout.coordinator.rules.learning import STEPS, StepSignal, judge_learning, observe_signal


def step(informative, low=0.0, high=0.0):
    return StepSignal(num_groups=4, num_informative=informative, reward_min=low, reward_max=high)


def test_five_steps_without_differing_rewards_are_no_signal():
    assert judge_learning([step(0)] * (STEPS - 1)).signal
    verdict = judge_learning([step(3), *[step(0)] * STEPS])
    assert not verdict.signal
    assert "always 0" in verdict.message
    assert "reward function" in verdict.message


def test_one_informative_group_is_a_signal():
    assert judge_learning([step(0)] * 4 + [step(1)]).signal


def test_a_solved_task_is_told_from_a_broken_reward():
    assert "solved" in judge_learning([step(0, 1.0, 1.0)] * STEPS).message


def test_with_a_critic_prompts_are_compared_with_each_other():
    lone = [[0.0], [1.0], [0.0]]
    assert observe_signal(lone) is None
    assert observe_signal(lone, pooled=True).num_informative == 1
    twins = [[0.0, 0.0], [1.0, 1.0]]
    assert observe_signal(twins).num_informative == 0
    assert observe_signal(twins, pooled=True).num_informative == 1
    same = [observe_signal([[0.5]] * 3, pooled=True)] * STEPS
    assert "all rewards were equal (always 0.5)" in judge_learning(same).message


def test_the_status_says_so_after_five_steps_and_survives_a_restart(bench):
    plan = changed(PLAN, steps_max=9)
    client = bench.start(plan)
    learner = FakeLearner(client, bench.store)
    actor = FakeActor(client, reward=lambda task, sample: 0.0)
    for _ in range(STEPS):
        assert condition(client).status
        actor.work()
        learner.commit(learner.ask())
    for _ in range(2):
        assert (condition(client).status, condition(client).reason) == (False, "NoLearningSignal")
        client = bench.start(plan)


def condition(client):
    return next(c for c in client.status().conditions if c.type == "Learning")
