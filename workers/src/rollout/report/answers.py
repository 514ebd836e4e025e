"""The answers of what was measured, prompt by prompt: from a run's ledger, or from the file of a measured server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.coordinator.rules.evaluation import name_task
from rollout.errors import LedgerError, SpecError
from rollout.evaluations.paired import Difference, MeasuredPrompt, compare_items
from rollout.evaluations.remote.items import ITEMS, read_items
from rollout.evaluations.statistics import CORRECT_MIN
from rollout.report.gather import open_ledger
from rollout.runs.run_dir import find_run, runs_home

READ_PROMPTS = 256


def find_measured(given: str) -> Path:
    """The folder of a run, or of a measured server. Raises SpecError when there is neither."""
    for path in (Path(given), runs_home(os.environ) / given):
        if (path / ITEMS).is_file():
            return path.absolute()
    return find_run(given)


Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """One answer: of which evaluation and prompt, what was said, and what it was given for it."""

    evaluation: str
    split: str
    place: int
    sample: int
    prompt: str
    wanted: str
    text: str
    reward: float
    rewards: Mapping[str, float]
    ending: str


def read_answers(folder: Path) -> Iterator[AnswerRow]:
    """Every answer of the first version, in order. Raises LedgerError where the folder measured nothing."""
    if (folder / ITEMS).is_file():
        yield from _of_items(folder)
        return
    with open_ledger(folder) as ledger:
        for view in ledger.evaluations():
            if (view.lineage, view.step) == (0, 0):
                yield from _of_ledger(ledger, view.name, view.split, view.num_prompts)


def _of_items(folder: Path) -> Iterator[AnswerRow]:
    for item in sorted(read_items(folder)[1], key=lambda one: (one.suite, one.split, one.place)):
        for sample, one in enumerate(item.answers):
            yield AnswerRow(
                evaluation=item.suite,
                split=item.split,
                place=item.place,
                sample=sample,
                prompt=item.prompt,
                wanted=item.wanted,
                text=one.text,
                reward=one.reward,
                rewards=one.rewards,
                ending=one.finish,
            )


def _of_ledger(ledger: Any, name: str, split: str, num_prompts: int) -> Iterator[AnswerRow]:
    for start in range(0, num_prompts, READ_PROMPTS):
        places = range(start, min(start + READ_PROMPTS, num_prompts))
        names = [name_task(name, split, 0, 0, place) for place in places]
        found = ledger.samples_of(names)
        for place, task_id in zip(places, names, strict=True):
            for view in found.get(task_id, ()):
                if (made := view.trajectory) is not None:
                    yield AnswerRow(
                        evaluation=name,
                        split=split,
                        place=place,
                        sample=view.sample,
                        prompt=made.prompt_text,
                        wanted=made.answer,
                        text=made.text,
                        reward=made.reward,
                        rewards=made.rewards,
                        ending=made.ending,
                    )


def compare_measured(ours: Path, baseline: Path) -> list[dict[str, Any]]:
    """Each metric of the evaluations that both have, ours less the baseline's. Raises SpecError where they asked differently."""
    mine, theirs = (_items(folder) for folder in (ours, baseline))
    shared = [key for key in mine if key in theirs]
    if not shared:
        raise SpecError(
            f"{baseline.name} has none of the evaluations of {ours.name}: {', '.join(name for name, _ in mine)}"
        )
    return [
        {"evaluation": key[0], "split": key[1], **_plain(found)}
        for key in shared
        for metric in _metrics(mine[key])
        if (found := _compare(key, mine[key], theirs[key], metric)) is not None
    ]


def _items(folder: Path) -> dict[Key, dict[int, MeasuredPrompt]]:
    found: dict[Key, dict[int, list[AnswerRow]]] = {}
    for one in read_answers(folder):
        found.setdefault((one.evaluation, one.split), {}).setdefault(one.place, []).append(one)
    if not found:
        raise LedgerError(f"{folder} has no answers of an evaluation that is kept")
    return {
        key: {place: _item(rows) for place, rows in by_place.items()}
        for key, by_place in found.items()
    }


def _item(rows: Sequence[AnswerRow]) -> MeasuredPrompt:
    values: dict[str, list[float]] = {
        "accuracy": [float(one.reward >= CORRECT_MIN) for one in rows],
        "reward": [one.reward for one in rows],
    }
    for one in rows:
        for name, value in one.rewards.items():
            if "/" in name:
                values.setdefault(name, []).append(value)
    return MeasuredPrompt(prompt=rows[0].prompt, values=values)


def _metrics(items: Mapping[int, MeasuredPrompt]) -> list[str]:
    return list(dict.fromkeys(name for item in items.values() for name in item.values))


def _compare(
    key: Key, mine: Mapping[int, MeasuredPrompt], theirs: Mapping[int, MeasuredPrompt], metric: str
) -> Difference | None:
    try:
        return compare_items(mine, theirs, metric)
    except ValueError as error:
        raise SpecError(
            f"evaluation {key[0]}: {error}; measure both with the same suite and limit"
        ) from error


def _plain(found: Difference) -> dict[str, Any]:
    names = ("metric", "num_prompts", "ours", "baseline", "value", "low", "high", "told_apart")
    return {name: getattr(found, name) for name in names}
