"""``rollout debug stuck RUN``: one page of what holds a run up, and what to try."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rollout.cli.cluster.options import ContextOption, NamespaceOption, ObjectArgument, open_cluster
from rollout.cli.cluster.reading import (
    print_conditions,
    print_events,
    print_pods,
    print_progress,
)
from rollout.cli.cluster.remote import ask_coordinator
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line
from rollout.cluster.coordinator import RUN_FOLDER
from rollout.errors import KubeError, RolloutError

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster
    from rollout.cluster.stuck import Facts

LOG_LINES = 40


def stuck(
    name: ObjectArgument,
    *,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """What holds a run of a cluster up: conditions, pods, warnings, the culprit's last words and stacks, and what to try."""
    from rollout.cluster.kinds import parse_reference
    from rollout.cluster.objects import pod_state
    from rollout.cluster.reading import read_events, read_pods
    from rollout.cluster.stuck import Facts, culprit, find_causes, warnings

    reference = parse_reference(name)
    cluster = open_cluster(context, namespace)
    found = cluster.get(reference)
    pods = read_pods(cluster, found)
    facts = Facts(
        run=found,
        pods=[pod_state(pod) for pod in pods],
        events=warnings(read_events(cluster, found, pods)),
        now=datetime.now(UTC),
    )
    causes = find_causes(facts)
    guilty = culprit(facts)
    words = list(_last_words(cluster, pods, guilty))
    kept = _evidence(found["metadata"]["name"], facts, context, namespace)
    if output is OutputFormat.json:
        told = {
            "causes": [asdict(one) for one in causes],
            "pods": [asdict(one) for one in facts.pods],
        }
        print_json(
            {**told, "warnings": facts.events, "culprit": guilty, "log": words, "evidence": kept}
        )
        return
    print_line(f"{reference} in {cluster.namespace} ({cluster.context})")
    print_progress(found)
    _print_causes(causes)
    print_conditions(found)
    print_pods(facts.pods)
    print_line()
    print_events(facts.events)
    _print_text(f"last words of {guilty}", words)
    for title, lines in kept:
        _print_text(title, lines)


def _print_causes(causes: Sequence[Any]) -> None:
    if not causes:
        print_line("nothing holds it up, as far as the cluster says")
    for one in causes:
        print_line(f"- {one.what}")
        print_line(f"  try: {one.try_this}")
    print_line()


def _print_text(title: str, lines: Sequence[str]) -> None:
    if lines:
        print_line(f"\n{title}")
        for line in lines:
            print_line(f"  {line}")


def _last_words(
    cluster: Cluster, pods: Sequence[dict[str, Any]], guilty: str | None
) -> Iterator[str]:
    """The end of each container's log of the culprit; of the life before, where that one died. What may not be read is named."""
    pod = next((one for one in pods if one["metadata"]["name"] == guilty), None)
    if pod is None:
        return
    for one in pod["spec"]["containers"]:
        for previous in (True, False):
            try:
                lines = list(
                    cluster.log(guilty or "", one["name"], lines=LOG_LINES, previous=previous)
                )
            except KubeError as error:
                lines = [] if previous else [f"could not be read: {error}"]  # most have one life
            which = " before its last start" if previous else ""
            yield from (f"{one['name']}{which}: {line}" for line in lines)


def _evidence(
    run: str, facts: Facts, context: str | None, namespace: str | None
) -> list[tuple[str, list[str]]]:
    """The newest piece of evidence that the coordinator keeps (stacks of a worker that did not move, a dead one's end)."""
    if not any(pod.role == "coordinator" and pod.phase == "Running" for pod in facts.pods):
        return []
    try:
        listed = ask_coordinator(run, _command(), context, namespace)
        pieces = json.loads(listed.stdout) if listed.code == 0 else []
        if not pieces:
            return []
        newest = max(pieces, key=lambda one: one["at"])["name"]
        text = ask_coordinator(run, _command(newest), context, namespace)
        return [(f"evidence {newest}", json.loads(text.stdout)["text"].splitlines())]
    except (RolloutError, ValueError) as error:
        return [("evidence", [f"could not be read: {error}"])]


def _command(*name: str) -> list[str]:
    return ["debug", "evidence", RUN_FOLDER, *name, "--output", "json"]
