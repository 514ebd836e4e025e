"""``rollout train ALGORITHM``: the same as ``rollout run``, for a manifest that ends in that algorithm."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rollout.cli.output import OutputFormat, OutputOption
from rollout.cli.starting.detaching import DetachOption
from rollout.cli.starting.running import (
    DryRunOption,
    EndpointOption,
    InPlaceOption,
    RegionOption,
    SetOption,
    SnapshotsOption,
    TrustOption,
    load_overridden,
    start,
)

app = typer.Typer(help="Run one algorithm from its configuration.", no_args_is_help=True)

ALGORITHMS = {
    "sft": "Supervised fine-tuning.",
    "rm": "A Bradley-Terry reward model from pairs of answers.",
    "dpo": "Direct preference optimisation on pairs of answers.",
    "ipo": "Identity preference optimisation on pairs of answers.",
    "kto": "Kahneman-Tversky optimisation on answers that are good or bad.",
    "orpo": "Odds ratio preference optimisation on pairs of answers, without a reference.",
    "simpo": "Simple preference optimisation on pairs of answers, without a reference.",
    "ppo": "Proximal policy optimisation with a learned critic.",
    "grpo": "Group relative policy optimisation.",
    "distill": "On-policy distillation from a teacher.",
}
"""Members of the API's ``algorithm``, and what help says of each."""

ConfigOption = Annotated[
    str,
    typer.Option(
        "--config",
        "-c",
        help="A manifest (YAML or TOML) whose last run is of this algorithm; runs before it prepare it.",
    ),
]
ResumeFlag = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with the newest runs of this manifest, or with what follows: a snapshot's id, a run's folder.",
    ),
]
WhatArgument = Annotated[
    str | None,
    typer.Argument(help="After --resume: a snapshot's id, or a run's folder.", metavar="[ID]"),
]


def _register(algorithm: str, says: str) -> None:
    @app.command(algorithm, help=says)
    def train(
        config: ConfigOption,
        what: WhatArgument = None,
        *,
        set_: SetOption = None,
        resume: ResumeFlag = False,
        in_place: InPlaceOption = False,
        dry_run: DryRunOption = False,
        object_path: SnapshotsOption = None,
        endpoint: EndpointOption = None,
        region: RegionOption = None,
        trust: TrustOption = None,
        detach: DetachOption = False,
        output: OutputOption = OutputFormat.text,
    ) -> None:
        documents = load_overridden(config, set_ or [])
        _require(algorithm, documents)
        from rollout.errors import SpecError
        from rollout.runs.snapshots.places import WhereToLook

        if what is not None and not resume:
            raise SpecError(
                f"{what}: nothing is expected here; to begin with a snapshot: --resume {what}"
            )
        lies = WhereToLook(
            object_path=object_path, endpoint=endpoint, region=region, trust=tuple(trust or ())
        )
        start(
            documents,
            resume=(what or "Latest") if resume else None,
            run_dir=None,
            dry_run=dry_run,
            output=output,
            snapshots=lies,
            detach=detach,
            in_place=in_place,
        )


def _require(algorithm: str, documents: list[Any]) -> None:
    """Raise SpecError unless the last run of the file is of the algorithm."""
    from rollout.errors import SpecError

    runs = [one for one in documents if one.data.get("kind", "RolloutRun") == "RolloutRun"]
    spec = runs[-1].data.get("spec", {}) if runs else {}
    named = (spec.get("train") or {}).get("algorithm") or {}
    if algorithm not in named:
        source = documents[0].source if documents else "the file"
        raise SpecError(
            f"{source}: train {algorithm} needs spec.train.algorithm.{algorithm}, "
            f"found {', '.join(named) or 'none'}; use rollout run -f for any manifest"
        )


for _algorithm, _says in ALGORITHMS.items():
    _register(_algorithm, _says)
