"""``rollout eval``: the manifest of a run that only evaluates from a few options, and then ``rollout run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollout.cli.outcomes import print_result
from rollout.cli.output import OutputFormat, OutputOption
from rollout.cli.runs import find
from rollout.cli.starting.detaching import DetachOption
from rollout.cli.starting.measuring import Server, conclude, measure_server
from rollout.cli.starting.running import (
    DryRunOption,
    ResumeOption,
    RunDirOption,
    SetOption,
    build_document,
    launch,
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

SuitesOption = Annotated[
    list[str],
    typer.Option("--suite", help="A suite that rollout ships, or several: gsm8k,arithmetic."),
]
ParametersOption = Annotated[
    list[str] | None,
    typer.Option("--parameter", help="Of a suite: gsm8k-5shot.uri=test.jsonl; repeatable."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="hf://owner/name, file:///folder, rollout://...")
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", help="Instead: the weights of a run, by its name or folder."),
]
SnapshotOption = Annotated[
    str | None,
    typer.Option("--snapshot", help="Not supported by this version: refused."),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", help="Instead: an OpenAI-compatible server, up to /v1; --model names it there."
    ),
]
KeyEnvOption = Annotated[
    str, typer.Option("--key-env", help="Of --url: the variable that holds its key.")
]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", min=1, max=256, help="Of --url: calls at a time.")
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline", help="Compare prompt by prompt with an earlier run of the same suites."
    ),
]
StepOption = Annotated[
    int | None,
    typer.Option("--step", min=0, help="Of --run: after this step; default: the newest."),
]
BestOption = Annotated[
    bool, typer.Option("--best", help="Of --run: those that the selecting evaluation chose.")
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", help="First so many prompts of each; default: all.")
]
SamplesOption = Annotated[
    int, typer.Option("--samples", help="Completions of each prompt; more than 1 gives pass@k.")
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", help="Default: 0, greedy; 1 with several samples."),
]


def evaluate(
    *,
    suites: SuitesOption,
    parameters: ParametersOption = None,
    model: ModelOption = None,
    run: RunOption = None,
    snapshot: SnapshotOption = None,
    url: UrlOption = None,
    key_env: KeyEnvOption = "OPENAI_API_KEY",
    concurrency: ConcurrencyOption = 8,
    baseline: BaselineOption = None,
    step: StepOption = None,
    best: BestOption = False,
    limit: LimitOption = None,
    samples: SamplesOption = 1,
    temperature: TemperatureOption = None,
    max_tokens: MaxTokensOption = None,
    name: NameOption = "eval",
    seed: SeedOption = 0,
    run_dir: RunDirOption = None,
    engine: EngineOption = None,
    fast: FastOption = False,
    set_: SetOption = None,
    resume: ResumeOption = None,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Measure a model by suites, each prompt once; a run that was killed goes on with --resume."""
    if snapshot is not None:
        raise SpecError(
            "--snapshot is not supported by this version: measure a run's weights with --run and --step"
        )
    against = None if baseline is None else _find_baseline(baseline)
    drawn = temperature if temperature is not None else float(samples > 1)
    asked = {"samplesPerPrompt": samples, "temperature": drawn}
    asked |= _drop_unsaid({"maxPrompts": limit, "maxNewTokens": max_tokens})
    evaluations = [{"suite": one, **asked} for one in _suites(suites, parameters or [])]
    if url is not None:
        is_local = any((run is not None, best, step is not None, set_, dry_run, detach))
        server = _server(url, model, key_env, is_local=is_local)
        wish = {"samples": samples, "temperature": drawn, "seed": seed, "max_tokens": max_tokens}
        wish = {**_drop_unsaid(wish), "concurrency": concurrency}
        folder, outcome = measure_server(
            server, evaluations, wish, name=name, run_dir=run_dir, resume=resume, output=output
        )
        conclude(folder, outcome, against, output)
    spec = {
        "model": {"uri": _model_uri(model, run, step=step, best=best)},
        "seed": seed,
        "evaluate": {},
        "evaluations": evaluations,
        **sampling_spec(engine, fast=fast),
    }
    document = build_document("rollout eval", name, spec, set_)
    how = {"resume": resume, "run_dir": run_dir, "dry_run": dry_run, "detach": detach}
    _measure_here(document, against, output, how)


def _measure_here(
    document: Any, against: Path | None, output: OutputFormat, how: dict[str, Any]
) -> None:
    result = launch([document], output=output, **how)
    if result is None:
        return
    if output is OutputFormat.text:
        print_result(result.run_dir, result.summary)
    conclude(result.run_dir, result.summary, against, output)


def _server(url: str, model: str | None, key_env: str, *, is_local: bool) -> Server:
    """The server that is measured. Raises SpecError beside an option of what is measured here (``is_local``)."""
    if model is None or is_local:
        raise SpecError(
            "--url takes --model, the model's name there, and none of --run, --step, --best, --set, --dry-run, --detach"
        )
    return Server(url=url, model=model, key_env=key_env)


def _drop_unsaid(wish: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wish.items() if value is not None}


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
    from rollout.runs.export.choose import VersionSelector, choose, open_objects, read_run
    from rollout.runs.export.export import Export, export_model

    if best and step is not None:
        raise SpecError("--best and --step name two versions: give one of them")
    config = read_run(run)
    version = choose(
        config, run, open_objects(config, run), VersionSelector(step=step, best=best)
    ).version
    folder = run.absolute() / "exports" / f"{version.lineage}-{version.step}"
    merged = config.spec.model.lora is not None
    export_model(run, folder, Export(selector=VersionSelector(step=version.step), merge=merged))
    return folder
