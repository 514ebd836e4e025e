"""``rollout runs``: what happened, read from the ledger, live or afterwards."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.book.finding import BaseOption, ServiceOption, find_either
from rollout.cli.cluster.options import ClusterFlag, ContextOption, NamespaceOption, names_cluster
from rollout.cli.cluster.remote import print_answer, save_report
from rollout.cli.outcomes import print_cost, print_fact, print_outcome
from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_list,
    print_note,
    print_table,
)
from rollout.cluster.coordinator import RUN_FOLDER

if TYPE_CHECKING:
    from rollout.service.reading.finding import OpenedModel

app = typer.Typer(help="What happened in the runs of this machine.", no_args_is_help=True)

RunArgument = Annotated[
    str, typer.Argument(help="A run's name, its folder's name, or a path.", metavar="RUN")
]
RunOrModelArgument = Annotated[
    str,
    typer.Argument(
        help="A run's name, its folder's name, or a path; the id of a training service's model or, to export, of a snapshot.",
        metavar="RUN",
    ),
]


NO_LONGER_KEPT = "no longer kept"


class SortBy(StrEnum):
    """Order of samples."""

    place = "place"
    reward = "reward"
    length = "length"


def find(run: str) -> Path:
    """A run's folder. Raises SpecError when there is none, and for a service's model, which has no folder."""
    from rollout.errors import SpecError

    found = find_either(run, None)
    if isinstance(found, Path):
        return found
    found.book.close()
    raise SpecError(
        f"{run!r} is a model of a training service, which this command does not read: use runs show, trace, samples,"
        " export or to-manifest, or verify-resume"
    )


@app.command("list")
def list_runs(service: ServiceOption = None, *, output: OutputOption = OutputFormat.text) -> None:
    """The runs under ROLLOUT_HOME (default: runs), and the models of the training service there; with --service those alone."""
    from rollout.cli.book.showing import list_rows

    rows = [*([] if service is not None else _run_rows()), *list_rows(service)]
    if output is OutputFormat.json:
        print_json(rows)
    elif not rows:
        print_line("no runs here; start one with: rollout run -f manifests/samples/arithmetic.yaml")
    else:
        columns = ("run", "algorithm", "outcome", "step", "reward", "model")
        print_list([name.upper() for name in columns], [[r.get(c) for c in columns] for r in rows])


def _run_rows() -> list[dict[str, Any]]:
    from rollout.errors import LedgerError, SpecError
    from rollout.report.gather import gather, read_early_end
    from rollout.runs.run_dir import runs_home

    rows: list[dict[str, Any]] = []
    for folder in sorted(runs_home(os.environ).glob("*/worker.json")):
        try:
            data = gather(folder.parent)
        except (LedgerError, SpecError) as error:
            early = read_early_end(folder.parent)
            said = f"unreadable: {error}" if early is None else f"Failed: {early}"
            rows.append({"run": folder.parent.name, "outcome": said})
            continue
        reward = data.steps[-1].get("reward") if data.steps else None
        rows.append(
            {
                "run": folder.parent.name,
                "algorithm": data.algorithm,
                "outcome": data.outcome,
                "step": len(data.steps),
                "reward": reward,
                "model": data.model,
            }
        )
    return rows


@app.command()
def show(
    run: RunOrModelArgument,
    *,
    service: ServiceOption = None,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """One run: outcome, evaluations, dispositions, the hash chain, and what is kept of bad ends; or one model of a service."""
    if names_cluster(cluster=cluster, context=context, namespace=namespace):
        print_answer(run, ["runs", "show", RUN_FOLDER, "--output", output], context, namespace)
        return
    from rollout.costs.telling import describe_folder
    from rollout.report.data import summarise
    from rollout.report.evidence import list_evidence
    from rollout.report.gather import gather

    folder = find_either(run, service)
    if not isinstance(folder, Path):
        from rollout.cli.book.showing import show_model

        show_model(folder, output)
        return
    data = gather(folder)
    num_evidence = len(list_evidence(folder))
    if output is OutputFormat.json:
        chains = [[row["step"], row["chain"]] for row in data.steps]
        told = {"evidence": num_evidence, "chains": chains}
        print_json({**summarise(data), **told, "cost": describe_folder(folder, os.environ)})
        return
    print_outcome(data)
    print_cost(folder)
    if num_evidence:
        print_fact("evidence", f"{num_evidence}: rollout debug evidence {run}")


@app.command()
def report(
    run: RunArgument,
    *,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Write report.html and report.json again, of a live run too; of a cluster's run RUN-report.html here."""
    if names_cluster(cluster=cluster, context=context, namespace=namespace):
        save_report(run, context, namespace)
        return
    from rollout.report import write_report

    folder = find(run)
    summary = write_report(folder)
    if output is OutputFormat.json:
        print_json(summary)
    else:
        print_line(str(folder / "report.html"))


