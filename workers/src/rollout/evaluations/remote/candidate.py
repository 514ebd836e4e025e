"""Measuring an endpoint's candidate by the evaluations of its promotion: one after the other, each as its spec says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.errors import InfrastructureError
from rollout.evaluations.build import build_suite
from rollout.evaluations.remote.items import open_items
from rollout.evaluations.remote.measure import MeasureSettings, measure_suite
from rollout.rewards.chat_endpoint import Endpoint
from rollout_api.checks.environment.evaluations import evaluation_name
from rollout_api.serving import MeasureOrder
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_api.v1alpha1.inference.endpoint import Measured

ACCURACY = "accuracy"
TRIES_MAX = 6
"""Of one prompt, over about half a minute."""


def measure_candidate(order: MeasureOrder, key: str, folder: Path) -> tuple[Measured, ...]:
    """What each evaluation comes to; ``passed`` is left to whoever judges. Answers are kept under ``folder`` meanwhile.

    Raises SpecError, DataError; InfrastructureError where a prompt was not answered: no bar is judged by a part.
    """
    endpoint = Endpoint(
        url=order.url, model=order.model, key=key, tries_max=TRIES_MAX, is_trusted_network=True
    )
    return tuple(
        _measure(evaluation_name(one, place), one, endpoint, folder / str(place))
        for place, one in enumerate(order.evaluations)
    )


def _measure(name: str, asked: SuiteRun, endpoint: Endpoint, folder: Path) -> Measured:
    suite = build_suite(asked)
    source = suite.source()
    settings = MeasureSettings(
        samples=asked.samples_per_prompt,
        temperature=asked.temperature,
        max_tokens=asked.max_new_tokens,
    )
    items = open_items(folder, {"evaluation": name})
    metrics = measure_suite(suite, source, endpoint, settings, items)
    if left := len(source) - len(items.done):
        raise InfrastructureError(
            f"{name}: {left} of {len(source)} prompts were not answered by {endpoint.url}"
        )
    return _describe(name, asked, metrics)


def _describe(name: str, asked: SuiteRun, metrics: Mapping[str, Any]) -> Measured:
    metric = asked.gate.metric if asked.gate is not None else ACCURACY
    found = metrics.get(metric) or {}
    return Measured(
        name=name,
        metric=metric,
        num_prompts=metrics["num_prompts"],
        **{part: found[part] for part in ("value", "low", "high") if part in found},
    )
