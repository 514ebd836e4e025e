"""A changed endpoint is measured at its own servers before clients reach them; one that misses a bar never serves."""

import json

import pytest
from endpoint_world import OTHER, UID, World

from rollout_api import names

MARK = names.ANNOTATION_FAILED
GATE = {"metric": "accuracy", "lowerBound": "0.5", "action": "StopPromotion"}
BARRED = {"suite": {"builtin": {"name": "arithmetic"}}, "maxPrompts": 20, "gate": GATE}
TOLD = {"name": "told", "suite": {"builtin": {"name": "gsm8k"}}}
GATED = {"evaluations": [BARRED, TOLD]}
GOOD, BAD = (0.9, 0.8), (0.4, 0.3)


@pytest.fixture
async def served():
    """An endpoint that serves, gated from now on, whose next model is up and about to be measured."""
    world = World(replicas=2)
    await world.look(2)
    world.come_up()
    await world.look(2)
    world.edit(promotion=GATED, model=OTHER)
    await world.look(2)
    assert not world.jobs, "nobody answers yet"
    world.come_up()
    await world.look()
    return world


def revisions(world):
    return {one["name"]: one for one in world.status["revisions"]}


async def test_all_its_ready_servers_are_asked_at_an_address_of_their_own_while_the_old_ones_serve(
    served,
):
    [job] = served.jobs.values()
    old, new = served.selected(), next(iter(served.deployments().keys() - {served.selected()}))
    candidate = served.objects["Service", "chat-candidate"]["spec"]["selector"]
    assert candidate[names.LABEL_REVISION] == new
    assert job["metadata"]["name"].startswith(f"measure-{UID}-")
    assert job["metadata"]["ownerReferences"][0]["uid"] == UID
    order = json.loads(served.order()["value"])
    assert order["url"] == "http://chat-candidate.ns.svc:8000/v1"
    assert [one["name"] for one in order["evaluations"]] == ["arithmetic", "told"]
    await served.look()
    assert served.condition("Progressing") == ("True", "Evaluating")
    assert served.said("Progressing").endswith(f"; {old} serves meanwhile")
    assert served.condition("Available") == ("True", "Serving")
    assert "Evaluating" in served.reasons()
    writes = served.writes
    await served.look(3)
    assert (len(served.jobs), served.writes) == (1, writes)


async def test_one_that_passes_serves_with_its_figures_in_status_and_event(served):
    old = served.selected()
    served.find(GOOD, BAD)
    await served.look(3)
    new = served.selected()
    assert new != old
    assert list(served.deployments()) == [new]
    assert ("Service", "chat-candidate") not in served.objects
    first, second = revisions(served)[new]["measured"]
    assert (first["name"], first["low"], first["lowerBound"], first["passed"]) == (
        "arithmetic",
        "0.8",
        "0.5",
        True,
    )
    assert "lowerBound" not in second
    assert "arithmetic: accuracy 0.900 [0.800, 0.900] of 20 prompts, the bar is 0.5" in str(
        served.events[-1]
    )
    assert served.condition("Ready") == ("True", "Serving")


async def test_a_worse_one_is_refused_with_the_figure_and_the_old_one_goes_on(served):
    old = served.selected()
    served.find(BAD, GOOD)
    await served.look(3)
    [new] = served.deployments().keys() - {old}
    assert served.selected() == old
    assert served.deployments()[new]["spec"]["replicas"] == 0
    assert ("Service", "chat-candidate") not in served.objects
    assert served.condition("Progressing") == ("False", "EvaluationFailed")
    assert "accuracy 0.400 [0.300, 0.400] of 20 prompts, the bar is 0.5" in served.said(
        "Progressing"
    )
    assert served.said("Progressing").endswith(f"{old} goes on serving")
    assert served.condition("Stalled") == ("True", "EvaluationFailed")
    assert served.condition("Available") == ("True", "Serving")
    assert revisions(served)[new]["measured"][0]["passed"] is False
    writes = served.writes
    await served.look(3)
    assert served.writes == writes


async def test_one_that_is_known_to_miss_the_bar_has_no_servers_made_for_it(served):
    old = served.selected()
    served.find(BAD, GOOD)
    await served.look(3)
    served.edit(model={"uri": "rollout://tiny-adder"})
    await served.look(3)
    assert list(served.deployments()) == [old]
    served.edit(model=OTHER)
    await served.look(3)
    assert list(served.deployments()) == [old]
    assert served.condition("Progressing") == ("False", "EvaluationFailed")
    assert served.selected() == old


async def test_a_lower_bar_brings_it_back_without_asking_again(served):
    served.find(BAD, GOOD)
    await served.look(3)
    lower = {**BARRED, "gate": {**GATE, "lowerBound": "0.2"}}
    served.edit(promotion={"evaluations": [lower, TOLD]})
    await served.look(2)
    assert {one["spec"]["replicas"] for one in served.deployments().values()} == {2}
    served.come_up()
    await served.look(3)
    [name] = served.deployments()
    assert served.selected() == name
    assert MARK not in served.deployments()[name]["metadata"]["annotations"]
    assert len(served.jobs) == 1


