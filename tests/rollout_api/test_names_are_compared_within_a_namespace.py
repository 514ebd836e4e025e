"""Documents of one file: a name is taken, and `fromRun` means a run, within a namespace only."""

from rollout_api.checks import check_together


def run(name, namespace=None, needs=None):
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    model = {"fromRun": {"name": needs}} if needs else {"uri": "rollout://tiny-adder"}
    return {"kind": "RolloutRun", "metadata": meta, "spec": {"model": model}}


def reasons(*documents):
    return [problem.reason for _, problem in check_together(documents)]


def test_two_teams_may_use_one_name():
    assert reasons(run("a", "team-a"), run("a", "team-b")) == []
    assert reasons(run("a", "team-a"), run("a")) == []


def test_a_name_is_taken_once_in_a_namespace():
    assert reasons(run("a", "team-a"), run("a", "team-a")) == ["DuplicateName"]
    assert reasons(run("a"), run("a")) == ["DuplicateName"]


def test_a_cycle_runs_within_a_namespace():
    assert reasons(run("a", "team-a", "b"), run("b", "team-b", "a")) == []
    assert reasons(run("a", "team-a", "b"), run("b", "team-a", "a")) == ["Cycle"]


def test_a_cycle_in_each_of_two_namespaces_is_told_twice():
    both = [
        run(name, space, needs) for space in ("x", "y") for name, needs in (("a", "b"), ("b", "a"))
    ]

    assert reasons(*both) == ["Cycle", "Cycle"]
