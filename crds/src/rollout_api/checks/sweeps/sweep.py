"""Rules of a RolloutSweep: how many runs it comes to, what its parameters name, and that each of its runs could be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.checks.sizes import find_excess
from rollout_api.problems import Problem, Severity, problems_from_validation
from rollout_api.sweeps.forking import EXPLORED, is_explored
from rollout_api.sweeps.points import (
    TooFew,
    Values,
    count_points,
    pick_points,
    plan_points,
    texts_of,
)
from rollout_api.sweeps.settable import NotSettable, Settable, find_settable, set_values
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.sweep import RUNS_MAX, SweepParameter, SweepSpec

CheckSpec = Callable[[RolloutRunSpec, Facts], Sequence[Problem]]
TEMPLATE = "spec.template.spec"
BUCKETS = ("s3://", "gs://")
OWN = ("suspend", "managedBy")
"""Fields of a run that the sweep itself, or nobody, sets."""
WORDS_MAX = 200


def check_sweep(
    spec: SweepSpec, template: Mapping[str, Any], facts: Facts, check_spec: CheckSpec
) -> Iterator[Problem]:
    """Every problem of a sweep's spec; ``template`` is that of its runs as it was written."""
    if facts.platform == "local":
        fix = "run rollout sweep -f FILE on this machine"
        yield not_supported("kind", "a RolloutSweep on one machine", fix)
        return
    found = [*check_form(spec)]
    yield from found
    if not found:
        yield from _runs(spec, template, facts, check_spec)


def check_form(spec: SweepSpec) -> Iterator[Problem]:
    """What is wrong with a sweep whatever its runs come to."""
    run, stops = spec.template.spec, spec.early_stopping is not None
    objective = check_objective(run, spec.objective.metric, stops_early=stops)
    found = [*_template(run), *_parameters(spec), *objective, *_forks(spec)]
    yield from found
    if found:
        return
    excess = find_excess(spec.model_dump(mode="json", exclude_none=True))
    yield from (excess,) if excess is not None else _count(spec)


def _template(run: RolloutRunSpec) -> Iterator[Problem]:
    if run.train is None:
        fix = "train in the template, or make the runs one by one"
        yield not_supported(TEMPLATE, "a sweep of runs that train nothing", fix)
        return
    if run.suspend:
        yield _own("suspend")
    if run.managed_by is not None:
        yield _own("managedBy")
    if run.train.output is not None:
        yield Problem(
            field=f"{TEMPLATE}.train.output",
            reason="SharedPlace",
            message="all runs would write their models to one place",
            fix="leave it out, and take the best one's by fromRun, or by rollout model export",
        )
    if run.limits.ttl_action == "DeleteRun":
        yield Problem(
            field=f"{TEMPLATE}.limits.ttlAction",
            reason="InvalidValue",
            message="a run that deletes itself cannot be compared any more",
            fix="leave it out: the runs go with their sweep",
        )


def _own(name: str) -> Problem:
    return not_supported(f"{TEMPLATE}.{name}", f"{name} in the template of a sweep", "leave it out")


def _parameters(spec: SweepSpec) -> Iterator[Problem]:
    random = spec.search is not None and spec.search.random is not None
    fields = [one.field for one in spec.parameters]
    for index, one in enumerate(spec.parameters):
        path = f"spec.parameters[{index}]"
        if one.field in fields[:index]:
            yield Problem(
                field=f"{path}.field",
                reason="DuplicateName",
                message=f"{one.field!r} is given twice",
                fix="put all its values into one",
            )
        if one.field.partition(".")[0] in OWN:
            yield not_supported(f"{path}.field", f"{one.field} as a parameter", "leave it out")
            continue
        try:
            field = find_settable(one.field)
        except NotSettable as error:
            yield Problem(
                field=f"{path}.field", reason="UnknownField", message=str(error), fix=error.fix
            )
            continue
        yield from _range(one, field, path, random=random)
        yield from _values(one, field, path)


def _range(one: SweepParameter, field: Settable, path: str, *, random: bool) -> Iterator[Problem]:
    if one.range is None:
        return
    low, high, place = one.range.low, one.range.high, f"{path}.range"
    if not random:
        yield not_supported(place, "a range in a grid", "write values, or search: {random: {...}}")
    if field.form not in ("Integer", "Real"):
        message, fix = f"{one.field} is no number", "write values"
        yield Problem(field=place, reason="InvalidValue", message=message, fix=fix)
    if low >= high or (one.range.scale == "Log" and low <= 0):
        yield Problem(
            field=f"{place}.low",
            reason="OutOfRange",
            message=f"expected low below high, both above 0 for Log; got {low:g} and {high:g}",
            fix="write the lower bound first",
        )


