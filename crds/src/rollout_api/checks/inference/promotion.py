"""Rules of how a changed endpoint takes over: what its candidate is measured by."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.environment.evaluations import (
    Asked,
    evaluation_name,
    find_greedy_samples,
    find_unknown_suites,
    find_unreachable_gates,
    is_scored,
)
from rollout_api.checks.environment.tools import SANDBOXED_SUITES
from rollout_api.checks.refusals import not_supported
from rollout_api.problems import Problem
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_api.v1alpha1.inference.endpoint import Promotion

NAME_LENGTH_MAX = 63
_FIELD = "spec.promotion"
_BUILTIN = "name a suite that rollout ships: suite: {builtin: {name: gsm8k}}"


def check_promotion(promotion: Promotion) -> Iterator[Problem]:
    """Every problem of an endpoint's promotion."""
    asked: Asked = [
        (f"{_FIELD}.evaluations[{place}]", one) for place, one in enumerate(promotion.evaluations)
    ]
    yield from find_unknown_suites(asked)
    yield from find_unreachable_gates(asked)
    yield from find_greedy_samples(asked)
    for field, one in asked:
        yield from _suite(field, one)
        if one.gate is not None and one.gate.action == "StopRun":
            fix = "write StopPromotion, or Warn"
            yield not_supported(f"{field}.gate.action", "a gate that ends a run, here,", fix)
    yield from _names(promotion)


def _suite(field: str, one: SuiteRun) -> Iterator[Problem]:
    """What the pod that measures can build: it has neither the user's code nor a sandbox."""
    for name in ("data", "python", "plugin", "rewards"):
        if getattr(one.suite, name):
            yield not_supported(f"{field}.suite.{name}", f"{name} of a candidate's suite", _BUILTIN)
    builtin = one.suite.builtin
    if builtin is not None and builtin.name in SANDBOXED_SUITES:
        words = f"{builtin.name}, which runs what the model writes, for a candidate"
        yield not_supported(f"{field}.suite.builtin.name", words, "name another suite")
    if builtin is not None and is_scored(one):
        words = f"{builtin.name}, which needs log-probabilities that a chat endpoint does not give, for a candidate"
        yield not_supported(f"{field}.suite.builtin.name", words, "name mmlu-generative")


def _names(promotion: Promotion) -> Iterator[Problem]:
    seen: set[str] = set()
    for place, one in enumerate(promotion.evaluations):
        name, field = evaluation_name(one, place), f"{_FIELD}.evaluations[{place}].name"
        if name in seen:
            yield Problem(
                field=field,
                reason="DuplicateName",
                message=f"two evaluations are called {name!r}",
                fix="give one of them a name",
            )
        if len(name) > NAME_LENGTH_MAX:
            yield Problem(
                field=field,
                reason="InvalidValue",
                message=f"{name[:NAME_LENGTH_MAX]!r}... has {len(name)} characters",
                fix=f"at most {NAME_LENGTH_MAX}: all figures of a candidate fit one message of its pod",
            )
        seen.add(name)
