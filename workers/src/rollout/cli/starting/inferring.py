"""``rollout infer``: ``batch``, the manifest of an inference run from a few options and then ``rollout run``; ``serve``, and what comes of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from rollout.cli.output import OutputFormat, OutputOption
from rollout.cli.starting import keys, logged, serving
from rollout.cli.starting.detaching import DetachOption
from rollout.cli.starting.running import (
    DryRunOption,
    ResumeOption,
    RunDirOption,
    SetOption,
    build_document,
    start,
)
from rollout.cli.starting.sampling import (
    EngineOption,
    FastOption,
    MaxTokensOption,
    NameOption,
    SeedOption,
    sampling_spec,
)
from rollout.errors import SpecError

app = typer.Typer(help="Answer prompts with a model.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Answer prompts with a model."""


app.command("serve")(serving.serve)
app.command("requests")(logged.requests)
app.add_typer(keys.keys, name="keys")


ModelOption = Annotated[
    str, typer.Option("--model", help="hf://owner/name, file:///folder, rollout://...")
]
DataOption = Annotated[
    str,
    typer.Option(
        "--input", "-i", help="JSON lines or Parquet: prompts, messages, or an OpenAI batch."
    ),
]
ResultsOption = Annotated[
    str | None,
    typer.Option("--results", help="Folder or s3://bucket/prefix; default: the run's own."),
]
ResultsFormatOption = Annotated[
    Literal["Jsonl", "Parquet"],
    typer.Option("--results-format", case_sensitive=False, help="Form of --results."),
]
TaskOption = Annotated[
    Literal["Generate", "Embed", "Score"],
    typer.Option(
        "--task", case_sensitive=False, help="Completions, vectors, or scores of a reward model."
    ),
]
SamplesOption = Annotated[int, typer.Option("--samples", help="Completions of each row.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
LogprobsOption = Annotated[bool, typer.Option("--logprobs", help="Write tokens and logprobs too.")]


@app.command("batch")
def batch(
    *,
    model: ModelOption,
    data: DataOption,
    task: TaskOption = "Generate",
    results: ResultsOption = None,
    results_format: ResultsFormatOption = "Jsonl",
    name: NameOption = "batch",
    samples: SamplesOption = 1,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = 1.0,
    seed: SeedOption = 0,
    logprobs: LogprobsOption = False,
    run_dir: RunDirOption = None,
    engine: EngineOption = None,
    fast: FastOption = False,
    set_: SetOption = None,
    resume: ResumeOption = None,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Answer every row of a file once, in order; a run that was killed goes on with --resume."""
    sampling: dict[str, Any] = {"temperature": temperature}
    if max_tokens is not None:
        sampling["maxNewTokens"] = max_tokens
    infer: dict[str, Any] = {
        "data": {"jsonl": {"uri": data}},
        "samplesPerPrompt": samples,
        "logprobs": logprobs,
        "sampling": sampling,
    }
    if task != "Generate":
        # Nothing is sampled: what was not asked for is left out, and what was is refused by name.
        asked = {"temperature": temperature != 1.0, "maxNewTokens": max_tokens is not None}
        infer |= {"task": task, "sampling": {one: sampling[one] for one in asked if asked[one]}}
    if results is not None:
        infer["output"] = {"uri": results, "format": results_format}
    elif results_format != "Jsonl":
        raise SpecError("--results-format: says how --results are written: name a folder there")
    spec = {
        "model": {"uri": model},
        "seed": seed,
        "infer": infer,
        **sampling_spec(engine, fast=fast),
    }
    start(
        [build_document("rollout infer batch", name, spec, set_)],
        resume=resume,
        run_dir=run_dir,
        dry_run=dry_run,
        output=output,
        detach=detach,
    )
