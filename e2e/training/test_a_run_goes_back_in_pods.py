"""A suspended run in real pods goes back to its own snapshot, which lies on its volume, and goes on as if nobody had disturbed it."""

from pathlib import Path
from typing import Any

import pytest
from samples import build_saved_run
from watched import Stage, WatchedRun, read_result, run_here

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

ANCHOR, BEYOND = 3, 2
"""Steps between anchors; steps that are taken after the snapshot."""
START_SECONDS, SAVE_SECONDS = 300.0, 180.0


def build_manifest(steps: int) -> dict[str, Any]:
    return build_saved_run("small", steps, ANCHOR)


def take_snapshot(run: WatchedRun) -> int:
    """The step that is saved as the object `good`."""
    spec = {"source": {"run": {"name": run.name}}, "deadlineSeconds": int(SAVE_SECONDS)}
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSnapshot"}
    run.kubectl.apply({**head, "metadata": {"name": "good"}, "spec": spec})

    def saved() -> int | None:
        status = run.kubectl.get("rolloutsnapshot", "good").get("status", {})
        held = {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}
        return status["step"] if "Ready" in held else None

    return run.until(saved, "the snapshot", SAVE_SECONDS)


def suspend(run: WatchedRun) -> None:
    run.patch({"suspend": True})
    run.until(lambda: run.condition("Suspended").get("status") == "True", "the end", SAVE_SECONDS)


def test_its_steps_after_that_are_those_of_a_run_that_nobody_disturbed(
    stage: Stage, tmp_path: Path
):
    run = stage.start(build_manifest(100_000))
    run.until(lambda: run.step() > ANCHOR, "an anchor", START_SECONDS)
    step = take_snapshot(run)
    run.until(lambda: run.step() > step + 4 * BEYOND, "steps after it", SAVE_SECONDS)
    suspend(run)
    run.patch({"suspend": False, "restoreFrom": {"snapshotRef": {"name": "good"}}})
    run.until(lambda: run.status()["progress"]["lineage"] == 1, "the way back", START_SECONDS)
    run.kubectl("delete", "rolloutsnapshot", "good")
    run.until(lambda: run.step() > step + BEYOND, "steps after it again", SAVE_SECONDS)
    suspend(run)
    undisturbed = run_here(build_manifest(step + BEYOND), tmp_path)
    again = dict(read_result(run.folder()).chains)
    for number, chain in undisturbed.chains[-BEYOND:]:
        assert again[number] == chain
