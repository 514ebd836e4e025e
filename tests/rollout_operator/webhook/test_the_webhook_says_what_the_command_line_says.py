"""One set of rules: a manifest that the command line refuses is refused by the webhook in the same words."""

import json
from pathlib import Path

import pytest

from rollout.runs.manifest import load_documents
from rollout_api.checks import check_document, check_together
from rollout_api.checks.facts import Facts
from rollout_api.problems import Severity
from rollout_operator.webhook import review as admission
from rollout_operator.webhook.review import review

MANIFESTS = Path(__file__).parents[2] / "rollout_api" / "manifests"
FILES = sorted(MANIFESTS.glob("*/*.yaml"))
RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "arithmetic", "namespace": "research"},
    "spec": {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 400,
        },
        "limits": {"activeSeconds": 3600},
        "actors": {"resources": {"requests": {"cpu": "1"}}},
        "learner": {"resources": {"requests": {"cpu": "1"}}},
    },
}


def run(**spec):
    document = json.loads(json.dumps(RUN))
    for path, value in spec.items():
        target = document["spec"]
        *parents, last = path.split("__")
        for name in parents:
            target = target.setdefault(name, {})
        target[last] = value
    return document


LONG = "/x" * 150
OURS = "rollout.dev/"


def loader(name):
    return {"name": name, "value": "/tmp/mine"}


def files(path):
    return {"mlflow": {"uri": f"file://{path}"}}


def create(document):
    return review({"operation": "CREATE", "object": document, "oldObject": None})


def update(old, new):
    return review({"operation": "UPDATE", "object": new, "oldObject": old})


def refusals(document):
    """What the command line prints, knowing that the run goes to a cluster."""
    alone = check_document(document, Facts(platform="cluster"))
    errors = [p for p in alone if p.severity is Severity.error]
    return errors or [p for _, p in check_together([document])]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_manifest_gets_the_same_verdict(path):
    for document in load_documents(path):
        verdict, expected = create(document.data), refusals(document.data)
        assert verdict.allowed == (not expected)
        assert verdict.message == "\n".join(map(str, expected))


def test_a_refusal_names_field_message_and_fix():
    verdict = create(run(train__algorithm={"grpo": {"promptsPerStep": 32, "groupSize": 1}}))

    assert not verdict.allowed
    assert verdict.message.startswith("spec.train.algorithm.grpo.groupSize: ")
    assert "; use groupSize 2 or more" in verdict.message


def test_a_run_that_waits_for_itself_is_refused():
    verdict = create(run(model={"fromRun": {"name": "arithmetic"}}))
    assert verdict.message.startswith("spec.model.fromRun.name: the run waits for itself")


def test_a_sound_run_is_let_in_without_a_word():
    assert create(run()) == admission.Verdict(allowed=True)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"limits": {}}, "spec.limits.activeSeconds: nothing bounds"),
        ({"actors": {}}, "spec.actors.resources: these pods ask for no resources"),
        ({"learner": {}}, "spec.learner.resources: these pods ask for no resources"),
        (
            {"actors__preemptible": True, "snapshots": {"everySteps": 300, "maxReplaySteps": 300}},
            "spec.snapshots.everySteps: on capacity that may be taken away up to 300 steps",
        ),
        (
            {"actors__engine": {"vllm": {"image": "vllm/vllm-openai:latest"}}},
            "spec.actors.engine.vllm.image: what 'vllm/vllm-openai:latest' names may change",
        ),
    ],
)
def test_what_is_legal_and_risky_is_let_in_with_a_warning(spec, word):
    verdict = create(run(**spec))

    assert verdict.allowed
    assert len(verdict.warnings) == 1
    assert verdict.warnings[0].startswith(word)


def test_an_image_with_a_digest_or_a_version_is_no_risk():
    for image in ("registry:5000/vllm@sha256:" + "0" * 64, "registry:5000/vllm:v0.11.2"):
        assert create(run(actors__engine={"vllm": {"image": image}})).warnings == ()


