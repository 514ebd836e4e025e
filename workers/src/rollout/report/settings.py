"""How the settings of several runs differ: resolved manifests as dotted paths, and which runs are alike.

Pure. Runs that differ in nothing but ``seed`` are the same experiment, repeated: one group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SEED = "seed"
UNLIKE = ("tracking", "limits", "snapshots", "storage")
"""Parts of a spec that change nothing of what is learned; shown where they differ, no reason to part runs."""


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


def differing_settings(specs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Settings that are not the same in all runs, by path: one value a run, None where it has none."""
    flat = [flatten_spec(spec) for spec in specs]
    paths = list(dict.fromkeys(path for one in flat for path in one))
    found = {path: tuple(one.get(path) for one in flat) for path in paths}
    return {path: values for path, values in found.items() if len({*map(_key, values)}) > 1}


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
