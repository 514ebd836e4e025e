"""What is to be known of a model at a glance, as one document."""

from __future__ import annotations

from collections import deque
from typing import Any

from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.calls import ALPHA, RefusedAnswer, SampleAnswer
from rollout.service.reading.decoding import kind_of
from rollout.service.reading.finding import OpenedModel, base_uri
from rollout.service.reading.samples import read_samples
from rollout.service.reading.steps import LineFold, StepFold, TakenStep, read_calls
from rollout.service.registry import ServiceModel

STEPS_SHOWN = 10
"""Of the first and of the last steps."""
TOKEN_BYTES = 4


def summarise_model(opened: OpenedModel) -> dict[str, Any]:
    """Calls, steps, losses, samples, chain and what the model is. Raises LedgerError."""
    book, model = opened.book, opened.model
    line, steps = LineFold(chain=model.chain), StepFold()
    first: list[TakenStep] = []
    last: deque[TakenStep] = deque(maxlen=STEPS_SHOWN)
    tokens = 0
    for one in read_calls(book, model.id):
        line.take(one)
        step = steps.take(one)
        if step is not None:
            (first if len(first) < STEPS_SHOWN else last).append(step)
            tokens += step.num_tokens
    return {
        **_about(book, model),
        "service": str(opened.folder),
        "state": line.state(),
        "broken": line.damage or None,
        "answered": line.answered,
        "waiting": line.waiting,
        "missing": line.missing,
        "refused": line.refused,
        "calls": dict(sorted(line.kinds.items())),
        "steps": steps.steps,
        "tokens": tokens,
        "losses": [_loss(step) for step in (*first, *last)],
        "samples": count_samples(book, model),
        "chain": line.chain,
    }


def count_samples(book: CallBookReader, model: ServiceModel) -> dict[str, int]:
    """Sampling calls, and the completions and tokens that were drawn. Raises LedgerError."""
    found = dict.fromkeys(("calls", "waiting", "refused", "completions", "tokens"), 0)
    for _, sample in read_samples(book, model):
        found["calls"] += 1
        found["waiting"] += sample.answer is None
        found["refused"] += isinstance(sample.answer, RefusedAnswer)
        if isinstance(sample.answer, SampleAnswer):
            found["completions"] += len(sample.answer.sequences)
            found["tokens"] += sum(len(s.tokens) // TOKEN_BYTES for s in sample.answer.sequences)
    return found


def list_rows(book: CallBookReader, models: list[ServiceModel]) -> list[dict[str, Any]]:
    """A row for each model; only how calls begin is looked at. Raises LedgerError."""
    return [_list_row(book, model) for model in models]


def _list_row(book: CallBookReader, model: ServiceModel) -> dict[str, Any]:
    calls = answered = steps = 0
    for head in book.heads(model.id):
        calls += 1
        answered += head.answer is not None
        steps += kind_of(head.call) == "optim_step" and kind_of(head.answer or b"") == "step"
    return {
        "run": model.id,
        "algorithm": "service",
        "outcome": f"{answered} of {calls} calls answered",
        "step": steps,
        "reward": None,
        "model": model.base,
    }


def _about(book: CallBookReader, model: ServiceModel) -> dict[str, Any]:
    adapter, start = model.adapter, model.start
    return {
        "model": model.id,
        "owner": model.owner,
        "base": model.base,
        "base_uri": base_uri(book, model),
        "base_digest": model.base_digest,
        "adapter": None
        if adapter is None
        else {
            "rank": adapter.rank,
            "alpha": ALPHA,
            "targets": list(adapter.targets),
            "seed": adapter.seed,
        },
        "begins_from": None
        if start is None
        else {"path": start.path, "state": start.state, "optimizer": start.optimizer},
        "computed_on": book.identity(),
    }


def _loss(step: TakenStep) -> dict[str, Any]:
    return {
        "step": step.step,
        "call": step.seq,
        "loss": step.loss,
        "tokens": step.num_tokens,
        "learning_rate": step.asked.learning_rate,
    }
