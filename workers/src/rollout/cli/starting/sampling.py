"""What the commands that only sample have in common: their run's name and seed, and what is said of the engine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rollout_api.v1alpha1.pods.roles import EngineName

EngineOption = Annotated[
    EngineName | None, typer.Option("--engine", help="What generates; default: embedded.")
]
FastOption = Annotated[
    bool,
    typer.Option(
        "--fast",
        help="numerics.mode: Fast: vLLM decodes many rows together; a rerun may draw other tokens.",
    ),
]
NameOption = Annotated[str, typer.Option("--name", help="Name of the run.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Root of all randomness.")]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-tokens", help="Longest completion; default: 512.")
]


def sampling_spec(engine: str | None, *, fast: bool) -> dict[str, Any]:
    """These options as fields of a manifest's spec."""
    chosen: dict[str, Any] = {} if engine is None else {"actors": {"engine": {engine: {}}}}
    return {**chosen, **({"numerics": {"mode": "Fast"}} if fast else {})}
