"""What the commands that only sample say of the engine: its name, and whether equal runs are promised."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rollout_api.v1alpha1.roles import EngineName

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


def sampling_spec(engine: str | None, *, fast: bool) -> dict[str, Any]:
    """These options as fields of a manifest's spec."""
    chosen: dict[str, Any] = {} if engine is None else {"actors": {"engine": {engine: {}}}}
    return {**chosen, **({"numerics": {"mode": "Fast"}} if fast else {})}
