"""`make demo`: two equal runs in real pods. One is left alone, the other harmed in four ways; both end with one hash.

A cluster with two nodes is started on this machine and taken away again. The harm: the learner is killed; the node with
all pods of the run is drained; a bit is flipped in the weights that the actor holds; the namespace is deleted with the
run, its volume and every byte on it, and made again from a snapshot in a bucket.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from bucket import Bucket, serving
from installation import install
from watched import Result, Stage, WatchedRun, read_result

from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape
from cluster.nodes.addons import build_volume
from cluster.providers import open_cluster
from namespaces import delete
from runs import lay_over
from waiting import wait_until

MANIFEST = Path(__file__).with_name("demo.yaml")
STEP_SECONDS, SAVE_SECONDS, END_SECONDS = 300.0, 180.0, 900.0
SMALL = {"requests": {"cpu": "50m", "memory": "256Mi"}}
"""Six pods find room on one node of a small machine."""
FLIPS_MAX = 20
FLIP = """
import glob, sys
(path,) = glob.glob("/var/lib/rollout/mirror/*/*.safetensors")
with open(path, "r+b") as file:
    file.seek(-int(sys.argv[1]), 2)
    (byte,) = file.read(1)
    file.seek(-1, 1)
    file.write(bytes([byte ^ 4]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What the two runs came to."""

    quiet: Result
    harmed: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Theatre:
    """Where it is played, and who is told."""

    cluster: LocalCluster
    bucket: Bucket
    folder: Path
    say: Callable[[str], None]

    @contextmanager
    def namespace(self, name: str) -> Iterator[Stage]:
        """A namespace with a volume, both of this name; gone after the block."""
        mine = self.open(name)
        try:
            yield Stage(kubectl=mine, cluster=self.cluster)
        finally:
            delete(mine)
            mine("delete", "persistentvolume", name, "--ignore-not-found")

    def open(self, name: str) -> Kubectl:
        """Make the namespace and its volume, empty."""
        kubectl = self.cluster.kubectl
        kubectl("create", "namespace", name)
        mine = replace(kubectl, namespace=name)
        mine.wait("--for=create", "serviceaccount/default")
        folder = self.folder / name
        folder.mkdir()
        folder.chmod(0o777)
        mine.apply(build_volume(name, str(folder), size="10Gi"))
        return mine

    @contextmanager
    def only(self, node: str) -> Iterator[None]:
        """New pods go to this node for a block."""
        others = [one.name for one in self.cluster.nodes if one.name != node]
        self.cluster.kubectl("cordon", *others)
        try:
            yield
        finally:
            self.cluster.kubectl("uncordon", *others)


def play(cluster: LocalCluster, cache: Path, folder: Path, say: Callable[[str], None]) -> Ends:
    """Both runs, from their start to their ends, on a cluster with the operator. Raises AssertionError with what went wrong."""
    first, second = (one.name for one in cluster.nodes)
    with serving(cluster, folder) as bucket:
        theatre = Theatre(cluster=cluster, bucket=bucket, folder=folder, say=say)
        roles = {"coordinator": SMALL, "learner": SMALL, "actors": SMALL}
        small = {"spec": {"roles": {role: {"resources": one} for role, one in roles.items()}}}
        cluster.kubectl.apply(lay_over(bucket.runtime("demo", cache), small))
        with theatre.namespace("quiet") as calm, theatre.namespace("harmed") as stage:
            with theatre.only(first):
                quiet = calm.start(read_manifest())
                wait_until(lambda: _placed(quiet), "the quiet run's pods have a node")
            with theatre.only(second):
                harmed = stage.start(read_manifest())
                wait_until(lambda: _placed(harmed), "the other run's pods have a node")
            say(
                "two runs of one manifest, each in a namespace of its own, each on a node of its own"
            )
            _kill_the_learner(harmed, say)
            _drain(harmed, second, theatre)
            _flip_a_bit(harmed, say)
            restored = _lose_the_namespace(harmed, theatre)
            for run in (restored, quiet):
                end = run.wait_for_end(END_SECONDS)
                assert end["reason"] == "Succeeded", run.describe()
            return Ends(quiet=read_result(quiet.folder()), harmed=read_result(restored.folder()))


def read_manifest() -> dict[str, Any]:
    """The run's."""
    return yaml.safe_load(MANIFEST.read_text())


def _placed(run: WatchedRun) -> bool:
    pods = run.pods()
    roles = {pod["metadata"]["labels"]["rollout.dev/role"] for pod in pods}
    return len(roles) == 3 and all("nodeName" in pod["spec"] for pod in pods)


def _goes_on(run: WatchedRun, before: int, what: str) -> int:
    """Wait until three more steps than before are committed; the last one."""
    return run.until(
        lambda: (step := run.step()) >= before + 3 and step, f"steps after {what}", STEP_SECONDS
    )


def _kill_the_learner(run: WatchedRun, say: Callable[[str], None]) -> None:
    step = run.until(lambda: run.step() >= 3 and run.step(), "three steps", STEP_SECONDS)
    run.kill("equal-learner-0", "learner")
    say(f"step {step}: the learner was killed (SIGKILL, nobody told beforehand)")
    say(f"step {_goes_on(run, step, 'the death of the learner')}: it goes on")


def _drain(run: WatchedRun, node: str, theatre: Theatre) -> None:
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--grace-period=10")
    before = run.step()
    run.kubectl("drain", node, *words)
    theatre.say(f"step {before}: node {node} was drained, with all pods of the run on it")
    step = _goes_on(run, before, "the drain")
    assert node not in {pod["spec"]["nodeName"] for pod in run.pods()}
    theatre.say(f"step {step}: it goes on, on the other node")
    run.kubectl("uncordon", node)


def _flip_a_bit(run: WatchedRun, say: Callable[[str], None]) -> None:
    """Again, where the file was about to be replaced by whole weights: then the bit was in nobody's way."""
    before = _rebuilds(run)
    for number in range(FLIPS_MAX):
        words = ("python", "-c", FLIP, str(5 + number))
        done = run.kubectl.attempt("exec", "equal-actors-0", "-c", "actor", "--", *words)
        if done.returncode == 0:
            say(f"step {run.step()}: a bit was flipped in the weights that the actor holds")
        later = run.step() + 3

        def found_or_used(later: int = later) -> bool:
            return _rebuilds(run) > before or run.step() >= later

        run.until(found_or_used, "more steps", STEP_SECONDS)
        if _rebuilds(run) > before:
            say(f"step {run.step()}: found before the weights were used; they were made anew")
            return
    raise AssertionError(f"{FLIPS_MAX} flipped bits were not found; {run.describe()}")


def _rebuilds(run: WatchedRun) -> float:
    """How often the run's actor has made its weights anew."""
    pages = (
        line for line in run.metrics().splitlines() if line.startswith("rollout_worker_rebuilds{")
    )
    return sum(float(line.rpartition(" ")[2]) for line in pages)


def _lose_the_namespace(run: WatchedRun, theatre: Theatre) -> WatchedRun:
    """A snapshot, then nothing of the namespace is left; the run that begins with the snapshot in one of the same name."""
    status = _take_snapshot(run)
    name, kubectl = run.kubectl.namespace, theatre.cluster.kubectl
    kubectl("delete", "namespace", name, "--wait=true", "--timeout=300s")
    kubectl("delete", "persistentvolume", name)
    shutil.rmtree(theatre.folder / name)
    theatre.say(
        f"step {status['step']}: a snapshot in the bucket; then the namespace was deleted, and all bytes of its volume"
    )
    mine = theatre.open(name)
    place = status["location"]["object"]["uri"]
    existing = {"existing": {"uri": place, "digest": status["digest"]}}
    mine.apply(_snapshot({"source": existing, "runtimeRef": read_manifest()["spec"]["runtimeRef"]}))
    wait_until(lambda: _finished(mine), "the snapshot is known again", SAVE_SECONDS)
    restored = {"spec": {"restoreFrom": {"snapshotRef": {"name": "taken"}}}}
    again = Stage(kubectl=mine, cluster=theatre.cluster).start(lay_over(read_manifest(), restored))
    step = again.until(
        lambda: again.step() > status["step"] and again.step(), "a step", STEP_SECONDS
    )
    theatre.say(f"step {step}: the namespace was made again, and the run goes on from the snapshot")
    return again


def _take_snapshot(run: WatchedRun) -> dict[str, Any]:
    source = {"run": {"name": run.name}}
    run.kubectl.apply(_snapshot({"source": source, "deadlineSeconds": int(SAVE_SECONDS)}))
    status = run.until(lambda: _finished(run.kubectl), "the end of the snapshot", 2 * SAVE_SECONDS)
    held = {one["type"]: one["status"] for one in status["conditions"]}
    assert held.get("Complete") == "True", json.dumps(status)
    return status


def _snapshot(spec: dict[str, Any]) -> dict[str, Any]:
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSnapshot"}
    return {**head, "metadata": {"name": "taken"}, "spec": spec}


def _finished(kubectl: Kubectl) -> dict[str, Any] | None:
    status = kubectl.get("rolloutsnapshot", "taken").get("status", {})
    held = {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}
    return status if "Finished" in held else None


def _said_since(start: float) -> Callable[[str], None]:
    def say(words: str) -> None:
        seconds = int(time.monotonic() - start)
        print(f"{seconds // 60:2}:{seconds % 60:02}  {words}", flush=True)

    return say


def main() -> int:
    """Play it, and say what both came to; 1 where the hashes differ."""
    say = _said_since(time.monotonic())
    with (
        tempfile.TemporaryDirectory(prefix="rollout-demo-") as name,
        open_cluster(Shape(fake_nodes=0, real_nodes=2)) as cluster,
    ):
        folder, cache = Path(name), Path(name) / "models"
        folder.chmod(0o755)
        cache.mkdir()
        cache.chmod(0o777)
        install(cluster, cache)
        say("a cluster of two nodes, with the operator")
        if cluster.local is None:
            sys.stderr.write("the demo harms nodes: it needs ROLLOUT_E2E_PROVIDER=local\n")
            return 2
        ends = play(cluster.local, cache, folder, say)
    for kind, result in (("left alone", ends.quiet), ("harmed", ends.harmed)):
        step, chain = result.chains[-1]
        say(f"{kind:>10}  {result.outcome} at step {step}  {chain}")
    equal = ends.quiet.chains[-1] == ends.harmed.chains[-1]
    say("one hash" if equal else "the hashes DIFFER")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
