"""Flux itself installs the operator from Git and brings the pipeline sample to its end: two runs that train in real pods, and an
endpoint that serves once it has passed its bar. What is edited by hand is put back by whom it belongs to, and then all rests.

Its expressions are held quickly against recorded states in tests/rollout_operator/plan.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import small_pipeline as pipeline
from asking import build_client, read_told
from bucket import BUCKET, Bucket
from endpoints import WatchedEndpoint
from flux_controllers import Flux
from installation import wait_for_operator
from served_git import Repository
from watched import WatchedRun

from cluster.kubectl import Kubectl
from cluster.local import LocalCluster
from cluster.nodes.addons import build_volume
from rollout.inference.gateway.keys import KeyFile, KeyLimits
from waiting import wait_until

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(3000)]

START_SECONDS, TRAIN_SECONDS, SERVE_SECONDS = 600.0, 1500.0, 900.0
ASKED_MIN = 5
SETTLE_SECONDS = 3.0
"""Between two looks at everything: an operator that fights writes within one."""
DONE, FAILED = ("True", "ReconciliationSucceeded"), ("False", "HealthCheckFailed")
STAGES = (pipeline.OPERATOR, pipeline.RUNS, pipeline.SERVING)
CHILDREN = (
    "rolloutruns,rolloutendpoints,deployments,replicasets,statefulsets,jobs,pods,services,configmaps,"
    "secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets"
)
INSTALLED = (
    "deployments,replicasets,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings"
)
EVERYWHERE = (
    "clusterrolloutruntimes,customresourcedefinitions,clusterroles,clusterrolebindings,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,validatingwebhookconfigurations"
)
Marks = dict[tuple[str, str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What Git holds and what the cluster came to; `team` is kubectl where the runs are."""

    flux: Flux
    git: Repository
    bucket: Bucket
    team: Kubectl
    key: str

    @property
    def endpoint(self) -> WatchedEndpoint:
        return WatchedEndpoint(kubectl=self.team, name=pipeline.ENDPOINT)

    def run(self, name: str) -> WatchedRun:
        return WatchedRun(kubectl=self.team, cluster=self.flux.cluster, name=name)

    def push(self, files: dict[str, str], message: str) -> str:
        """Commit, and have Flux look; the revision."""
        return self.see(self.git.commit(files, message))

    def see(self, revision: str) -> str:
        self.flux.ask("gitrepository", "rollout")
        return revision

    def is_done(self, stage: str, revision: str) -> bool:
        return self.flux.stage(stage) == (*DONE, revision)

    def marks(self) -> Marks:
        """The version of each object."""
        system = self.flux.kubectl
        found = [
            *self.team.get(CHILDREN)["items"],
            *system.get(INSTALLED)["items"],
            *system.get(EVERYWHERE)["items"],
        ]
        return {
            (one["kind"], meta.get("namespace", ""), meta["name"]): meta["resourceVersion"]
            for one in found
            for meta in (one["metadata"],)
        }

    def settled(self) -> Marks:
        """The same, once nobody writes any more."""
        looks: list[Marks] = [{}]

        def rests() -> bool:
            looks.append(self.marks())
            return looks[-1] == looks[-2]

        wait_until(rests, "everything rests", every=SETTLE_SECONDS)
        return looks[-1]

    def look_again(self) -> None:
        """Flux compares everything with Git, as it does at each interval."""
        for name in STAGES:
            self.flux.ask("kustomization", name)


@pytest.fixture(scope="module")
def story(
    cluster: LocalCluster,
    flux: Flux,
    git: Repository,
    bucket: Bucket,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Story]:
    system, key = flux.kubectl, _make_key(tmp_path_factory)
    cache = tmp_path_factory.mktemp("models")
    cache.chmod(0o777)
    for namespace in (system.namespace, pipeline.TEAM):
        system.make_namespace(namespace)
    team = Kubectl(binary=system.binary, kubeconfig=system.kubeconfig, namespace=pipeline.TEAM)
    for number in range(2):  # a ledger for each run
        folder = tmp_path_factory.mktemp(f"ledger-{number}")
        folder.chmod(0o777)
        system.apply(build_volume(f"ledger-{number}", str(folder), size="10Gi"))
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "gsm8k-keys"}}
    team.apply({**keys, "stringData": {"app": key}})
    files = pipeline.write_pipeline() | pipeline.write_operator(cluster.kubectl, bucket, cache)
    files |= pipeline.write_runs(pipeline.STEPS_FIRST) | pipeline.write_serving()
    git.commit(files, "The operator and a pipeline")
    system.apply(*pipeline.build_flux(git.url))
    yield Story(flux=flux, git=git, bucket=bucket, team=team, key=key)


