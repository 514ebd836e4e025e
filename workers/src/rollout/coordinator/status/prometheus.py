"""The run's figures in Prometheus' text format, built from the picture at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rollout.coordinator.context import RunContext
from rollout.coordinator.dispatcher import Coordinator
from rollout.coordinator.rules.recall_state import Why
from rollout.coordinator.status.overview import actors_wanted, build_status, count_rows
from rollout.ledger.records import DispositionKind
from rollout.protocol.status import InferStatus, Status

MOVES = (*get_args(Why), "taken")
"""Why groups move between actors."""


def render_metrics(coordinator: Coordinator) -> tuple[bytes, str]:
    """The page and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(coordinator))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Page:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        status = build_status(self._coordinator.run)
        yield from _gauges(status)
        yield from _actors(self._coordinator.run)
        yield _by_label(
            "rollout_samples", "Samples by how they ended.", "disposition", status.dispositions
        )
        yield from _stragglers(self._coordinator.run)
        yield from _rows(count_rows(self._coordinator.run))
        yield _by_label(
            "rollout_step_phase_seconds",
            "Seconds of the last step by phase.",
            "phase",
            status.phase_seconds,
        )
        alive = {worker.worker: float(worker.alive) for worker in status.workers}
        yield _by_label("rollout_worker_alive", "1 for a worker that was heard.", "worker", alive)
        rebuilt = {worker.worker: worker.num_rebuilt for worker in status.workers}
        yield _by_label(
            "rollout_worker_rebuilds",
            "Times a worker's process made its weights anew from a dense base.",
            "worker",
            rebuilt,
        )
        errors = CounterMetricFamily(
            "rollout_coordinator_errors", "Calls that met a bug of the coordinator."
        )
        errors.add_metric([], self._coordinator.unexpected_errors)
        yield errors


def _stragglers(run: RunContext) -> Iterable[Metric]:
    """What becomes of long samples: lengths by how they ended, and groups that moved. Since this start.

    What has not happened yet is 0, so that a rate sees its first time.
    """
    endings = dict.fromkeys(get_args(DispositionKind), 0)
    rows: tuple[tuple[str, str, str, Mapping[str, int]], ...] = (
        (
            "rollout_sample_tokens",
            "Tokens by how their sample ended.",
            "disposition",
            endings | run.state.tokens,
        ),
        (
            "rollout_samples_unfinished",
            "Samples that had not ended when their step did without them.",
            "disposition",
            endings | run.state.unfinished,
        ),
        (
            "rollout_groups_moved",
            "Groups that left an actor at work.",
            "why",
            dict.fromkeys(MOVES, 0) | run.recalls.told,
        ),
    )
    for name, text, label, values in rows:
        family = CounterMetricFamily(name, text, labels=[label])
        for key, value in values.items():
            family.add_metric([key], value)
        yield family
    again = CounterMetricFamily(
        "rollout_tokens_prefilled_again", "Tokens that another actor took in to go on behind them."
    )
    again.add_metric([], run.recalls.tokens_again)
    yield again


def _rows(rows: InferStatus | None) -> Iterable[Metric]:
    """How far a run without a learner is: rows to be answered, or prompts to be measured."""
    if rows is None:
        return
    left = rows.num_rows - rows.num_done - rows.num_failed
    states = {"answered": rows.num_done, "failed": rows.num_failed, "left": left}
    yield _by_label("rollout_rows", "Rows of a run that trains nothing, by state.", "state", states)
    tokens = CounterMetricFamily("rollout_row_tokens", "Tokens of rows that are answered.")
    tokens.add_metric([], rows.num_tokens)
    yield tokens
    left_seconds = rows.seconds_left
    yield from _as_gauges(
        (("rollout_rows_left_seconds", "Until the last row, by this start's pace.", left_seconds),)
    )


def _actors(run: RunContext) -> Iterable[Metric]:
    """For who scales the actors, be it us or an autoscaler of the cluster."""
    values: tuple[tuple[str, str, float | None], ...] = (
        (
            "rollout_actors_needed",
            "Actors at which neither side had waited in the last step.",
            run.waits.actors_needed,
        ),
        ("rollout_actors_wanted", "Actors that actors.autoscale asks for.", actors_wanted(run)),
    )
    yield from _as_gauges(values)


def _gauges(status: Status) -> Iterable[Metric]:
    values: tuple[tuple[str, str, float | None], ...] = (
        ("rollout_step_number", "Last committed step.", status.step),
        ("rollout_lineage_number", "Live lineage.", status.lineage),
        ("rollout_step_seconds", "Wall seconds of the last step.", status.seconds_per_step),
        ("rollout_reward_mean", "Mean reward of the last step.", status.reward),
        ("rollout_loss_value", "Loss of the last step.", status.loss),
        ("rollout_tokens_per_second", "Tokens per second.", status.tokens_per_second),
        ("rollout_ledger_position", "Acknowledged ledger writes.", status.position),
    )
    yield from _as_gauges(values)


def _as_gauges(values: Iterable[tuple[str, str, float | None]]) -> Iterable[Metric]:
    """Those that are known."""
    for name, text, value in values:
        if value is not None:
            yield GaugeMetricFamily(name, text, value=value)


def _by_label(
    name: str, text: str, label: str, values: dict[str, int] | dict[str, float]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
