"""``rollout infer``: ``batch``, the manifest of an inference run from a few options and then ``rollout run``; and ``serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rollout.cli.output import OutputFormat, OutputOption
from rollout.cli.starting import serving
from rollout.cli.starting.running import DryRunOption, ResumeOption, SetOption, start
from rollout.cli.starting.sampling import EngineOption, FastOption, sampling_spec
from rollout.errors import SpecError

app = typer.Typer(help="Answer prompts with a model.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Answer prompts with a model."""


app.command("serve")(serving.serve)
app.add_typer(serving.keys, name="keys")


@app.command("batch")
def batch(
    *,
    model: Annotated[
        str, typer.Option("--model", help="hf://owner/name, file:///folder, rollout://...")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--input", "-i", help="JSON lines or Parquet: prompts, messages, or an OpenAI batch."
        ),
    ],
    results: Annotated[
        str | None,
        typer.Option("--results", help="Folder or s3://bucket/prefix; default: the run's own."),
    ] = None,
    results_format: Annotated[
        Literal["Jsonl", "Parquet"],
        typer.Option("--results-format", case_sensitive=False, help="Form of --results."),
    ] = "Jsonl",
    name: Annotated[str, typer.Option("--name", help="Name of the run.")] = "batch",
    samples: Annotated[int, typer.Option("--samples", help="Completions of each row.")] = 1,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Longest completion; default: 512.")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Root of all randomness.")] = 0,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Write tokens and logprobs too.")
    ] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="Where the run lives; default: runs/<name>-<n>."),
    ] = None,
    engine: EngineOption = None,
    fast: FastOption = False,
    set_: SetOption = None,
    resume: ResumeOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Answer every row of a file once, in order; a run that was killed goes on with --resume."""
    from rollout.runs.manifest import Document
    from rollout.runs.validation import apply_overrides

    sampling: dict[str, Any] = {"temperature": temperature}
    if max_tokens is not None:
        sampling["maxNewTokens"] = max_tokens
    infer: dict[str, Any] = {
        "data": {"jsonl": {"uri": data}},
        "samplesPerPrompt": samples,
        "logprobs": logprobs,
        "sampling": sampling,
    }
    if results is not None:
        infer["output"] = {"uri": results, "format": results_format}
    elif results_format != "Jsonl":
        raise SpecError("--results-format: says how --results are written: name a folder there")
    manifest = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": model},
            "seed": seed,
            "infer": infer,
            **sampling_spec(engine, fast=fast),
        },
    }
    document = Document(source="rollout infer batch", data=manifest, lines={})
    start(
        [apply_overrides(document, set_ or [])],
        resume=resume,
        run_dir=run_dir,
        dry_run=dry_run,
        output=output,
    )
