"""Each rule of the definitions, at each place where it stands: it takes what it should and refuses in its own words.

Rules about changes are tried in test_a_living_run_keeps_its_settings.py, from the same tables.
"""

from collections import Counter

import pytest

from cluster.kubectl import Kubectl
from cluster.providers import Cluster
from dry_runs import Answer, create_all
from rule_cases import SEVERAL_PLACES, Trial, build_trials, messages_of_changes
from runs import install_crds
from schemas import Rule, build_document, find_schema, read_rules, read_schemas

pytestmark = pytest.mark.control_plane

SCHEMAS = read_schemas()


@pytest.fixture
def kubectl(fake_cluster: Cluster, fake: Kubectl) -> Kubectl:
    install_crds(fake_cluster.kubectl)
    return fake


def states() -> list[Rule]:
    """Of specs: an object that is made has no status, which is the operator's to write; its types' rules are met in specs."""
    found = (rule for rule in read_rules() if not rule.about_changes)
    return [rule for rule in found if rule.path[:1] != ("status",)]


def trials_of(rule: Rule) -> list[Trial]:
    return list(build_trials(rule, find_schema(SCHEMAS[rule.kind], rule.path)))


def test_every_rule_has_a_case_that_it_takes_and_one_that_it_refuses():
    """A new rule fails here until rule_cases.py says what it takes and what it refuses."""
    for rule in states():
        tried = {trial.taken for trial in trials_of(rule)}
        assert tried == {True, False}, rule
    changes = Counter(rule.message for rule in read_rules() if rule.about_changes)
    assert set(changes) == messages_of_changes()
    assert {words for words, count in changes.items() if count > 1} == set(SEVERAL_PLACES)


def test_it_takes_what_it_should_and_refuses_in_its_own_words(kubectl: Kubectl):
    trials = [(rule, trial) for rule in states() for trial in trials_of(rule)]
    documents = [
        build_document(rule.kind, SCHEMAS[rule.kind], rule.path, trial.value)
        for rule, trial in trials
    ]
    answers = create_all(kubectl, documents)
    wrong = [
        (rule.kind, rule.field, rule.message, trial.value, answer.words)
        for (rule, trial), answer in zip(trials, answers, strict=True)
        if not is_right(rule, answer, taken=trial.taken)
    ]
    assert wrong == []
    assert len(trials) > 500, "every place of every rule"


def is_right(rule: Rule, answer: Answer, *, taken: bool) -> bool:
    if taken:
        return answer.taken
    return any(
        words.endswith(f": {rule.message}") and field.startswith(rule.field)
        for field, words in answer.causes
    )
