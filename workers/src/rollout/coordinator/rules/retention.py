"""Which weight versions, anchors and bodies are kept. Pure; deletion happens elsewhere, after the commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rollout.ledger.records import AnchorManifest
from rollout.types import WeightVersion

Key = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must stay: newest committed (lineage, step), versions that evaluations, ``Best`` or an anchor under way use."""

    head: Key
    staleness_max: int
    pinned: frozenset[Key]
    anchors: tuple[AnchorManifest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """Versions that nobody needs, and the objects that thereby became free."""

    versions: tuple[Key, ...]
    objects: tuple[str, ...]


def plan_retention(versions: Iterable[WeightVersion], needs: Needs) -> Retired:
    """Keep the initial version, the last ``staleness_max + 2``, pinned ones and those of anchors.

    Equal weights share an object, and a delta needs others: an object goes only when no kept version
    or anchor names it. What a version that goes was built on may have waited for it, and goes with it.
    """
    versions = tuple(versions)
    anchored = {(a.version.lineage, a.version.step) for a in needs.anchors}
    kept = [v for v in versions if _is_kept(v, needs, anchored)]
    gone = [v for v in versions if not _is_kept(v, needs, anchored)]
    named = objects_in(kept) | objects_of(needs.anchors)
    return Retired(
        versions=tuple((v.lineage, v.step) for v in gone),
        objects=tuple(sorted(objects_in(gone) - named)),
    )


def _is_kept(version: WeightVersion, needs: Needs, anchored: Collection[Key]) -> bool:
    key = (version.lineage, version.step)
    lineage, step = needs.head
    recent = version.lineage == lineage and version.step > step - (needs.staleness_max + 2)
    return version.step == 0 or recent or key in needs.pinned or key in anchored


def objects_in(versions: Iterable[WeightVersion]) -> set[str]:
    """Every object that these versions need."""
    return {name for version in versions for name in version.objects}


def objects_of(anchors: Iterable[AnchorManifest]) -> set[str]:
    """Every object that these anchors name."""
    found: set[str] = set()
    for anchor in anchors:
        found |= {*anchor.version.objects, *anchor.objects.values()}
    return found


def plan_collection(present: Iterable[str], named: Collection[str], num_max: int) -> Sequence[str]:
    """Objects that are there and that nobody names, ``num_max`` at most."""
    return sorted(set(present).difference(named))[:num_max]


def plan_anchor_retention(
    anchors: Sequence[AnchorManifest], num_kept: int
) -> tuple[AnchorManifest, ...]:
    """The anchors to delete: all but the newest ``num_kept``."""
    ordered = sorted(anchors, key=lambda anchor: (anchor.step, anchor.lineage))
    return tuple(ordered[: max(0, len(ordered) - max(1, num_kept))])


def plan_body_removal(anchors: Sequence[AnchorManifest], steps_behind: int | None) -> int | None:
    """The step up to which bodies go: so many behind the oldest anchor. None: all of them stay.

    A resume begins at an anchor, at the oldest one if need be, and replays what comes after it.
    """
    if steps_behind is None or not anchors:
        return None
    last = min(anchor.step for anchor in anchors) - steps_behind
    return last if last >= 0 else None
