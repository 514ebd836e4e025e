"""``rollout eval``: the manifest of a run that only evaluates from a few options, and then ``rollout run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollout.cli.output import OutputFormat, OutputOption
from rollout.cli.starting.running import DryRunOption, ResumeOption, SetOption, start


def evaluate(
    *,
    model: Annotated[
        str, typer.Option("--model", help="hf://owner/name, file:///folder, rollout://...")
    ],
    suites: Annotated[
        list[str],
        typer.Option("--suite", help="A suite that rollout ships, or several: gsm8k,arithmetic."),
    ],
    limit: Annotated[
        int | None, typer.Option("--limit", help="First so many prompts of each; default: all.")
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", help="Completions of each prompt; more than 1 gives pass@k.")
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Default: 0, greedy; 1 with several samples."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Longest completion; default: 512.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the run.")] = "eval",
    seed: Annotated[int, typer.Option("--seed", help="Root of all randomness.")] = 0,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="Where the run lives; default: runs/<name>-<n>."),
    ] = None,
    set_: SetOption = None,
    resume: ResumeOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Measure a model by suites, each prompt once; a run that was killed goes on with --resume."""
    from rollout.runs.manifest import Document
    from rollout.runs.validation import apply_overrides

    drawn = temperature if temperature is not None else float(samples > 1)
    asked: dict[str, Any] = {"samplesPerPrompt": samples, "temperature": drawn}
    if limit is not None:
        asked["maxPrompts"] = limit
    if max_tokens is not None:
        asked["maxNewTokens"] = max_tokens
    names = [one.strip() for given in suites for one in given.split(",")]
    evaluations = [{"suite": {"builtin": {"name": one}}, **asked} for one in names]
    manifest = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": model},
            "seed": seed,
            "evaluate": {},
            "evaluations": evaluations,
        },
    }
    document = Document(source="rollout eval", data=manifest, lines={})
    start(
        [apply_overrides(document, set_ or [])],
        resume=resume,
        run_dir=run_dir,
        dry_run=dry_run,
        output=output,
    )
