"""What a tracker is told by its checks, and the checks that are its own."""

from __future__ import annotations

import uuid

from rollout.plugins.sidecar.conformance.subject import Subject
from rollout.plugins.sidecar.contract import plugin_pb2 as contract

ODD = (
    '{"step": 1, "reward": null, "phase_seconds": {"train": 1e300}, "note": "Grüße, 世界 🙂"}',
    "{}",
)


def takes_every_fact(subject: Subject) -> None:
    """Each example's metrics, one at a time and all at once, and then the end."""
    for fact in _facts(subject):
        subject.tell([fact])
    subject.tell([*_facts(subject), _end(subject)])


def takes_no_facts(subject: Subject) -> None:
    """None is all of them."""
    subject.tell([])


def takes_what_it_has_again(subject: Subject) -> None:
    """What comes again, at once, later and after a start of its own, with what is new behind it."""
    facts = _facts(subject)
    for again in (facts, facts[:1], [*facts, _end(subject)], [_end(subject)]):
        subject.tell(again)
    subject.close()
    subject.tell([*facts, _end(subject)])


def takes_a_younger_lineage(subject: Subject) -> None:
    """A fork: a step that was told comes in a lineage with a higher number, and is another fact."""
    run = uuid.uuid4().hex
    for lineage, step in ((0, 1), (0, 2), (1, 2), (3, 1)):
        fact = contract.Fact(
            id=f"{run}/{lineage}/{step}",
            lineage=lineage,
            step=step,
            metrics_json=subject.examples[0].row_json,
        )
        subject.tell([fact])


def takes_metrics_of_every_kind(subject: Subject) -> None:
    """Numbers that are null or large, texts, what is nested, and none."""
    run = uuid.uuid4().hex
    subject.tell(
        [
            contract.Fact(id=f"{run}/0/{step}", step=step, metrics_json=text)
            for step, text in enumerate(ODD)
        ]
    )


def _facts(subject: Subject) -> list[contract.Fact]:
    return [subject.fact(one, step) for step, one in enumerate(subject.examples)]


def _end(subject: Subject) -> contract.Fact:
    end = contract.RunEnd(kind="Succeeded", reason="Finished", message="2 steps committed")
    last = len(subject.examples) - 1
    return contract.Fact(id=f"{subject.run}/end/1", step=last, end=end)


CHECKS = (
    takes_every_fact,
    takes_no_facts,
    takes_what_it_has_again,
    takes_a_younger_lineage,
    takes_metrics_of_every_kind,
)
