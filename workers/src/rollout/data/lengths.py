"""Prompts that are longer than ``train.maxPromptTokens``: bad records, found before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable

from rollout.data.hugging_face import StreamSource
from rollout.data.mapping import row_messages
from rollout.data.records import BadRecords, OnBadRecord
from rollout.data.subset import SubsetSource, read_all
from rollout.seams import DataSource, Renderer
from rollout.types import Row
from rollout_api.v1alpha1.train import Train


def limit_training(
    source: DataSource, train: Train, load_renderer: Callable[[], Renderer]
) -> DataSource:
    """The training rows whose prompt is no longer than ``train.maxPromptTokens``, by ``onBadRecord``.

    Rows that nobody looks at beforehand are not: those of streams, and those of a user's environment, which
    alone knows what it asks. Raises DataError.
    """
    tokens_max = train.max_prompt_tokens
    own = train.environment is not None and train.environment.python is not None
    if tokens_max is None or own or isinstance(source, StreamSource):
        return source
    renderer = load_renderer()
    on_bad = "Fail" if train.data is None else train.data.on_bad_record
    kept, _ = limit_prompts(
        source,
        lambda row: len(renderer.render_prompt(row_messages(row))),
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

    Reads the whole source once. Raises DataError naming the rows when they may not be skipped, or when
    none is left.
    """
    kept, bad = [], BadRecords()
    for position, row in enumerate(read_all(source)):
        tokens = count_tokens(row)
        if tokens <= tokens_max:
            kept.append(position)
        else:
            prompt = str(row.get("prompt", ""))[:60]
            bad.add(
                f"row {position}",
                f"the prompt {prompt!r} has {tokens} tokens, at most {tokens_max}",
            )
    bad.settle(f"prompts of at most {tokens_max} tokens", len(kept), on_bad)
    if not bad.num_records:
        return source, bad
    return SubsetSource(source, kept, f"prompts<={tokens_max}", bad), bad