def _make_key(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = KeyFile(tmp_path_factory.mktemp("keys"))
    return made.create("app", KeyLimits(), now=time.time(), expires=None)


def test_the_operator_and_its_kinds_come_from_git(story: Story):
    head = story.git.head()
    story.flux.until(lambda: story.is_done(pipeline.OPERATOR, head), "the operator", START_SECONDS)
    wait_for_operator(story.flux.kubectl)
    hooks = story.flux.kubectl.get("validatingwebhookconfiguration", "rollout-webhook")["webhooks"]
    assert all(one["clientConfig"].get("caBundle") for one in hooks), "our own process writes it"


def test_a_commit_that_comes_while_runs_work_is_taken_at_once_and_disturbs_none(story: Story):
    runs = (pipeline.SFT, pipeline.GRPO)
    story.flux.until(lambda: len(_find_runs(story)) == len(runs), "both runs", START_SECONDS)
    before = _find_runs(story)
    assert story.flux.stage(pipeline.RUNS)[0] == "Unknown", story.flux.describe()

    head = story.push(pipeline.write_runs(pipeline.STEPS), "Some more steps")

    def taken() -> bool:
        grpo = story.run(pipeline.GRPO).read()["spec"]
        steps = grpo["train"]["maxSteps"]
        return story.flux.stage(pipeline.RUNS)[2] == head and steps == pipeline.STEPS

    story.flux.until(taken, "the new commit", START_SECONDS)
    after = _find_runs(story)
    assert {name: one["metadata"]["uid"] for name, one in after.items()} == {
        name: one["metadata"]["uid"] for name, one in before.items()
    }
    assert any("Health checks canceled" in one for one in story.flux.events(pipeline.RUNS))


def _find_runs(story: Story) -> dict[str, dict[str, Any]]:
    if story.flux.stage(pipeline.OPERATOR)[0] != "True":
        return {}  # nobody serves the kind
    return {one["metadata"]["name"]: one for one in story.team.get("rolloutruns")["items"]}


def _ends(story: Story) -> dict[str, str]:
    """How each run has ended."""
    ends = {}
    for name in (pipeline.SFT, pipeline.GRPO):
        finished = story.run(name).condition("Finished")
        ends[name] = finished["reason"] if finished.get("status") == "True" else ""
    return ends


def test_each_stage_waits_for_the_end_of_the_one_before(story: Story):
    head, both = story.git.head(), {pipeline.SFT: "Succeeded", pipeline.GRPO: "Succeeded"}
    early = []

    def served() -> bool:
        endpoints = story.team.get("rolloutendpoints")["items"]
        is_trained = story.flux.stage(pipeline.RUNS) == (*DONE, head)
        is_served = story.flux.stage(pipeline.SERVING) == (*DONE, head)
        ends = _ends(story)
        if (endpoints or is_trained or is_served) and ends != both:
            early.append((len(endpoints), is_trained, is_served, ends))
        for name, reason in ends.items():
            assert reason in {"", "Succeeded"}, story.run(name).describe()
        assert story.flux.stage(pipeline.SERVING)[:2] != FAILED, story.flux.describe()
        return is_served

    story.flux.until(served, "the end of the pipeline", TRAIN_SECONDS)
    assert early == []
    assert story.run(pipeline.GRPO).status()["progress"]["step"] == pipeline.STEPS
    waited = story.flux.events(pipeline.SERVING)
    assert any("Dependencies do not meet ready condition" in one for one in waited)


def test_what_was_trained_has_passed_its_bar_and_answers(story: Story):
    status = story.endpoint.status()
    [serving] = status["revisions"]
    [figure] = serving["measured"]
    assert (figure["name"], figure["passed"]) == ("arithmetic", True)
    story.team.apply(build_client(status["url"], story.key, "gsm8k"))
    story.endpoint.until(lambda: len(read_told(story.team)) > ASKED_MIN, "answers")
    told = read_told(story.team)
    story.team("delete", "pod", "client", "--wait=true")
    assert {one.get("digest") for one in told} == {serving["modelDigest"]}, told


def test_flux_looks_again_and_nobody_writes_anything(story: Story):
    before, written = story.settled(), story.flux.writes()
    for _ in range(3):
        story.look_again()
    assert story.settled() == before
    assert story.flux.writes() == written


def how_runs_ended(story: Story) -> dict[str, tuple[str, ...]]:
    """Each run that is over: since when, with what and why. An edit and its way back are generations, and change none of it."""
    told = {name: story.run(name).condition("Finished") for name in _ends(story)}
    facts = ("status", "reason", "message", "lastTransitionTime")
    return {name: tuple(one[fact] for fact in facts) for name, one in told.items()}


def test_what_stands_in_git_is_put_back_by_flux_and_said_and_then_all_rests(story: Story):
    ended = how_runs_ended(story)
    num = len(story.flux.writes())
    story.endpoint.edit({"replicas": 2})
    story.run(pipeline.GRPO).patch({"limits": {"activeSeconds": 43200}})
    story.flux.kubectl("scale", "deployment/rollout-operator", "--replicas=0")

    story.look_again()

    assert story.endpoint.read()["spec"]["replicas"] == 1
    assert story.run(pipeline.GRPO).read()["spec"]["limits"]["activeSeconds"] == 86400
    wait_for_operator(story.flux.kubectl)
    endpoint, run = (
        f"RolloutEndpoint/{pipeline.TEAM}/{pipeline.ENDPOINT}",
        f"RolloutRun/{pipeline.TEAM}/{pipeline.GRPO}",
    )
    operator = "Deployment/rollout-system/rollout-operator"
    assert story.flux.writes()[num:] == [
        (pipeline.OPERATOR, operator, "configured"),
        (pipeline.RUNS, run, "configured"),
        (pipeline.SERVING, endpoint, "configured"),
    ]
    assert f"{operator} configured" in story.flux.events(pipeline.OPERATOR)
    serving = ("True", "Serving")
    story.endpoint.until(lambda: story.endpoint.condition("Ready") == serving, "one server")
    story.endpoint.until(lambda: len(story.endpoint.pods()) == 1, "the end of the second server")
    rested = story.settled()
    story.look_again()
    assert story.settled() == rested
    assert how_runs_ended(story) == ended


def test_a_child_is_put_back_by_the_operator_and_flux_has_no_part_in_it(story: Story):
    before, written = story.settled(), story.flux.writes()
    deployment = story.endpoint.status()["currentRevision"]
    story.team.merge("deployment", deployment, {"spec": {"replicas": 2}})

    story.look_again()
    story.endpoint.until(lambda: _replicas(story, deployment) == 1, "the child as it was")

    story.endpoint.until(lambda: len(story.endpoint.pods()) == 1, "one server")
    after = story.settled()
    story.look_again()
    assert story.settled() == after
    changed = {key[0] for key in before if before[key] != after.get(key)}
    assert changed <= {"Deployment", "ReplicaSet", "RolloutEndpoint", "PodDisruptionBudget"}, (
        changed
    )
    assert story.flux.writes() == written


def _replicas(story: Story, deployment: str) -> int:
    return story.team.get("deployment", deployment)["spec"]["replicas"]


def test_a_commit_that_names_a_worse_model_fails_at_its_bar_and_what_serves_goes_on(story: Story):
    first = story.endpoint.status()["currentRevision"]
    head = story.push(pipeline.write_serving(**pipeline.UNTRAINED), "Another model")

    story.flux.until(
        lambda: story.flux.stage(pipeline.SERVING) == (*FAILED, head), "a bar", SERVE_SECONDS
    )

    told = story.flux.condition("kustomization", pipeline.SERVING)["message"]
    assert f"RolloutEndpoint/{pipeline.TEAM}/{pipeline.ENDPOINT}" in told
    status = story.endpoint.status()
    assert status["currentRevision"] == first
    assert story.endpoint.condition("Available")[0] == "True"
    assert story.endpoint.condition("Progressing") == ("False", "EvaluationFailed")

    head = story.see(story.git.revert())
    story.flux.until(
        lambda: story.is_done(pipeline.SERVING, head), "what served before", SERVE_SECONDS
    )
    assert story.endpoint.status()["currentRevision"] == first


def test_runs_that_leave_git_go_and_what_they_handed_on_is_served_on(story: Story):
    first = story.endpoint.status()["currentRevision"]
    kept = story.bucket.keys("")
    assert kept, BUCKET

    head = story.push(pipeline.write_no_runs(), "The runs are over")

    story.flux.until(lambda: story.is_done(pipeline.RUNS, head), "no runs", SERVE_SECONDS)
    story.flux.until(
        lambda: not story.team.get("rolloutruns")["items"], "the end of the runs", SERVE_SECONDS
    )
    status = story.endpoint.status()
    assert (status["currentRevision"], status["readyReplicas"]) == (first, 1)
    assert story.endpoint.condition("Available")[0] == "True"
