"""Evaluations: suites that exist, that run at all, and gates that can be passed and failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollout_api.checks.catalog import LIKELIHOOD_SUITES, SUITE_METRICS, SUITES, suggest
from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.evaluation import Evaluation, SuiteRun
from rollout_api.v1alpha1.run import RolloutRunSpec

_TAKEN = frozenset({"train", "infer", "held-out"})


Asked = Sequence[tuple[str, SuiteRun]]
"""Suites by the field that asks for each."""


def suites_exist(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A misspelt suite."""
    return find_unknown_suites(_suites(spec))


def find_unknown_suites(asked: Asked) -> Iterator[Problem]:
    """Of runs and of endpoints."""
    for field, run in asked:
        builtin = run.suite.builtin
        if builtin and builtin.name not in SUITES:
            yield Problem(
                field=f"{field}.suite.builtin.name",
                reason="UnknownPlugin",
                message=f"there is no built-in suite {builtin.name!r}",
                fix=suggest(builtin.name, SUITES),
            )


def evaluations_run(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """An evaluation that is asked for at no time."""
    most = spec.train.max_steps if spec.train else None
    for index, item in enumerate(spec.evaluations):
        never = not (item.at_start or item.at_end or item.every_steps)
        late = item.every_steps and most and item.every_steps > most
        if never or (late and not (item.at_start or item.at_end)):
            yield Problem(
                field=f"spec.evaluations[{index}]",
                reason="EvaluationNeverRuns",
                message="it runs neither at the start nor at the end, and no step of this run is due",
                fix="set atEnd: true, or everySteps to at most train.maxSteps",
            )


def evaluation_names_are_distinct(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Results are kept by name."""
    seen: set[tuple[str, str]] = set()
    for index, item in enumerate(spec.evaluations):
        key = (evaluation_name(item, index), split_of(item))
        if key in seen:
            yield Problem(
                field=f"spec.evaluations[{index}].name",
                reason="DuplicateName",
                message=f"two evaluations are called {key[0]!r} on the {key[1]} split",
                fix="give one of them a name",
            )
        seen.add(key)


def evaluation_names_are_free(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Digests of data are kept by name, those of training data and of inference under their own."""
    for index, item in enumerate(spec.evaluations):
        name = evaluation_name(item, index)
        if name in _TAKEN:
            yield Problem(
                field=f"spec.evaluations[{index}].name",
                reason="ReservedName",
                message=f"{name!r} is the name of the run's own data",
                fix="give it another name, such as the suite's",
            )


def at_most_one_selects(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Best is best by one measure."""
    selecting = [index for index, item in enumerate(spec.evaluations) if item.selects]
    for index in selecting[1:]:
        yield Problem(
            field=f"spec.evaluations[{index}].selects",
            reason="SeveralSelect",
            message=f"evaluation {selecting[0]} already chooses the Best snapshot",
            fix="let one evaluation select",
        )


def selection_does_not_report(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A split that chose the snapshot flatters it."""
    for index, item in enumerate(spec.evaluations):
        if item.selects and item.split == "Report":
            yield Problem(
                field=f"spec.evaluations[{index}].split",
                reason="SelectsOnReportSplit",
                message="choosing a snapshot on the Report split makes its score too good",
                fix="use split: Selection here and another evaluation on Report",
            )


def gates_are_reachable(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A gate on a metric that is not measured, or on a bound that no value can meet or miss."""
    return find_unreachable_gates(_suites(spec))


def find_unreachable_gates(asked: Asked) -> Iterator[Problem]:
    """Of runs and of endpoints."""
    for field, run in asked:
        if run.gate is None:
            continue
        if not _measured(run, run.gate.metric):
            yield Problem(
                field=f"{field}.gate.metric",
                reason="UnreachableGate",
                message=f"{run.gate.metric!r} is not measured with samplesPerPrompt {run.samples_per_prompt}",
                fix=f"use accuracy or one of {', '.join([*_passes(run.samples_per_prompt), *_own_metrics(run)])}",
            )
        elif run.gate.lower_bound > 1:
            yield Problem(
                field=f"{field}.gate.lowerBound",
                reason="UnreachableGate",
                message=f"{run.gate.metric} never exceeds 1, the bound is {run.gate.lower_bound}",
                fix="write a share, such as '0.85'",
            )
        elif run.gate.lower_bound <= 0:
            yield Problem(
                field=f"{field}.gate.lowerBound",
                reason="GateAlwaysPasses",
                message=f"a bound of {run.gate.lower_bound} is met by every model",
                fix="write a share above 0",
                severity=Severity.warning,
            )


def promotions_are_not_stopped_here(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A run promotes nothing."""
    for field, run in _suites(spec):
        if run.gate is not None and run.gate.action == "StopPromotion":
            yield not_supported(
                f"{field}.gate.action", "a gate that holds a promotion", "write Warn or StopRun"
            )


def pass_at_k_samples(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Several greedy completions are all the same."""
    return find_greedy_samples(_suites(spec))


def find_greedy_samples(asked: Asked) -> Iterator[Problem]:
    """Of runs and of endpoints."""
    for field, run in asked:
        if run.samples_per_prompt > 1 and run.temperature == 0:
            yield Problem(
                field=f"{field}.temperature",
                reason="GreedyPassAtK",
                message=f"{run.samples_per_prompt} samples at temperature 0 are all equal",
                fix="set a temperature, such as '0.8', or samplesPerPrompt: 1",
            )


def likelihoods_are_scored_once(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Suites of given answers: nothing is sampled, each is scored once."""
    for field, run in _suites(spec):
        if not is_scored(run):
            continue
        assert run.suite.builtin is not None
        name = run.suite.builtin.name
        if run.samples_per_prompt > 1 or run.temperature != 0:
            yield Problem(
                field=f"{field}.temperature" if run.temperature else f"{field}.samplesPerPrompt",
                reason="NothingSampled",
                message=f"{name} has given answers scored and samples nothing: every answer would be the same",
                fix="leave out temperature and samplesPerPrompt",
            )


def is_scored(run: SuiteRun) -> bool:
    """Whether a suite has given answers scored."""
    return run.suite.builtin is not None and run.suite.builtin.name in LIKELIHOOD_SUITES


def prompts_are_held_out(_: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Prompts that training has seen measure memory."""
    if facts.data and facts.data.overlap:
        yield Problem(
            field="spec.evaluations",
            reason="TrainEvalOverlap",
            message=f"{facts.data.overlap} evaluation prompts are in the training data as well (by prompt hash)",
            fix="remove them from train.data, or use data.evalFraction to hold rows out",
        )


def evaluation_name(item: SuiteRun, index: int) -> str:
    """The name an evaluation has in metrics and reports."""
    if item.name:
        return item.name
    return item.suite.builtin.name if item.suite.builtin else f"evaluation-{index}"


def split_of(item: SuiteRun) -> str:
    """``Selection`` or ``Report``, the default resolved."""
    if item.split:
        return item.split
    return "Selection" if isinstance(item, Evaluation) and item.selects else "Report"


def _measured(run: SuiteRun, metric: str) -> bool:
    return metric in ("accuracy", *_passes(run.samples_per_prompt), *_own_metrics(run))


def _own_metrics(run: SuiteRun) -> tuple[str, ...]:
    builtin = run.suite.builtin
    return SUITE_METRICS.get(builtin.name, ()) if builtin is not None else ()


def _passes(num_samples: int) -> list[str]:
    """The pass@k that are measured: powers of two up to the samples of a prompt, and all of them."""
    ks = {1 << bit for bit in range(num_samples.bit_length())} | {num_samples}
    return [f"pass@{k}" for k in sorted(ks)]


def _suites(spec: RolloutRunSpec) -> Asked:
    return [(f"spec.evaluations[{i}]", item) for i, item in enumerate(spec.evaluations)]


RULES = (
    suites_exist,
    evaluations_run,
    evaluation_names_are_distinct,
    evaluation_names_are_free,
    at_most_one_selects,
    selection_does_not_report,
    gates_are_reachable,
    promotions_are_not_stopped_here,
    pass_at_k_samples,
    likelihoods_are_scored_once,
    prompts_are_held_out,
)
