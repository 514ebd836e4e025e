"""The points of a sweep: every combination of the values given, each a manifest with its own name.

Pure. A point's name says its settings and does not depend on the other points, so that a sweep can be
widened later and what has been run is found again.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout.runs.prepare import base_folder, place_paths
from rollout.runs.validation import apply_values, parse_scalar, require_valid
from rollout_api.v1alpha1.sweep import SweepParameter

POINTS_MAX = 1000
NAME_MAX = 63
SEED = "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A field and its values; ``texts`` are the values as they were written. ``parameter``: what a RolloutSweep says of it."""

    path: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    parameter: SweepParameter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep. ``document`` has absolute paths: it may be written anywhere."""

    name: str
    settings: Mapping[str, Any]
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What points are combinations of. ``base`` has absolute paths."""

    base: Document
    axes: tuple[Axis, ...]


def parse_axis(item: str) -> Axis:
    """``path=v1,v2``; values are read as YAML, commas inside brackets and quotes belong to a value.

    Raises SpecError.
    """
    path, separator, text = item.partition("=")
    texts = tuple(dict.fromkeys(one for one in _split(text) if one))
    if not separator or not path.strip() or not texts:
        raise SpecError(
            f"--over {item}: expected path=value,value, such as train.optimizer.adamw.learningRate=1e-4,3e-4"
        )
    return Axis(path=path.strip(), values=tuple(map(parse_scalar, texts)), texts=texts)


def _split(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[]{}":
            depth += 1 if letter in "[{" else -1
        elif letter == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def seed_axis(document: Document, num_seeds: int) -> Axis:
    """``num_seeds`` seeds, counted up from the manifest's own."""
    first = (document.data.get("spec") or {}).get(SEED, 0)
    seeds = tuple(range(int(first), int(first) + num_seeds))
    return Axis(path=SEED, values=seeds, texts=tuple(map(str, seeds)))


def plan_points(document: Document, axes: Sequence[Axis]) -> tuple[Point, ...]:
    """Every combination, the last axis fastest. Raises SpecError, also for a point that is not valid."""
    repeated = [path for path, count in Counter(axis.path for axis in axes).items() if count > 1]
    if repeated:
        raise SpecError(f"--over {repeated[0]}: given twice; put all its values into one")
    sizes = [len(axis.values) for axis in axes]
    total = 1
    for size in sizes:
        total *= size
    if total > POINTS_MAX:
        raise SpecError(
            f"{' x '.join(map(str, sizes))} = {total} points; at most {POINTS_MAX} in one sweep"
        )
    base = place_document(document)
    return tuple(
        _build_point(base, axes, choice)
        for choice in itertools.product(*(range(size) for size in sizes))
    )


def place_document(document: Document) -> Document:
    """The same with absolute paths: it may be written anywhere."""
    data = copy.deepcopy(document.data)
    place_paths(data.get("spec") or {}, base_folder(document.source))
    return Document(source=document.source, data=data, lines=document.lines)


def _build_point(base: Document, axes: Sequence[Axis], choice: Sequence[int]) -> Point:
    chosen = list(zip(axes, choice, strict=True))
    settings = {axis.path: axis.values[at] for axis, at in chosen}
    stem = (base.data.get("metadata") or {}).get("name") or "run"
    name = name_point(str(stem), [(axis, axis.texts[at]) for axis, at in chosen])
    return settle_point("point", base, name, settings)


def settle_point(
    kind: str, base: Document, name: str, settings: Mapping[str, Any], **spec: Any
) -> Point:
    """``base`` under a name of its own, with these settings, then with fields of ``spec`` that are none.

    Raises SpecError, behind its ``kind`` and name, where it is not valid.
    """
    document = apply_values(base, {**settings, **spec, "metadata.name": name})
    try:
        require_valid([document])
    except SpecError as error:
        raise SpecError(f"{kind} {name}: {error}") from error
    return Point(name=name, settings=dict(settings), document=document)


def name_point(stem: str, chosen: Sequence[tuple[Axis, str]]) -> str:
    """``<stem>-<field>-<value>-...``; what does not fit, or would not be unique, ends in a digest."""
    leaves = Counter(_leaf(axis.path) for axis, _ in chosen)
    parts, exact = [stem], True
    for axis, text in chosen:
        leaf = _leaf(axis.path)
        exact &= leaves[leaf] == 1 and len({_slug(one) for one in axis.texts}) == len(axis.texts)
        exact &= bool(_slug(text))
        parts += [leaf, _slug(text)]
    name = "-".join(part for part in parts if part)
    if exact and len(name) <= NAME_MAX:
        return name
    content = json.dumps([[axis.path, text] for axis, text in chosen])
    digest = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
    return f"{name[: NAME_MAX - 9].rstrip('-.')}-{digest}"


def _leaf(path: str) -> str:
    return _slug(re.split(r"[.\[\]]+", path.rstrip("]"))[-1])


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