@app.command()
def samples(
    run: RunOrModelArgument,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            help="The step that consumed them; of a service's model: after which it was sampled from, unset: all.",
        ),
    ] = None,
    *,
    sort: Annotated[SortBy, typer.Option("--sort", help="Order.")] = SortBy.place,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 20,
    service: ServiceOption = None,
    base: BaseOption = None,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Read what one step was trained on: completions, or rows of data; of a service's model what was sampled from it."""
    if names_cluster(cluster=cluster, context=context, namespace=namespace):
        asked = [
            "runs",
            "samples",
            RUN_FOLDER,
            "--step",
            str(_require_step(step)),
            "--sort",
            sort.value,
        ]
        asked += ["--limit", str(limit), "--output", output]
        print_answer(run, asked, context, namespace)
        return
    from rollout.report.gather import describe_plugins, is_offline
    from rollout.report.rows import read_samples

    folder = find_either(run, service)
    if not isinstance(folder, Path):
        _print_model_samples(folder, step, sort, limit, base, output)
        return
    step = _require_step(step)
    rows = read_samples(folder, step, sort=sort.value, limit=limit)
    if output is OutputFormat.json:
        print_json(rows)
    elif is_offline(folder):
        _print_data(rows, folder.name, step)
    else:
        headings = ["REWARD", "PROMPT", "COMPLETION", "WANTED", "TOKENS", "ENDING", "ID"]
        keys = ("reward", "prompt", "completion", "answer", "num_tokens", "ending")
        print_table(headings, [[*(row[key] for key in keys), row["id"][7:19]] for row in rows])
        for line in describe_plugins(rows):
            print_line(line)
        if any(row["token_ids"] is None for row in rows):
            print_note(
                f"prompts and completions of step {step} are {NO_LONGER_KEPT}: the run's"
                " storage.ledger.retention; rewards, lengths and ids stay"
            )


def _require_step(step: int | None) -> int:
    from rollout.errors import SpecError

    if step is None:
        raise SpecError("--step: missing: the samples of a run are those that one step consumed")
    return step


def _print_model_samples(
    opened: OpenedModel,
    step: int | None,
    sort: SortBy,
    limit: int,
    base: str | None,
    output: OutputFormat,
) -> None:
    from rollout.cli.book.showing import print_samples
    from rollout.errors import SpecError

    if sort is not SortBy.place:
        opened.book.close()
        raise SpecError(
            f"--sort {sort.value}: samples of a service are read in the order in which they were asked for"
            " (rewards are its client's); use: rollout runs export"
        )
    print_samples(opened, step, limit, base, output)


