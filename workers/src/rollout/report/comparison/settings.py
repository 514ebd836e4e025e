"""How the settings of several runs differ: resolved manifests as dotted paths, and which runs are alike.

Pure. Runs that differ in nothing but ``seed`` are the same experiment, repeated: one group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SEED = "seed"
CONTENT = "content"
"""Under which digests of models and data stand: of equal names, what was in them may differ."""
UNLIKE = ("tracking", "limits", "snapshots", "storage", CONTENT)
"""What is shown where it differs and no reason to part runs: settings that change nothing of what is
learned, and contents, since seeds of an earlier stage make other ones."""
ALGORITHM = "train.algorithm"
DIGITS = 12


def flatten_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting by its path: ``train.optimizer.adamw.learningRate``, ``evaluations[0].name``."""
    return dict(_walk(spec, ""))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping | list | tuple) and not value:
        return  # empty is what a field is that was never written
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{index}]")
    else:
        yield path, value


def shorten_snapshot(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec that names the snapshot it begins with by the first digits of its id: where that lies says nothing of a run."""
    given = (spec.get("restoreFrom") or {}).get("object") or {}
    digest = str(given.get("digest") or "").partition(":")[2]
    return {**spec, "restoreFrom": digest[:DIGITS]} if digest else dict(spec)


def differing_settings(specs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Settings that are not the same in all runs, by path: one value a run, None where it has none."""
    flat = [flatten_spec(spec) for spec in specs]
    names = [_algorithm(spec) for spec in specs]
    paths = list(dict.fromkeys(path for one in flat for path in one))
    found = {path: tuple(one.get(path) for one in flat) for path in paths}
    differing = {path: values for path, values in found.items() if _differ(path, values, names)}
    return {ALGORITHM: tuple(names), **differing} if len({*names}) > 1 else differing


def _algorithm(spec: Mapping[str, Any]) -> str | None:
    return next(iter((spec.get("train") or {}).get("algorithm") or {}), None)


def _differ(path: str, values: Sequence[Any], names: Sequence[str | None]) -> bool:
    """Whether a setting differs; one of an algorithm, between the runs of that algorithm."""
    if path.startswith(f"{ALGORITHM}."):
        own = path.removeprefix(f"{ALGORITHM}.").partition(".")[0]
        values = [value for value, name in zip(values, names, strict=True) if name == own]
    return len({*map(_key, values)}) > 1


def group_runs(differing: Mapping[str, Sequence[Any]], num_runs: int) -> list[int]:
    """The group of each run, counted from 0 in the order of first appearance."""
    deciding = [
        values for path, values in differing.items() if path != SEED and not path.startswith(UNLIKE)
    ]
    keys = [tuple(_key(values[run]) for values in deciding) for run in range(num_runs)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def describe_value(value: Any) -> str:
    """A setting as a short text; nothing is a dash."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
