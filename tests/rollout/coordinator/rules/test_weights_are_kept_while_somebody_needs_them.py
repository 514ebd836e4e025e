from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rollout.coordinator.rules.retention import (
    Needs,
    plan_anchor_retention,
    plan_body_removal,
    plan_retention,
)
from rollout.ledger.records import AnchorManifest
from rollout.types import WeightVersion


def version(step, lineage=0, obj=None):
    return WeightVersion(lineage=lineage, step=step, digest="d", object=obj or f"w{lineage}-{step}")


def anchor(step):
    return AnchorManifest(
        name=f"step-{step}", lineage=0, step=step, chain="", version=version(step),
        objects={"optimizer": f"o{step}"},
    )  # fmt: skip


def needs(head, staleness=0, pinned=(), anchors=()):
    return Needs(
        head=(0, head), staleness_max=staleness, pinned=frozenset(pinned), anchors=tuple(anchors)
    )


def test_initial_recent_pinned_and_anchored_versions_stay():
    versions = [version(step) for step in range(11)]
    gone = plan_retention(versions, needs(10, 1, pinned=[(0, 3)], anchors=[anchor(5)]))
    assert [step for _, step in gone.versions] == [1, 2, 4, 6, 7]
    assert gone.objects == ("w0-1", "w0-2", "w0-4", "w0-6", "w0-7")


def test_equal_weights_share_an_object_that_stays_while_one_is_needed():
    versions = [version(step, obj="same") for step in range(9)]
    gone = plan_retention(versions, needs(8))
    assert len(gone.versions) == 6
    assert gone.objects == ()


@given(st.integers(0, 30), st.integers(0, 4), st.sets(st.integers(0, 30)), st.integers(1, 5))
def test_no_object_goes_that_a_kept_version_names(head, staleness, pinned, num_objects):
    versions = [version(step, obj=f"o{step % num_objects}") for step in range(head + 1)]
    gone = plan_retention(versions, needs(head, staleness, {(0, step) for step in pinned}))
    kept = [v for v in versions if (v.lineage, v.step) not in gone.versions]
    assert not {v.object for v in kept} & set(gone.objects)
    assert {v.step for v in kept} >= {0, *range(max(0, head - staleness - 1), head + 1)}


def chained(num_versions, length):
    """Versions in chains of deltas on a dense base, as a learner publishes them."""
    found, chain = [], ()
    for step in range(num_versions):
        chain = () if len(chain) > length else chain
        found.append(replace(version(step), bases=chain))
        chain = (found[-1].object, *chain)
    return found


@given(
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sets(st.integers(0, 30), max_size=3),
)
def test_what_a_kept_delta_builds_on_stays_and_nothing_is_forgotten(
    head, length, staleness, pinned
):
    """Retention after every step, as a run has it; a pin that ends lets everything go."""
    versions, there, everything = [], set(), chained(head + 1, length)
    for step, new in enumerate(everything):
        versions.append(new)
        there |= {new.object}
        pins = {(0, one) for one in pinned if one <= step} if step < head else set()
        gone = plan_retention(versions, needs(step, staleness, pins))
        versions = [v for v in versions if (v.lineage, v.step) not in gone.versions]
        there -= set(gone.objects)
        assert there == {name for v in versions for name in v.objects}


def test_versions_of_a_dead_lineage_go():
    gone = plan_retention([version(4, 0), version(2, 1)], Needs(
        head=(1, 2), staleness_max=0, pinned=frozenset(), anchors=(),
    ))  # fmt: skip
    assert gone.versions == ((0, 4),)


def test_the_newest_anchors_stay():
    assert [a.step for a in plan_anchor_retention([anchor(s) for s in (3, 1, 2)], 2)] == [1]
    assert plan_anchor_retention([anchor(1)], 0) == ()


@pytest.mark.parametrize(
    ("steps", "behind", "wanted"),
    [
        ((4, 8), 0, 4),
        ((8, 4), 3, 1),
        ((4,), 4, 0),
        ((4,), 5, None),
        ((), 0, None),
        ((4,), None, None),
    ],
)
def test_bodies_go_so_many_steps_behind_the_oldest_snapshot(steps, behind, wanted):
    assert plan_body_removal([anchor(step) for step in steps], behind) == wanted
