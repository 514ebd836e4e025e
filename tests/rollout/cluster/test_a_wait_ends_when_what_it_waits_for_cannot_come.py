"""``rollout wait`` judges by conditions that speak about the spec as it is now."""

import pytest

from rollout.cluster.waiting import judge


def run(*conditions, generation=1, observed=1):
    told = [
        {"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions
    ]
    return {
        "metadata": {"generation": generation},
        "status": {"observedGeneration": observed, "conditions": told},
    }


@pytest.mark.parametrize(
    ("obj", "wanted", "met"),
    [
        (run(("Ready", "True", "Running")), "Ready", True),
        (run(("Ready", "False", "Starting")), "Ready", None),
        (run(("Ready", "False", "Starting")), "Ready=False", True),
        (run(), "Suspended=False", True),
        (run(("Suspended", "True", "Suspended")), "Suspended=False", None),
        (
            run(("Finished", "True", "Succeeded"), ("Complete", "True", "Succeeded")),
            "Complete",
            True,
        ),
        (run(("Finished", "True", "Failed"), ("Failed", "True", "Failed")), "Complete", False),
        (
            run(("Finished", "True", "Succeeded"), ("Complete", "True", "Succeeded")),
            "Failed",
            False,
        ),
        (run(("Finished", "True", "Failed")), "Finished", True),
        (run(("Finished", "True", "Succeeded")), "Suspended", False),
        (run(("Finished", "True", "Succeeded")), "CleanedUp", None),
    ],
)
def test_a_condition_is_met_or_to_come_or_past(obj, wanted, met):
    assert judge(obj, wanted).met is met


def test_a_status_of_an_older_spec_says_nothing():
    stale = run(("Ready", "True", "Running"), generation=2, observed=1)

    assert judge(stale, "Ready").met is None


def test_an_object_without_status_waits_for_an_operator():
    found = judge({"metadata": {"generation": 1}}, "Ready")

    assert found.met is None
    assert "operator" in found.why


def test_the_reason_of_a_stall_is_told_while_it_lasts():
    stalled = run(("Stalled", "True", "NoStorageClass"), ("Ready", "False", "NoStorageClass"))

    assert "NoStorageClass" in judge(stalled, "Ready").why