@app.command()
def answers(
    run: RunArgument,
    evaluation: Annotated[
        str | None, typer.Option("--evaluation", help="Of this evaluation only.")
    ] = None,
    *,
    wrong: Annotated[
        bool, typer.Option("--wrong", help="Only those with a reward below 0.5.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")
    ] = 20,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Read what was answered in an evaluation, by a run or by a measured server."""
    from dataclasses import asdict
    from itertools import islice

    from rollout.evaluations.statistics import CORRECT_MIN
    from rollout.report.answers import find_measured, read_answers

    found = (
        one
        for one in read_answers(find_measured(run))
        if evaluation in (None, one.evaluation) and not (wrong and one.reward >= CORRECT_MIN)
    )
    rows = [asdict(one) for one in islice(found, limit)]
    if output is OutputFormat.json:
        print_json(rows)
        return
    keys = ("evaluation", "place", "sample", "reward", "prompt", "text", "wanted", "ending")
    headings = ["EVALUATION", "PROMPT", "SAMPLE", "REWARD", "ASKED", "ANSWER", "WANTED", "ENDING"]
    print_table(headings, [[row[key] for key in keys] for row in rows])


def _print_data(rows: list[dict[str, Any]], run: str, step: int) -> None:
    """Rows of data with the fields that some of them have."""
    from rollout.report.rows import SHOWN

    fields = [name for name in SHOWN if any(row[name] is not None for row in rows)]
    keys = ["place", "ordinal", *fields]
    print_table([key.upper() for key in keys], [[row[key] for key in keys] for row in rows])
    print_note(
        "rows of data: rewards and the losses of single rows are not recorded; this computes them again: "
        f"rollout debug one-batch {run} --step {step}"
    )


@app.command()
def trace(
    run: RunOrModelArgument,
    trajectory: Annotated[
        str | None, typer.Argument(help="A trajectory's id or its beginning; of runs only.")
    ] = None,
    *,
    call: Annotated[
        int | None, typer.Option("--call", min=1, help="This call of a service's model alone.")
    ] = None,
    after: Annotated[
        int, typer.Option("--after", min=0, help="Calls of a service's model behind this one.")
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="At most so many of those calls.")
    ] = 100,
    service: ServiceOption = None,
    cluster: ClusterFlag = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Provenance of a trajectory: prompt, attempts, tokens, batch, step, snapshot; or the calls on a model of a service."""
    if names_cluster(cluster=cluster, context=context, namespace=namespace):
        asked = ["runs", "trace", RUN_FOLDER, _require_one(trajectory, call), "--output", output]
        print_answer(run, asked, context, namespace)
        return
    found = find_either(run, service)
    if isinstance(found, Path):
        _trace_trajectory(found, _require_one(trajectory, call), output)
        return
    from rollout.cli.book.showing import trace_model

    _refuse_trajectory(found, trajectory)
    trace_model(found, call, after, limit, output)


def _require_one(trajectory: str | None, call: int | None) -> str:
    from rollout.errors import SpecError

    if call is not None:
        raise SpecError(
            f"--call {call}: a run has no calls; name a trajectory, or a service's model"
        )
    if trajectory is None:
        raise SpecError("TRAJECTORY: missing: of a run one trajectory is traced; see: runs samples")
    return trajectory


def _refuse_trajectory(opened: OpenedModel, trajectory: str | None) -> None:
    from rollout.errors import SpecError

    if trajectory is not None:
        opened.book.close()
        raise SpecError(
            f"TRAJECTORY {trajectory!r}: a service's model has calls; use --call N, or runs samples"
        )


def _trace_trajectory(folder: Path, trajectory: str, output: OutputFormat) -> None:
    import msgspec

    from rollout.report.gather import open_ledger, plugin_columns

    with open_ledger(folder) as ledger:
        view = ledger.trace(trajectory)
    if output is OutputFormat.json:
        print_json(msgspec.to_builtins(view))
        return
    item, row = view.trajectory, view.sample
    print_line(view.trajectory_id)
    where = f"ordinal {item.ordinal}, task {view.task_id}" if item else f"task {view.task_id}"
    prompt = repr(item.prompt_text) if item else NO_LONGER_KEPT
    print_line(f"  prompt      {where}: {prompt}")
    for attempt in view.attempts:
        state = attempt.ending or "under way"
        print_line(
            f"  attempt     epoch {attempt.epoch} by {attempt.worker} from version "
            f"{attempt.version_step}: {state}{f' ({attempt.message})' if attempt.message else ''}"
        )
    for name, digest in plugin_columns(item).items() if item else ():
        print_line(f"  {name} {digest}")
    text = repr(item.text) if item else NO_LONGER_KEPT
    print_line(f"  tokens      {row.num_tokens}, ending {row.ending}: {text}")
    print_line(f"  reward      {row.reward:g}{f' {dict(item.rewards)}' if item else ''}")
    for one in view.consumptions:
        place = "" if one.place is None else f", place {one.place}"
        print_line(f"  batch       {one.kind} by step {one.step} of lineage {one.lineage}{place}")
    if view.version_after:
        print_line(f"  version     step {view.version_after.step}, {view.version_after.digest}")
    print_line(f"  snapshot    {view.anchor or 'none holds it yet'}")
