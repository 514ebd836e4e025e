"""``rollout place-plugin``: what an init container runs, so that a stock vLLM image can serve a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def place_plugin(
    folder: Annotated[
        Path, typer.Argument(help="A folder that the engine will have on its PYTHONPATH.")
    ],
) -> None:
    """Put rollout's vLLM plugin into a folder; pure Python, for any image of a supported vLLM."""
    from rollout.engines.vllm.plugin import place_plugin as place

    place(folder)
    typer.echo(f"placed rollout_vllm in {folder}: run the engine with PYTHONPATH={folder}")
