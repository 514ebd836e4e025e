"""``rollout eval``: the manifest of a run that only evaluates from a few options, and then ``rollout run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollout.cli.output import OutputFormat, OutputOption
from rollout.cli.runs import find
from rollout.cli.starting.measuring import Server, conclude, measure_server
from rollout.cli.starting.running import DryRunOption, ResumeOption, SetOption, launch, print_result
from rollout.cli.starting.sampling import EngineOption, FastOption, sampling_spec
from rollout.errors import SpecError


def evaluate(
    *,
    suites: Annotated[
        list[str],
        typer.Option("--suite", help="A suite that rollout ships, or several: gsm8k,arithmetic."),
    ],
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", help="Of a suite: gsm8k-5shot.uri=test.jsonl; repeatable."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="hf://owner/name, file:///folder, rollout://...")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", help="Instead: the weights of a run, by its name or folder."),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", help="Not supported by this version: refused."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help="Instead: an OpenAI-compatible server, up to /v1; --model names it there."
        ),
    ] = None,
    key_env: Annotated[
        str, typer.Option("--key-env", help="Of --url: the variable that holds its key.")
    ] = "OPENAI_API_KEY",
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=256, help="Of --url: calls at a time.")
    ] = 8,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", help="Compare prompt by prompt with an earlier run of the same suites."
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="Of --run: after this step; default: the newest."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Of --run: those that the selecting evaluation chose.")
    ] = False,
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
    engine: EngineOption = None,
    fast: FastOption = False,
    set_: SetOption = None,
    resume: ResumeOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Measure a model by suites, each prompt once; a run that was killed goes on with --resume."""
    from rollout.runs.manifest import Document
    from rollout.runs.validation import apply_overrides

    if snapshot is not None:
        raise SpecError(
            "--snapshot is not supported by this version: measure a run's weights with --run and --step"
        )
    against = None if baseline is None else _find_baseline(baseline)
    drawn = temperature if temperature is not None else float(samples > 1)
    asked: dict[str, Any] = {"samplesPerPrompt": samples, "temperature": drawn}
    if limit is not None:
        asked["maxPrompts"] = limit
    if max_tokens is not None:
        asked["maxNewTokens"] = max_tokens
    evaluations = [{"suite": one, **asked} for one in _suites(suites, parameters or [])]
    if url is not None:
        if model is None or run is not None or best or step is not None or set_ or dry_run:
            raise SpecError(
                "--url takes --model, the model's name there, and none of --run, --step, --best, --set, --dry-run"
            )
        server = Server(url=url, model=model, key_env=key_env)
        tokens = {} if max_tokens is None else {"max_tokens": max_tokens}
        wish = {"samples": samples, "temperature": drawn, "seed": seed, **tokens}
        folder, outcome = measure_server(
            server,
            evaluations,
            {**wish, "concurrency": concurrency},
            name=name,
            run_dir=run_dir,
            resume=resume,
            output=output,
        )
        conclude(folder, outcome, against, output)
    manifest = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": _model_uri(model, run, step=step, best=best)},
            "seed": seed,
            "evaluate": {},
            "evaluations": evaluations,
            **sampling_spec(engine, fast=fast),
        },
    }
    document = Document(source="rollout eval", data=manifest, lines={})
    result = launch(
        [apply_overrides(document, set_ or [])],
        resume=resume,
        run_dir=run_dir,
        dry_run=dry_run,
        output=output,
    )
    if result is None:
        return
    if output is OutputFormat.text:
        print_result(result)
    conclude(result.run_dir, result.summary, against, output)


def _find_baseline(baseline: str) -> Path:
    from rollout.report.answers import find_measured

    if "://" in baseline:
        raise SpecError(
            f"--baseline {baseline}: name a run that has measured it; measure it first with --model {baseline}"
        )
    return find_measured(baseline)


def _suites(suites: list[str], parameters: list[str]) -> list[dict[str, Any]]:
    """The suites that were named, each with its parameters. Raises SpecError."""
    names = [one.strip() for given in suites for one in given.split(",")]
    given: dict[str, list[dict[str, str]]] = {name: [] for name in names}
    for one in parameters:
        where, equals, value = one.partition("=")
        suite, dot, parameter = where.partition(".")
        if not equals or not dot:
            raise SpecError(f"--parameter {one}: expected SUITE.NAME=VALUE")
        if suite not in given:
            raise SpecError(f"--parameter {one}: {suite!r} is not among --suite {','.join(names)}")
        given[suite].append({"name": parameter, "value": value})
    return [{"builtin": {"name": name, "parameters": given[name]}} for name in names]


def _model_uri(model: str | None, run: str | None, *, step: int | None, best: bool) -> str:
    if (model is None) == (run is None):
        raise SpecError("give --model or --run, and not both: one model is measured")
    if run is not None:
        return _export(find(run), step, best=best).as_uri()
    if best or step is not None:
        raise SpecError("--step and --best choose weights of a run: give --run")
    assert model is not None
    return model


def _export(run: Path, step: int | None, *, best: bool) -> Path:
    """The weights as a folder beside the run's others, written once; those of an adapter merged into its base."""
    from rollout.runs.export.choose import Wanted, choose, open_objects, read_run
    from rollout.runs.export.export import Export, export_model

    if best and step is not None:
        raise SpecError("--best and --step name two versions: give one of them")
    config = read_run(run)
    version = choose(config, run, open_objects(config, run), Wanted(step=step, best=best)).version
    folder = run.absolute() / "exports" / f"{version.lineage}-{version.step}"
    merged = config.spec.model.lora is not None
    export_model(run, folder, Export(wanted=Wanted(step=version.step), merge=merged))
    return folder