async def test_other_questions_are_asked_of_it_anew(served):
    served.find(BAD, GOOD)
    await served.look(3)
    served.edit(promotion={"evaluations": [{**BARRED, "maxPrompts": 40}]})
    await served.look(2)
    served.come_up()
    await served.look()
    assert len(served.jobs) == 2
    served.find(GOOD)
    await served.look(3)
    assert served.condition("Ready") == ("True", "Serving")


async def test_a_warning_gate_holds_nobody_back(served):
    served.edit(promotion={"evaluations": [{**BARRED, "gate": {**GATE, "action": "Warn"}}]})
    await served.look()
    served.find(BAD)
    await served.look(3)
    [name] = served.deployments()
    assert served.selected() == name
    assert revisions(served)[name]["measured"][0]["passed"] is False


async def test_one_that_cannot_be_measured_is_given_up_by_what_its_pod_says(served):
    old = served.selected()
    served.end_job("ModelNotFound: HTTP 503", failed=True)
    await served.look(3)
    assert served.selected() == old
    assert served.condition("Progressing") == ("False", "EvaluationFailed")
    assert "nothing is known by Job measure-" in served.said("Progressing")
    assert "HTTP 503" in served.said("Progressing")


@pytest.mark.parametrize(
    "answer", ["", "[]", "{}", "null", '[{"name": "other", "metric": "accuracy"}]', "\x00" * 40]
)
async def test_an_answer_that_is_none_passes_nobody(served, answer):
    old = served.selected()
    served.end_job(answer)
    await served.look(3)
    assert served.selected() == old
    assert served.condition("Progressing") == ("False", "EvaluationFailed")


async def test_figures_of_another_metric_or_without_an_interval_are_below_every_bar(served):
    old = served.selected()
    named = [
        {"name": "arithmetic", "metric": "pass@1", "value": "1.0", "low": "1.0", "passed": True}
    ]
    served.end_job(json.dumps([*named, {"name": "told", "metric": "accuracy", "passed": True}]))
    await served.look(3)
    assert served.selected() == old
    assert served.condition("Progressing") == ("False", "EvaluationFailed")


async def test_the_first_of_an_endpoint_has_no_address_before_it_passes():
    world = World(promotion=GATED)
    await world.look(2)
    assert ("Service", "chat-server") not in world.objects
    world.come_up()
    await world.look(2)
    assert world.condition("Available") == ("False", "NoServerReady")
    assert world.said("Progressing").endswith("nothing serves meanwhile")
    world.find(GOOD, GOOD)
    await world.look(2)
    [name] = world.deployments()
    assert world.selected() == name
    assert world.condition("Ready") == ("True", "Serving")


async def test_the_first_that_misses_its_bar_is_taken_away_and_stays_so():
    world = World(promotion=GATED)
    await world.look()
    world.come_up()
    await world.look()
    world.find(BAD, GOOD)
    await world.look(4)
    [live] = world.deployments().values()
    assert live["spec"]["replicas"] == 0
    assert ("Service", "chat-server") not in world.objects
    assert world.said("Progressing").endswith("nothing serves")
    world.edit(promotion={})
    await world.look(2)
    world.come_up()
    await world.look(2)
    assert world.condition("Ready") == ("True", "Serving")


async def test_what_serves_already_is_not_asked_when_a_bar_is_set():
    world = World()
    await world.look()
    world.come_up()
    await world.look(2)
    world.edit(promotion=GATED)
    await world.look(3)
    assert not world.jobs
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_candidate_without_servers_waits_and_is_not_taken_for_good():
    world = World(promotion=GATED, replicas=0)
    await world.look(2)
    world.come_up()
    await world.look(3)
    assert not world.jobs
    assert ("Service", "chat-server") not in world.objects


async def test_the_asking_pod_is_no_server_and_has_the_first_key_by_reference_only():
    key = {"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}
    world = World(promotion=GATED, apiKeys=[key])
    world.secrets.add("keys")
    await world.look()
    world.come_up()
    await world.look()
    [job] = world.jobs.values()
    template = job["spec"]["template"]
    assert not template["metadata"]["labels"].keys() & {names.LABEL_ENDPOINT, names.LABEL_REVISION}
    pod = template["spec"]
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    given = {one["name"]: one for one in container["env"]}
    assert given["ROLLOUT_MEASURE_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "keys", "key": "ann"}
    }
    assert job["spec"]["activeDeadlineSeconds"] == 3600


async def test_dollars_in_the_order_are_not_the_kubelets():
    named = {**TOLD, "name": "$(HOSTNAME)"}
    world = World(promotion={"evaluations": [named]})
    await world.look()
    world.come_up()
    await world.look()
    assert "$$(HOSTNAME)" in world.order()["value"]
