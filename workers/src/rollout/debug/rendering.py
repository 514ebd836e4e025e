"""One trajectory as its model read and wrote it: ids, masks, logprobs and text, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollout.debug.recording import open_recording
from rollout.errors import SpecError
from rollout.rendering import build_renderer
from rollout.types import Branch, Trajectory


def render_sample(run_dir: Path, step: int, place: int) -> dict[str, Any]:
    """The ``place``-th trajectory that ``step`` consumed. Raises SpecError, LedgerError.

    ``tokens`` are of the prompt, the policy (``mask`` 1, with its logprob in nats and the step of the version
    that sampled it) and the environment; ``text`` is each token decoded by itself, special ones as they are named.
    Of a trajectory of several rows, ``row`` counts from 0: what a row shares with an earlier one is its prompt.
    """
    with open_recording(run_dir) as recording:
        recording.record(step)
        views = list(recording.ledger.samples(step, sort="place"))
        if not 0 <= place < len(views):
            raise SpecError(
                f"place {place}: step {step} consumed {len(views)} trajectories, from 0 on"
            )
        trajectory = views[place].trajectory
        if trajectory is None:
            raise SpecError(
                f"step {step}: the ledger has let go of its tokens (storage.ledger.retention)"
            )
        config = recording.config
    renderer = build_renderer(Path(config.resolved.model_path), config.spec.model.chat_template)
    backend = renderer.tokenizer.tokenizer
    tokens = [
        {**line, "text": backend.decode([line["id"]], skip_special_tokens=False)}
        for line in _lines(trajectory)
    ]
    return {
        "step": step,
        "place": place,
        "ordinal": trajectory.ordinal,
        "sample": trajectory.sample,
        "reward": trajectory.reward,
        "ending": trajectory.ending,
        "retokenised": trajectory.retokenised,
        "tokens": tokens,
    }


def _lines(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    rows = trajectory.rows
    for number, row in enumerate(rows):
        where = {"row": number} if len(rows) > 1 else {}
        for line in _lines_of(row):
            yield {**where, **line}


def _lines_of(row: Trajectory | Branch) -> Iterator[dict[str, Any]]:
    for token in row.prompt_ids:
        yield {"id": token, "from": "prompt", "mask": 0, "logprob": None, "version": None}
    columns = (row.token_ids, row.loss_mask, row.actor_logprobs, _versions(row))
    for token, mask, logprob, version in zip(*columns, strict=True):
        yield {
            "id": token,
            "from": "policy" if mask else "environment",
            "mask": mask,
            "logprob": logprob if mask else None,
            "version": version if mask else None,
        }


def _versions(row: Trajectory | Branch) -> Sequence[int | None]:
    found: list[int | None] = [None] * len(row.token_ids)
    for span in row.spans:
        found[span.start : span.end] = [span.step] * (span.end - span.start)
    return found
