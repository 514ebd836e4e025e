"""Prompts that are longer than ``train.maxPromptTokens``: bad records, found before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blake3 import blake3

from rollout.data.hugging_face import StreamSource
from rollout.data.records import BadRecords, OnBadRecord
from rollout.data.rows.mapping import row_messages
from rollout.data.subset import SubsetSource, read_all
from rollout.errors import DataError
from rollout.seams import DataSource, Renderer
from rollout.turns import ToolSpec
from rollout.types import Row
from rollout_api.v1alpha1.training.train import Train

LEFT_OUT_MAX = 10_000
"""Rows that a run may leave out for their length: their positions are written down with it."""


def limit_training(
    source: DataSource, train: Train, renderer: Renderer, tools: Sequence[ToolSpec] = ()
) -> DataSource:
    """The training rows whose prompt, with ``tools``, is no longer than ``train.maxPromptTokens``, by ``onBadRecord``.

    Rows that nobody looks at beforehand are not: those of streams, and those of a user's environment, which
    alone knows what it asks. Raises DataError.
    """
    tokens_max = train.max_prompt_tokens
    own = train.environment is not None and train.environment.python is not None
    if tokens_max is None or own or isinstance(source, StreamSource):
        return source
    on_bad = "Fail" if train.data is None else train.data.on_bad_record
    kept, _ = limit_prompts(
        source,
        lambda row: len(renderer.render_prompt(row_messages(row), tools)),
        tokens_max,
        on_bad=on_bad,
    )
    return kept


def limit_prompts(
    source: DataSource,
    count_tokens: Callable[[Row], int],
    tokens_max: int,
    *,
    on_bad: OnBadRecord = "Fail",
) -> tuple[DataSource, BadRecords]:
    """The rows whose prompt has at most ``tokens_max`` tokens, and what was left out.

    Reads the whole source once. Raises DataError naming the rows when they may not be skipped, when none is
    left, and when more than ``LEFT_OUT_MAX`` would have to be remembered.
    """
    long, bad = [], BadRecords()
    for position, row in enumerate(read_all(source)):
        tokens = count_tokens(row)
        if tokens > tokens_max:
            long.append(position)
            prompt = str(row.get("prompt", ""))[:60]
            bad.add(
                f"row {position}",
                f"the prompt {prompt!r} has {tokens} tokens, at most {tokens_max}",
            )
    bad.settle(f"prompts of at most {tokens_max} tokens", len(source) - len(long), on_bad)
    if len(long) > LEFT_OUT_MAX:
        raise DataError(
            f"{len(long)} prompts have more than {tokens_max} tokens, more than the {LEFT_OUT_MAX} that a"
            " run leaves out; filter the data beforehand, or raise train.maxPromptTokens"
        )
    return (leave_out(source, long, bad), bad) if long else (source, bad)


def leave_out(
    source: DataSource, positions: Sequence[int], bad: BadRecords | None = None
) -> DataSource:
    """The source without the rows at ``positions``, all of which were found too long; itself without any."""
    if not positions:
        return source
    gone = frozenset(positions)
    kept = [position for position in range(len(source)) if position not in gone]
    named = blake3(",".join(map(str, sorted(gone))).encode()).hexdigest()[:16]
    return SubsetSource(source, kept, f"without-{named}", bad)


def left_out_of(source: DataSource, whole: int) -> tuple[int, ...]:
    """Which of the ``whole`` rows of a source its limited form lacks."""
    if not isinstance(source, SubsetSource) or len(source) == whole:
        return ()
    return tuple(sorted(frozenset(range(whole)) - frozenset(source.positions)))