def test_warnings_are_few_and_short():
    document = run(limits={}, actors={}, learner={})
    document["spec"]["actors"]["engine"] = {"vllm": {"image": "a" * 240}}

    warnings = create(document).warnings

    assert 0 < len(warnings) <= admission.NUM_WARNINGS_MAX
    assert all(len(text) <= admission.WARNING_LENGTH_MAX for text in warnings)


def test_laptops_are_not_warned_of_what_only_clusters_risk():
    assert check_document(run(limits={}, actors={}, learner={}), Facts(platform="local")) == ()


def test_an_update_that_breaks_something_is_refused():
    assert not update(run(), run(actors__replicas=0)).allowed


def test_what_was_broken_before_does_not_stop_an_update():
    """Suspending a run must work under the rules of a newer version, too."""
    old = run(train__algorithm={"grpo": {"promptsPerStep": 32, "groupSize": 1}})
    new = run(train__algorithm={"grpo": {"promptsPerStep": 32, "groupSize": 1}}, suspend=True)

    verdict = update(old, new)

    assert verdict.allowed
    assert verdict.warnings[0].startswith("spec.train.algorithm.grpo.groupSize: ")


def test_an_update_answers_for_what_it_adds_only():
    old = run(train__algorithm={"grpo": {"promptsPerStep": 32, "groupSize": 1}})
    new = run(
        train__algorithm={"grpo": {"promptsPerStep": 32, "groupSize": 1}}, actors={"replicas": 0}
    )

    verdict = update(old, new)

    assert not verdict.allowed
    assert "groupSize" not in verdict.message
    assert verdict.message.startswith("spec.actors.replicas: ")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"env": [loader("LD_PRELOAD")]}, {"env": [loader("PYTHONPATH")]}),
        ({"tracking": [files("/one")]}, {"tracking": [files("/two")]}),
        ({"tracking": [files(LONG + "one")]}, {"tracking": [files(LONG + "two")]}),
        ({"actors__labels": {OURS + "one": ""}}, {"actors__labels": {OURS + "two": ""}}),
    ],
)
def test_another_value_that_is_refused_is_no_old_one(old, new):
    assert not create(run(**new)).allowed
    verdict = update(run(**old), run(**new))
    assert not verdict.allowed
    assert verdict.message == create(run(**new)).message

    kept = update(run(**old), run(**old, suspend=True))
    assert kept.allowed


def test_a_run_that_was_too_large_may_be_suspended():
    env = [{"name": f"NOTE_{n}", "value": "x" * 4000} for n in range(20)]
    assert not create(run(env=env)).allowed
    assert update(run(env=env), run(env=env, suspend=True)).allowed


def test_an_object_that_is_being_deleted_may_always_change():
    leaving = run(actors__replicas=0)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"
    assert update(run(), leaving).allowed


def test_deletion_is_never_asked_about():
    assert review({"operation": "DELETE", "object": None, "oldObject": run()}).allowed


def build_endpoint(**spec):
    model = {"uri": "rollout://tiny-adder"}
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutEndpoint",
        "metadata": {"name": "one"},
        "spec": {"model": model, "engine": {"embedded": {}}, **spec},
    }


def test_an_endpoint_that_asks_for_no_key_is_let_in_with_a_word():
    verdict = create(build_endpoint())

    assert verdict.allowed
    [warning] = verdict.warnings
    assert warning.startswith("spec.apiKeys: no key is asked for")


def test_an_endpoint_that_asks_for_what_is_not_built_is_refused_by_name():
    verdict = create(build_endpoint(sampling={"temperature": "0.5"}, queueName="a"))

    assert not verdict.allowed
    queue, sampling = verdict.message.splitlines()
    assert queue.startswith(
        "spec.queueName: a queue for an endpoint is not supported by this version"
    )
    assert sampling.startswith("spec.sampling: sampling of an endpoint's own is not")


def test_a_review_has_no_side_effect_on_what_it_is_given():
    document = run()
    before = json.dumps(document)
    create(document)
    assert json.dumps(document) == before
