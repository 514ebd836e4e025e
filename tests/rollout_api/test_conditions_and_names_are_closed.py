"""Conditions: every reason documented. Names: every child's name fits, whatever the run is called."""

import re

import pytest

from rollout_api import names
from rollout_api.conditions import ConditionType, Reason
from rollout_api.v1alpha1.common import Condition
from rollout_api.v1alpha1.objects.meta import RUN_NAME_LENGTH_MAX, SWEEP_NAME_LENGTH_MAX

LONGEST = "r" * RUN_NAME_LENGTH_MAX
LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
REVISION_SUFFIX = 11


@pytest.mark.parametrize("item", [*Reason, *ConditionType])
def test_each_is_a_documented_word(item):
    assert re.fullmatch(r"[A-Z][A-Za-z]+", item.value)
    assert item.meaning.endswith(".")


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_says_what_a_person_does(reason):
    assert reason.action.endswith(".")


def test_these_are_all():
    wanted = "Ready Reconciling Stalled Finished Complete Failed Admitted Suspended Available Progressing"
    wanted += " Scaled Routed Following ActorsReady LearnerReady"
    wanted += (
        " WeightsVerified Learning LogprobsAgree TokensRoundTrip RewardHolds Measured Tracking"
    )
    wanted += " Snapshotted SnapshotsScheduled Purged Supported CleanedUp ClusterWatched"

    assert [item.value for item in ConditionType] == wanted.split()


def test_only_conditions_with_a_good_normal_state_are_always_there():
    abnormal = [item.value for item in ConditionType if item.polarity == "abnormal"]

    assert abnormal == ["Reconciling", "Stalled", "Finished", "Complete", "Failed", "Suspended"]


def test_a_condition_takes_them():
    condition = Condition(
        type=ConditionType.READY,
        status="True",
        reason=Reason.RUNNING,
        message="",
        last_transition_time="2026-01-01T00:00:00Z",
    )
    assert condition.model_dump(mode="json")["reason"] == "Running"


@pytest.mark.parametrize("role", ["coordinator", "learner", "actor"])
def test_names_of_workloads_leave_room_for_the_revision(role):
    name = names.workload_name(LONGEST, role)

    assert len(name) + REVISION_SUFFIX <= 63
    assert LABEL.match(name)


def test_names_of_runs_of_a_sweep_are_names_of_runs():
    longest = "a" * SWEEP_NAME_LENGTH_MAX
    made = [names.sweep_run_name(longest, 999), names.sweep_fork_name(longest, 999)]
    assert max(map(len, made)) == RUN_NAME_LENGTH_MAX - 1
    assert all(LABEL.match(name) for name in made)


def test_names_of_other_children_fit():
    made = [
        names.service_account_name(LONGEST, "coordinator"),
        names.configuration_name(LONGEST, "0123456789abcdef"),
        names.certificate_name(LONGEST),
        names.ledger_claim_name(LONGEST),
        names.snapshot_name(LONGEST, 9_999_999),
    ]
    for name in made:
        assert len(name) <= 63
        assert LABEL.match(name)


def test_labels_of_workers_tell_runs_and_roles_apart():
    one = names.worker_labels("a", "uid-1", "actor")

    assert one != names.worker_labels("a", "uid-2", "actor")
    assert one != names.worker_labels("a", "uid-1", "learner")
    assert not set(one) & set(names.common_labels("a", "actor"))
