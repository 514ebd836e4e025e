"""For each field: a base document, another value of it alone, and the first consumer that answers otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bases import BASES, RUNTIME
from configs import Place, standing_in
from consumers import CONSUMERS, ask
from leaves import Field, fields_of, find, is_union_member, other_value, place
from operating import refusals
from rows import ROWS, VALUES, Row

REFUSED = "refused"
HOW = "see the head of tests/fields/rows.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Who reads a field: a consumer's name or ``refused``; ``problem`` when nobody is found."""

    field: Field
    consumer: str = ""
    problem: str = ""


def row_of(path: str) -> Row | None:
    """The row of the longest path that this one lies in."""
    best = max((one for one in ROWS if _lies_in(path, one)), key=len, default=None)
    return None if best is None else ROWS[best]


def _lies_in(path: str, parent: str) -> bool:
    return path == parent or path.startswith((f"{parent}.", f"{parent}["))


class Reader:
    """Asks consumers, each base once."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._known: dict[tuple[str, str], Any] = {}

    def read(self, field: Field) -> Reading:
        """Who reads this field."""
        row = row_of(field.path)
        if row is None:
            return _nobody(field, f"no row names it: {HOW}")
        base = build_base(row)
        changed = change(base, field)
        if changed is None:
            return _nobody(
                field, f"its object is not in base {row.base!r} (after its edits): {HOW}"
            )
        before, after = find(base, field.path), find(changed, field.path)
        wrong = refusals(_split(changed)[0])
        if wrong and not {REFUSED, "refusal"} & set(row.consumers):
            return _nobody(
                field, f"{after!r} is not valid in base {row.base!r} ({wrong[0]}): {HOW}"
            )
        for name in row.consumers:
            if self._differs(name, base, changed, field.path):
                return Reading(field=field, consumer=name)
        return _nobody(
            field,
            f"no output of {', '.join(row.consumers)} differs between {before!r} and {after!r} in base "
            f"{row.base!r}: have it read, refuse it in rollout_api/checks/unbuilt.py, or {HOW}",
        )

    def _differs(self, name: str, base: Any, changed: Any, path: str) -> bool:
        run, runtime = _split(changed)
        if name == REFUSED:
            return is_refused(changed, path)
        before = self._ask(name, base)
        try:
            with standing_in(self._where):
                return before != ask(CONSUMERS[name], run, runtime, self._where)
        except Exception as error:
            error.add_note(f"{name} was asked about {path}")
            raise

    def _ask(self, name: str, base: Any) -> Any:
        key = (name, json.dumps(base, sort_keys=True))
        if key not in self._known:
            run, runtime = _split(base)
            with standing_in(self._where):
                self._known[key] = CONSUMERS[name].ask(run, runtime, self._where)
        return self._known[key]


def _nobody(field: Field, problem: str) -> Reading:
    return Reading(field=field, problem=f"{field.path}: {problem}")


def build_base(row: Row) -> dict[str, Any]:
    """A run, and under ``runtime`` the spec of its runtime."""
    base: dict[str, Any] = {**BASES[row.base], "runtime": RUNTIME if row.base == "runtime" else {}}
    if "accelerator" in json.dumps(base["spec"]):
        base["runtime"] = RUNTIME
    for path, value in row.edits.items():
        found = place(base, path, value)
        assert found is not None, f"{path}: nothing to edit in base {row.base!r}"
        base = found
    return json.loads(json.dumps(_without_nones(base)))


def _without_nones(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nones(one) for key, one in value.items() if one is not None}
    return [_without_nones(one) for one in value] if isinstance(value, list) else value


def change(base: Mapping[str, Any], field: Field) -> dict[str, Any] | None:
    """The base with another value of the field; None where its object is not there."""
    if is_union_member(field):
        parent, _, name = field.path.rpartition(".")
        return place(base, parent, {name: {}})
    value = VALUES.get(field.path, other_value(field, find(base, field.path)))
    changed = place(base, field.path, value)
    return None if changed is None else _without_nones(changed)


def _split(document: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    run = {key: value for key, value in document.items() if key != "runtime"}
    return run, document["runtime"]


def is_refused(document: Mapping[str, Any], path: str) -> bool:
    """Whether an error names the field, or what it lies in."""
    run, runtime = _split(document)
    at_runtime = path.startswith("runtime.")
    found = refusals({"kind": "ClusterRolloutRuntime", "spec": runtime} if at_runtime else run)
    wanted = path.replace("runtime.", "spec.", 1) if at_runtime else path
    return any(_lies_in(wanted, _plain(name)) for name, _ in found)


def _plain(name: str) -> str:
    return "".join("[]" if part.isdigit() else part for part in _parts(name))


def _parts(name: str) -> Iterator[str]:
    for number, part in enumerate(name.replace("]", "").split("[")):
        digits = part[: len(part) - len(part.lstrip("0123456789"))] if number else ""
        yield from (digits, part[len(digits) :])


def leaves() -> tuple[Field, ...]:
    """Every leaf of what is wanted: of a run (``spec.``) and of a runtime (``runtime.``)."""
    run = [one for one in fields_of("RolloutRun") if one.path.startswith("spec.")]
    runtime = [
        replace(one, path=f"runtime{one.path.removeprefix('spec')}")
        for one in fields_of("ClusterRolloutRuntime")
        if one.path.startswith("spec.")
    ]
    return (*run, *runtime)
