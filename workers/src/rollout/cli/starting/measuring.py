"""``rollout eval --url``: a model behind somebody's server, measured from here; and the comparison with a baseline."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import typer

from rollout.cli.output import OutputFormat, print_json, print_line, print_table
from rollout.errors import SpecError

RESULT = "result.json"
TRIES_MAX = 6
"""Of one prompt, over about half a minute; one that is not answered then waits for --resume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Who is asked: the address up to ``/v1``, the model's name there, and the variable that holds a key."""

    url: str
    model: str
    key_env: str


def measure_server(
    server: Server,
    evaluations: Sequence[Mapping[str, Any]],
    wish: Mapping[str, Any],
    *,
    name: str,
    run_dir: Path | None,
    resume: str | None,
    output: OutputFormat,
) -> tuple[Path, dict[str, Any]]:
    """Ask, score and keep; the folder and the outcome. Raises SpecError, DataError or InfrastructureError."""
    from rollout.evaluations.remote.items import open_items
    from rollout.evaluations.remote.measure import MeasureSettings, measure_suite
    from rollout.rewards.chat_endpoint import Endpoint

    wished = MeasureSettings(**wish)
    key = os.environ.get(server.key_env, "")
    endpoint = Endpoint(url=server.url, model=server.model, key=key, tries_max=TRIES_MAX)
    asked = [(_build(one), one.get("maxPrompts")) for one in evaluations]
    _require_one_answer([suite for suite, _ in asked], wished)
    sources = [_open(suite, limit) for suite, limit in asked]
    folder = _folder(name, run_dir, resume)
    header = {
        "url": server.url,
        "model": server.model,
        "suites": {
            suite.name: source.digest for (suite, _), source in zip(asked, sources, strict=True)
        },
        **{k: v for k, v in asdict(wished).items() if k != "concurrency"},
    }
    items = open_items(folder, header)
    measured: list[dict[str, Any]] = []
    for (suite, _), source in zip(asked, sources, strict=True):
        metrics = measure_suite(suite, source, endpoint, wished, items)
        measured.append({"name": suite.name, "split": suite.split, "step": 0, "metrics": metrics})
        if output is OutputFormat.text:
            _print_suite(suite.name, metrics)
    left = sum(map(len, sources)) - len(items.done)
    code, reason = _judge(measured, left)
    outcome = {
        "run": folder.name,
        "run_dir": str(folder),
        "exit_code": code,
        "reason": reason,
        "num_unanswered": left,
        "url": server.url,
        "model": server.model,
        "evaluations": measured,
    }
    (folder / RESULT).write_text(json.dumps(outcome, indent=1), encoding="utf-8")
    return folder, outcome


def _judge(measured: Sequence[Mapping[str, Any]], num_left: int) -> tuple[int, str]:
    """Exit code and reason: what a network took may be had by --resume."""
    if num_left:
        return 4, "Unanswered"
    if any(not one["metrics"]["num_prompts"] for one in measured):
        return 3, "NothingMeasured"
    return 0, "Finished"


def _build(evaluation: Mapping[str, Any]) -> Any:
    from rollout.evaluations.build import build_suite
    from rollout.tools.sandbox.trial import require_sandbox
    from rollout_api.checks.catalog import SUITES, suggest
    from rollout_api.checks.environment.tools import SANDBOXED_SUITES
    from rollout_api.v1alpha1.evaluation import Evaluation

    name = evaluation["suite"]["builtin"]["name"]
    if name not in SUITES:
        raise SpecError(f"there is no built-in suite {name!r}; {suggest(name, SUITES)}")
    if name in SANDBOXED_SUITES:
        require_sandbox()
    return build_suite(
        Evaluation.model_validate({"suite": evaluation["suite"]}), base_dir=Path.cwd()
    )


def _require_one_answer(suites: Sequence[Any], wish: Any) -> None:
    """Raise SpecError for several answers of a suite that samples nothing."""
    for suite in suites:
        if suite.is_scored and (wish.samples > 1 or wish.temperature):
            raise SpecError(
                f"--suite {suite.name}: it has given answers scored and samples nothing: every answer would be the"
                " same; leave out --samples and --temperature"
            )


def _open(suite: Any, limit: int | None) -> Any:
    from rollout.evaluations.build import limit_source

    return limit_source(suite.source(), limit)


def _folder(name: str, run_dir: Path | None, resume: str | None) -> Path:
    """A new folder, or the one that is gone on with. Raises SpecError."""
    from rollout.report.answers import find_measured
    from rollout.runs.run_dir import runs_home

    if run_dir is not None:
        return run_dir
    home = runs_home(os.environ)
    taken = sorted(
        (int(one.name.rpartition("-")[2]), one)
        for one in home.glob(f"{name}-*")
        if one.name.rpartition("-")[2].isdigit() and one.name.rpartition("-")[0] == name
    )
    if resume is None:
        return home / f"{name}-{taken[-1][0] + 1 if taken else 1}"
    if resume != "Latest":
        return find_measured(resume)
    if not taken:
        raise SpecError(f"--resume Latest: there is no {name}-<n> under {home}")
    return taken[-1][1]


def _print_suite(name: str, metrics: Mapping[str, Any]) -> None:
    print_line(
        f"{name}: {metrics['num_prompts']} prompts, {metrics['num_excluded']} without an answer"
    )
    shown = [(k, v) for k, v in metrics.items() if isinstance(v, Mapping)]
    print_table(
        ["METRIC", "VALUE", "LOW", "HIGH"],
        [[k, *(round(v[part], 4) for part in ("value", "low", "high"))] for k, v in shown],
    )


def compare_with(baseline: Path, folder: Path, output: OutputFormat) -> list[dict[str, Any]]:
    """Paired differences to what the baseline's folder measured; printed as a table unless JSON is asked for."""
    from rollout.report.answers import compare_measured

    found = compare_measured(folder, baseline)
    if output is OutputFormat.text:
        print_line(f"against {baseline.name}, prompt by prompt (95 %):")
        print_table(
            ["EVALUATION", "METRIC", "HERE", "BASELINE", "DIFFERENCE", "LOW", "HIGH", "TOLD APART"],
            [
                [
                    one["evaluation"],
                    one["metric"],
                    *(round(one[k], 4) for k in ("ours", "baseline", "value", "low", "high")),
                    "yes" if one["told_apart"] else "no",
                ]
                for one in found
            ],
        )
    return found


def conclude(
    folder: Path, outcome: Mapping[str, Any], baseline: Path | None, output: OutputFormat
) -> NoReturn:
    """Compare where that is asked for, print one object where JSON is, and end with the outcome's exit code."""
    found = {} if baseline is None else {"baseline": compare_with(baseline, folder, output)}
    if output is OutputFormat.json:
        print_json({**outcome, **found})
    raise typer.Exit(int(outcome["exit_code"]))
