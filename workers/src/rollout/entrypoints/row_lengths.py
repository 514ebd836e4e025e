"""Rows of an inference run before it begins: how long each is as its model will be shown it, and whether the model is for it."""

from __future__ import annotations

from pathlib import Path

from rollout.data.batch import BatchSource
from rollout.data.rows.mapping import row_messages
from rollout.data.rows.requests import goes_on, shows_answer
from rollout.environments.prompts import ROWS_AT_ONCE
from rollout.errors import DataError, SpecError
from rollout.models.pooled import Task, choose_task, read_pooled
from rollout.rendering.declared import read_declared
from rollout.rendering.pairs import pair_template
from rollout.seams import Renderer
from rollout.types import Row
from rollout_api.v1alpha1.inference.infer import Infer


def measure_rows(
    source: BatchSource, infer: Infer, renderer: Renderer, context: int
) -> tuple[tuple[int, ...], int]:
    """Positions of the rows that do not fit ``context`` with what they ask for, and the longest of the others, in tokens."""
    left_out: list[int] = []
    longest = 1
    for start in range(0, len(source), ROWS_AT_ONCE):
        positions = range(start, min(start + ROWS_AT_ONCE, len(source)))
        for position, row in zip(positions, source.rows(positions), strict=True):
            length = _length(row, renderer)
            if not length or length > context - _asked_tokens(row, infer):
                left_out.append(position)
            else:
                longest = max(longest, length)
    return tuple(left_out), longest


def _length(row: Row, renderer: Renderer) -> int | None:
    """Tokens of a row's prompt; None where template or tokenizer refuse it, 0 where it has none: no engine takes it."""
    try:
        if shows_answer(row):
            return len(renderer.render_training(row_messages(row))[0])
        if goes_on(row):
            return len(renderer.render_text(row["prompt"]))
        return len(renderer.render_prompt(row_messages(row)))
    except DataError:
        return None
    except SpecError:
        if not shows_answer(row):
            raise
        return None


def _asked_tokens(row: Row, infer: Infer) -> int:
    sampling = row.get("sampling") or {}
    return sampling.get("max_new_tokens", infer.sampling.new_tokens_max)


def check_pooled(folder: Path, task: Task) -> None:
    """Raise SpecError for a model that cannot embed or score, and for scores of another form than a reward model's."""
    if choose_task(folder, task) != "score":
        return
    labels = read_pooled(folder, "score").labels
    if len(labels) != 1:
        raise SpecError(
            f"spec.infer.task: Score: {folder} has {len(labels)} labels and no one score; serve it, and ask /classify"
        )
    if pair_template(read_declared(folder).chat_template) is not None:
        raise SpecError(
            f"spec.infer.task: Score: the chat template of {folder} renders a query and a document, and a run scores"
            " conversations; serve it (rollout infer serve), and send the batch there"
        )
