"""``rollout doctor``: what this machine has for runs, what each lack costs, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line

if TYPE_CHECKING:
    from rollout.doctor.judge import Diagnosis

MARKS = {"ok": "ok", "lack": "lack", "broken": "BROKEN"}
NAME_WIDTH = 22


def doctor(output: OutputOption = OutputFormat.text) -> None:
    """What this machine has for runs, what each lack costs, and what to do; exit code 1 where a run would not work."""
    from rollout.doctor.judge import judge
    from rollout.doctor.observe import observe

    findings = judge(observe())
    if output is OutputFormat.json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print_finding(finding)
        _print_sum(findings)
    raise typer.Exit(int(any(finding.state == "broken" for finding in findings)))


def print_finding(finding: Diagnosis) -> None:
    """A finding for people: its state, and below what it costs and what ends it."""
    print_line(f"{MARKS[finding.state]:<7}{finding.name:<{NAME_WIDTH}}{finding.found}")
    indent = " " * (7 + NAME_WIDTH)
    if finding.costs:
        print_line(f"{indent}costs: {finding.costs}")
    if finding.fix:
        print_line(f"{indent}fix:   {finding.fix}")


def _print_sum(findings: tuple[Diagnosis, ...]) -> None:
    num = {state: sum(one.state == state for one in findings) for state in MARKS}
    verdict = "runs will not work here" if num["broken"] else "runs work here"
    print_line(f"{verdict}: {num['ok']} well, {num['lack']} lacking, {num['broken']} broken")
