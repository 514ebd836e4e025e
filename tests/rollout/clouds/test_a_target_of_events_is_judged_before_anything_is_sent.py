"""Queues and topics are asked whether a run's events would be taken: each trouble is named, with the policy that grants what lacks."""

from __future__ import annotations

import json
import os

import pytest
from clouds_kit import Refusal
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.clouds import targets
from rollout.errors import SpecError
from rollout.events import asking, senders
from rollout_api.fields.event_targets import parse_event_target

SQS = "sqs://eu-central-1/111122223333/runs"
SNS = "sns://eu-central-1/111122223333/runs"
PUBSUB = "pubsub://a-project/runs"
ENTRY = {"Id": "doctor", "Code": "InvalidParameterValue", "SenderFault": True, "Message": "no"}
MAY = {
    "SendMessageBatch": json.dumps({"Successful": [], "Failed": [ENTRY]}).encode(),
    "PublishBatch": b"<PublishBatchResponse><PublishBatchResult><Successful/><Failed><member><Id>doctor</Id>"
    b"<Code>InvalidParameter</Code><SenderFault>true</SenderFault></member></Failed></PublishBatchResult></PublishBatchResponse>",
    "testIamPermissions": b'{"permissions": ["pubsub.topics.publish"]}',
}


@pytest.fixture
def look(cloud, monkeypatch):
    """Findings of a target at the server, by name."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.url)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", cloud.url.removeprefix("http://"))
    cloud.answers.update(MAY)

    def look(uri, refusals=None, *, sends=False):
        cloud.refusals.update(refusals or {})
        target = parse_event_target(uri)
        assert target is not None
        found = targets.diagnose_target(target, os.environ, sends=sends)
        return {one.name: one for one in found}

    return look


@pytest.mark.parametrize("uri", [SQS, SNS, PUBSUB])
def test_a_target_that_may_be_sent_to_is_well(look, cloud, uri):
    found = look(uri)
    assert {one.state for one in found.values()} == {"ok"}
    assert found["send"].found == "permitted"
    assert not any("publish" in one or "SendMessage " in one for one in cloud.seen)


def test_a_topic_that_may_not_be_published_to_is_told_by_what_one_may(look, cloud):
    cloud.answers["testIamPermissions"] = b"{}"
    found = look(PUBSUB)["send"]
    assert found.state == "broken"
    assert "pubsub.topics.publish" in found.fix
    assert "make the topic" in found.fix


@pytest.mark.parametrize(
    ("uri", "action", "answer"),
    [
        (SQS, "SendMessageBatch", b'{"Successful": [], "Failed": []}'),
        (SQS, "SendMessageBatch", b'{"Failed": [{"Id": "doctor", "Code": "InternalError", "SenderFault": false}]}'),
        (PUBSUB, "testIamPermissions", b"[" * 99999),
        (PUBSUB, "testIamPermissions", b'{"permissions": 7}'),
    ],
)  # fmt: skip
def test_what_does_not_say_is_no_permission(look, cloud, uri, action, answer):
    cloud.answers[action] = answer
    found = look(uri)["send"]
    assert found.state == "lack"
    assert "--send-event" in found.fix


def test_a_request_that_is_refused_whole_for_its_message_says_nothing_of_rights(look):
    said = Refusal(400, "InvalidParameterValue", "DelaySeconds is not valid for this queue type")
    assert look(SQS, {"SendMessageBatch": said})["send"].state == "lack"


def test_a_message_that_was_taken_after_all_is_told():
    told = asking.read_batch({"Successful": [{"Id": "doctor"}]})
    assert (told.state, asking.EVENT_TYPE in told.said) == ("sent", True)


def test_an_event_is_sent_where_that_is_asked_for(look, cloud):
    cloud.answers["publish"] = b'{"messageIds": ["1"]}'
    found = look(PUBSUB, sends=True)["send"]
    assert (found.state, asking.EVENT_TYPE in found.found) == ("ok", True)


def test_closed_egress_and_a_wrong_clock_are_told_first(look, cloud, monkeypatch):
    cloud.skew = -1200
    assert "clock" in look(SQS)["clock"].fix
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    found = look(SQS)
    assert set(found) == {"server", "credentials"}
    assert "open egress" in found["server"].fix


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(senders.LIBRARIES, "sqs", ("a_library_that_is_not_there", "s3"))
    [found] = targets.diagnose_target(parse_event_target(SQS), {})
    assert "rollout-rl[s3]" in found.found


RUN = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: told}}
spec:
  model: {{uri: "rollout://tiny-adder"}}
{storage}
  train:
    algorithm: {{grpo: {{promptsPerStep: 16, groupSize: 8}}}}
    environment: {{builtin: {{name: arithmetic}}}}
    rewards: [{{builtin: {{name: exact-match}}}}]
    maxSteps: 20
  tracking:
  - events: {{uri: "{sqs}"}}
  - events: {{uri: "{pubsub}"}}
"""


@pytest.fixture
def manifest(tmp_path):
    def write(storage=""):
        line = f'  storage: {{uri: "{storage}"}}' if storage else ""
        path = tmp_path / "run.yaml"
        path.write_text(RUN.format(storage=line, sqs=SQS, pubsub=PUBSUB))
        return str(path)

    return write


def run(*arguments):
    return CliRunner().invoke(app, ["cloud", *arguments])


def test_a_manifests_targets_are_judged_beside_its_place(look, cloud, manifest, tmp_path):
    folder = (tmp_path / "objects").as_uri()
    said = run("doctor", "--for", manifest(folder), "--output", "json")
    assert (said.exit_code, list(json.loads(said.stdout))) == (0, [folder, SQS, PUBSUB])
    cloud.refusals["SendMessageBatch"] = Refusal(403, "AccessDenied")
    assert run("doctor", "--for", manifest()).exit_code == 1
    # Whoever is no coordinator sends nothing.
    assert run("doctor", "--for", manifest(folder), "--role", "actor").exit_code == 0


def test_one_target_is_judged_by_its_name(look, cloud):
    assert run("doctor", "--uri", SNS).exit_code == 0
    cloud.answers["testIamPermissions"] = b"{}"
    assert run("doctor", "--uri", PUBSUB).exit_code == 1


def test_an_event_is_sent_to_a_target_only(tmp_path):
    said = run("doctor", "--uri", (tmp_path / "x").as_uri(), "--send-event")
    assert isinstance(said.exception, SpecError)


def test_the_coordinators_policy_has_what_its_events_need_and_a_learners_has_not(manifest):
    both = json.loads(run("policy", "--for", manifest("s3://runs/team")).stdout)
    actions = {one for statement in both["aws"]["Statement"] for one in statement["Action"]}
    assert {"s3:PutObject", "sqs:SendMessage"} <= actions
    assert both["gcp"]["bindings"][0]["permissions"] == ["pubsub.topics.publish"]
    learner = json.loads(
        run("policy", "--for", manifest("s3://runs/team"), "--role", "learner").stdout
    )
    assert "sqs" not in json.dumps(learner)