def _values(one: SweepParameter, field: Settable, path: str) -> Iterator[Problem]:
    for index, text in enumerate(one.values or ()):
        place = f"{path}.values[{index}]"
        try:
            field.parse(text)
        except ValueError as error:
            fix = f"write what {one.field} takes"
            yield Problem(field=place, reason="InvalidValue", message=str(error), fix=fix)
        if one.values is not None and text in one.values[:index]:
            fix = "write it once; repeat with other seeds by a parameter seed"
            message = f"{text!r} is given twice"
            yield Problem(field=place, reason="DuplicateName", message=message, fix=fix)


def check_objective(
    run: RolloutRunSpec, metric: Literal["RewardMean", "BestEvaluation"], *, stops_early: bool
) -> Iterator[Problem]:
    """Why runs of this spec cannot be compared by a metric, or (``stops_early``) not before their end."""
    if run.train is None:
        return
    selecting = [one for one in run.evaluations if one.selects]
    if metric == "RewardMean" and not run.train.algorithm.is_online:
        yield Problem(
            field="spec.objective.metric",
            reason="InvalidValue",
            message=f"{run.train.algorithm.chosen} samples nothing and reports no reward",
            fix="write BestEvaluation, and let one of its evaluations select",
        )
    if metric == "BestEvaluation" and not selecting:
        yield Problem(
            field="spec.objective.metric",
            reason="MissingField",
            message="no evaluation of the run selects",
            fix="set selects: true in one of its evaluations, or write RewardMean",
        )
    elif metric == "BestEvaluation" and stops_early and not selecting[0].every_steps:
        yield Problem(
            field="spec.earlyStopping",
            reason="MissingField",
            message="the evaluation that selects measures at the end only, and losers are found before that",
            fix="set everySteps in it, or leave earlyStopping out",
        )


def _forks(spec: SweepSpec) -> Iterator[Problem]:
    if spec.forks is None:
        return
    if spec.early_stopping is None:
        yield Problem(
            field="spec.forks",
            reason="MissingField",
            message="without earlyStopping nothing loses, and nothing is forked",
            fix="write earlyStopping: {halving: {firstStep: ...}}, or leave forks out",
        )
    storage = spec.template.spec.storage
    if storage is not None and not (storage.uri or "").startswith(BUCKETS):
        yield Problem(
            field=f"{TEMPLATE}.storage.uri",
            reason="MissingField",
            message="a fork begins with a snapshot of another run, which it reads from a bucket",
            fix="write s3://bucket/prefix or gs://bucket/prefix, or leave storage to the runtime, or forks out",
        )
    if not any(is_explored(one.field) for one in spec.parameters):
        yield Problem(
            field="spec.forks",
            reason="InvalidValue",
            message="no parameter is one that a begun run may change: a fork would be its winner once more",
            fix=f"add a parameter of {', '.join(EXPLORED)}, or leave forks out",
        )


def _count(spec: SweepSpec) -> Iterator[Problem]:
    if (count := count_points(spec)) > RUNS_MAX:
        yield Problem(
            field="spec.parameters",
            reason="TooMany",
            message=f"they come to {count:,} runs; a sweep has {RUNS_MAX} at most",
            fix="write fewer values, or search: {random: {samples: ...}}",
        )
        return
    try:
        plan_points(spec)
    except TooFew as error:
        fix = "write fewer samples, or more values"
        yield Problem(
            field="spec.search.random.samples", reason="OutOfRange", message=str(error), fix=fix
        )


def _runs(
    spec: SweepSpec, template: Mapping[str, Any], facts: Facts, check_spec: CheckSpec
) -> Iterator[Problem]:
    """Runs in which every value stands once: the first that could not be made, told by what it sets.

    Each run is checked again before it is made: all of them at once would hold up what others ask.
    """
    for values in pick_points(spec):
        if problem := find_fault(spec, template, values, facts, check_spec):
            yield problem
            return


def find_fault(
    spec: SweepSpec,
    template: Mapping[str, Any],
    values: Values,
    facts: Facts,
    check_spec: CheckSpec,
) -> Problem | None:
    """Why the run with these values could not be made; None where it could."""
    setting = ", ".join(texts_of(values, spec.parameters))
    try:
        document = build_run_spec(spec, template, values)
        run = RolloutRunSpec.model_validate(document)
        found = [one for one in check_spec(run, facts) if one.severity is Severity.error]
    except ValidationError as error:
        found = list(problems_from_validation(error, RolloutRunSpec))
    except NotSettable as error:
        return Problem(
            field="spec.parameters", reason="UnknownField", message=str(error), fix=error.fix
        )
    if not found:
        return None
    first, place = found[0], found[0].field.removeprefix("spec.")
    return Problem(
        field=f"{TEMPLATE}.{place}",
        reason=first.reason,
        message=f"the run with {setting[:WORDS_MAX]}: {first.message}",
        fix=first.fix,
    )


def build_run_spec(spec: SweepSpec, template: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The spec of the run with these values. Raises NotSettable, ValueError."""
    fields = [find_settable(one.field) for one in spec.parameters]
    return set_values(template, dict(zip(fields, values, strict=True)))
