"""Our side of a duel: ``job.json`` of a duel, or ``worker.json`` of a run whose steps are taken again."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs import read_job
from one_process import OneProcess, move_config, plan_config
from turns import Turns

from rollout.common.parent_death import collect_from_here
from rollout.data.rows.mapping import row_messages, training_messages
from rollout.rendering import build_renderer
from rollout_api.worker import WorkerConfig


async def main(config: WorkerConfig, turns: Turns) -> None:
    """Take a step each turn, until told to end."""
    run = OneProcess(config)
    turns.stop(weights=run.progress.version.digest, first_tokens=_first_tokens(config, run))
    while True:
        turns.start()
        metrics = await run.step()
        turns.stop(**_facts(metrics), chain=run.progress.chain, phases=run.phases, after=run.tidy)


def _config(path: str, scratch: Path) -> WorkerConfig:
    if Path(path).name == "worker.json":
        return move_config(WorkerConfig.model_validate_json(Path(path).read_bytes()), scratch)
    return plan_config(read_job(path)[1], scratch)


def _facts(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "samples": metrics["num_sequences"],
        "tokens": metrics["num_tokens"],
        "loss": metrics["loss"],
        "num_metrics": len(metrics),
    }


def _first_tokens(config: WorkerConfig, run: OneProcess) -> list[int]:
    """The first row of the file, tokenised as for training; of a pair the chosen answer."""
    row = run.rows.source.rows([0])[0]
    renderer = build_renderer(Path(config.resolved.model_path), config.spec.model.chat_template)
    if run.sampling is not None:
        return list(renderer.render_prompt(row_messages(row)))
    answered = row if "answer" in row else {**row, "answer": row["chosen"]}
    return list(renderer.render_training(training_messages(answered))[0])


if __name__ == "__main__":
    collect_from_here()  # as every worker does once it has imported
    with tempfile.TemporaryDirectory(prefix="rollout-bench-ours-") as name:
        turns = Turns()
        config = _config(sys.argv[1], Path(name))  # it opens episodes of its own
        asyncio.run(main(config, turns))
