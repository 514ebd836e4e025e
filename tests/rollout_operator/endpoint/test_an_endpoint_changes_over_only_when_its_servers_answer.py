"""A changed endpoint: its servers come up beside those that serve, the address moves when they answer, and back when they never do.

The operator that looks remembers nothing: each look is that of one that was started a moment ago.
"""

import pytest
from endpoint_world import LATE, OTHER, World

from rollout_api import names
from rollout_operator.errors import Forbidden

MARK = names.ANNOTATION_FAILED


@pytest.fixture
async def served():
    world = World(replicas=2)
    await world.look(2)
    world.come_up()
    await world.look(2)
    return world


async def test_a_new_endpoint_has_servers_an_address_a_policy_a_budget_and_an_account():
    world = World()
    await world.look()

    kinds = sorted(kind for kind, _ in world.objects)
    assert kinds == [
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    ]
    assert world.condition("Available") == ("False", "NoServerReady")
    assert world.condition("Progressing") == ("True", "RevisionCreated")
    assert world.status["url"] == "http://chat-server.ns.svc/v1"
    assert world.reasons() == ["RevisionCreated"]


async def test_an_endpoint_whose_servers_answer_says_so_once_and_is_left_alone(served):
    [name] = served.deployments()
    assert served.selected() == name
    assert served.condition("Available") == ("True", "Serving")
    assert served.condition("Progressing") == ("True", "RevisionServes")
    assert served.condition("Ready") == ("True", "Serving")
    assert (served.status["replicas"], served.status["readyReplicas"]) == (2, 2)
    assert served.status["currentRevision"] == name
    [revision] = served.status["revisions"]
    assert (revision["modelURI"], revision["weight"]) == ("rollout://tiny-adder", 100)
    assert served.reasons() == ["RevisionCreated", "RevisionServes"]
    before = served.writes
    await served.look(3)
    assert served.writes == before


async def test_another_model_serves_when_all_its_servers_answer_and_the_old_ones_go_after_that(
    served,
):
    [old] = served.deployments()
    served.edit(model=OTHER)
    await served.look()
    [new] = served.deployments().keys() - {old}
    assert served.selected() == old
    served.come_up(new, ready=1)
    await served.look(2)
    assert (served.selected(), len(served.deployments())) == (old, 2)
    assert served.condition("Available") == ("True", "Serving")
    assert (
        served.said("Progressing") == f"1 of 2 servers of {new} are ready; {old} serves meanwhile"
    )

    served.come_up(new)
    await served.look()
    assert served.selected() == new
    assert old in served.deployments(), "nodes may not have heard of the switch yet"
    assert served.again is not None
    await served.look(2)

    assert list(served.deployments()) == [new]
    assert served.status["currentRevision"] == new
    assert [one["name"] for one in served.status["revisions"]] == [new, old]
    assert [one["weight"] for one in served.status["revisions"]] == [100, 0]


async def test_what_does_not_come_up_in_time_is_given_up_and_the_old_one_goes_on(served):
    [old] = served.deployments()
    served.edit(model=OTHER)
    await served.look()
    [new] = served.deployments().keys() - {old}
    served.be_late(new)
    await served.look(2)

    given_up = served.deployments()[new]
    assert (given_up["spec"]["replicas"], given_up["metadata"]["annotations"][MARK]) == (0, LATE)
    served.come_up()
    await served.look(3)
    assert (served.selected(), given_up["spec"]["replicas"]) == (old, 0)
    assert served.condition("Available") == ("True", "Serving")
    assert served.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert served.condition("Stalled") == ("True", "ProgressDeadlineExceeded")
    assert served.said("Progressing") == f"{new}: {LATE}; {old} goes on serving"
    assert served.reasons().count("ProgressDeadlineExceeded") == 1

    served.edit(model={"uri": "rollout://tiny-adder"})
    await served.look(2)
    assert list(served.deployments()) == [old]
    assert served.condition("Ready") == ("True", "Serving")


async def test_a_revision_that_was_given_up_is_tried_again_when_its_deployment_is_deleted(served):
    [old] = served.deployments()
    served.edit(model=OTHER)
    await served.look()
    [new] = served.deployments().keys() - {old}
    served.be_late(new)
    await served.look(2)
    del served.objects["Deployment", new]
    await served.look()
    served.come_up(new)
    await served.look(3)
    assert (served.selected(), list(served.deployments())) == (new, [new])


async def test_the_first_servers_may_be_late_and_still_serve():
    world = World()
    await world.look()
    [name] = world.deployments()
    world.be_late(name)
    await world.look()
    assert world.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert world.deployments()[name]["spec"]["replicas"] == 1
    world.come_up()
    await world.look(2)
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_change_of_mind_leaves_what_serves_and_drops_what_was_coming(served):
    [old] = served.deployments()
    served.edit(model=OTHER)
    await served.look()
    served.edit(model={"uri": "rollout://tiny-llama"})
    await served.look()
    assert len(served.deployments()) == 2
    assert served.selected() == old
    assert old in served.deployments()


async def test_scaling_makes_no_revision_and_reaches_what_serves_while_another_comes(served):
    [old] = served.deployments()
    served.edit(replicas=3)
    await served.look()
    assert served.deployments()[old]["spec"]["replicas"] == 3
    served.come_up()
    served.edit(model=OTHER)
    await served.look()
    served.edit(replicas=4)
    await served.look()
    assert {one["spec"]["replicas"] for one in served.deployments().values()} == {4}
    assert served.selected() == old


async def test_a_suspended_endpoint_has_an_address_and_no_servers_and_comes_back(served):
    [name] = served.deployments()
    served.edit(suspend=True)
    await served.look(2)
    assert served.deployments() == {}
    assert served.selected() == name
    assert served.condition("Available") == ("False", "Suspended")
    assert served.condition("Suspended") == ("True", "Suspended")
    served.edit(suspend=False)
    await served.look()
    served.come_up()
    await served.look(2)
    assert served.condition("Ready") == ("True", "Serving")


async def test_a_broken_spec_can_be_suspended(served):
    served.edit(suspend=True, model={"uri": "s3://bucket/m"})
    await served.look(2)
    assert served.deployments() == {}


async def test_no_servers_by_scale_is_told_as_that(served):
    served.edit(replicas=0)
    await served.look()
    served.come_up()
    await served.look()
    assert served.condition("Available") == ("False", "ScaledToZero")
    assert "Stalled" not in {one["type"] for one in served.status["conditions"]}


async def test_no_more_revisions_are_kept_than_wanted_and_all_that_have_servers(served):
    served.edit(revisionHistoryLimit=2)
    for model in ("tiny-qwen2", "tiny-llama", "tiny-agent"):
        served.edit(model={"uri": f"rollout://{model}"})
        await served.look()
        served.come_up()
        await served.look(3)
    kept = [one["modelURI"] for one in served.status["revisions"]]
    assert kept == ["rollout://tiny-agent", "rollout://tiny-llama"]


async def test_a_secret_that_is_not_there_is_named_and_what_serves_goes_on(served):
    [old] = served.deployments()
    reference = {"name": "keys", "key": "ann"}
    served.edit(apiKeys=[{"name": "ann", "secretKeyRef": reference}])
    await served.look()
    assert served.condition("Stalled") == ("True", "ReferenceNotFound")
    assert "Secret 'keys' does not exist in namespace ns" in served.said("Stalled")
    assert served.condition("Available") == ("True", "Serving")
    served.secrets.add("keys")
    await served.look()
    assert len(served.deployments()) == 2
    assert old in served.deployments()


def build_pod(revision, state, last=None):
    container = {"name": "server", "state": state, "lastState": last or {}}
    meta = {"name": f"{revision}-x", "labels": {names.LABEL_REVISION: revision}}
    return {"metadata": meta, "status": {"containerStatuses": [container]}}


async def test_why_servers_do_not_come_up_is_told_with_their_own_words_and_kept(served):
    [old] = served.deployments()
    served.edit(model=OTHER)
    await served.look()
    [new] = served.deployments().keys() - {old}
    served.pods = [
        build_pod(old, {"running": {}}, {"terminated": {"exitCode": 1, "message": "long ago"}}),
        build_pod(new, {"waiting": {"reason": "ContainerCreating"}}),
    ]
    await served.look()
    assert served.said("Progressing").startswith(f"0 of 2 servers of {new} are ready; {old} serves")
    assert served.again == 10.0
    ended = {"terminated": {"exitCode": 2, "message": "SpecError: no model\x1b[31m\nthere"}}
    served.pods = [build_pod(new, {"waiting": {"reason": "CrashLoopBackOff"}}, ended)]
    await served.look()
    told = f"pod {new}-x, container server: CrashLoopBackOff: SpecError: no model"
    assert told in served.said("Progressing")
    assert "\x1b" not in served.said("Progressing")

    served.be_late(new)
    await served.look()
    served.pods = []
    await served.look(2)
    assert told in served.said("Stalled")


async def test_an_image_that_cannot_be_pulled_and_a_node_that_is_nowhere_are_told():
    world = World()
    await world.look()
    [name] = world.deployments()
    pull = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    world.pods = [build_pod(name, pull)]
    await world.look()
    assert "container server: ImagePullBackOff: not found" in world.said("Progressing")
    nowhere = {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/2 nodes"}
    world.pods = [build_pod(name, {})]
    world.pods[0]["status"]["conditions"] = [nowhere]
    await world.look()
    assert "Unschedulable: 0/2 nodes" in world.said("Progressing")
    world.pods = [build_pod(name, {"waiting": {"reason": "A", "message": "x" * 100_000}})]
    await world.look()
    assert len(world.said("Progressing")) < 600


async def test_what_the_api_server_forbids_is_told_and_tried_again():
    world = World()
    world.broken["Deployment"] = Forbidden("apply deployments", 403, "may not")
    await world.look()
    assert world.condition("Stalled") == ("True", "Forbidden")
    world.broken.clear()
    await world.look()
    assert len(world.deployments()) == 1


async def test_a_stranger_who_takes_servers_or_turns_the_address_away_is_put_right(served):
    [name] = served.deployments()
    service = served.objects["Service", "chat-server"]
    service["spec"]["selector"] = {names.LABEL_REVISION: "mine"}
    served._touch(service)
    await served.look(2)
    assert served.selected() == name
    del served.objects["Deployment", name]
    await served.look()
    assert list(served.deployments()) == [name]


@pytest.mark.parametrize("crash", range(6))
async def test_an_operator_that_dies_at_any_write_leaves_something_that_the_next_one_goes_on_with(
    served, crash
):
    """The death is a write that raises; what was written before it stays."""
    [old] = served.deployments()
    served.edit(model=OTHER, replicas=3)
    deaths = iter([crash])
    store, merge = served._store, served.merge
    left = [next(deaths)]

    def die():
        left[0] -= 1
        if left[0] == 0:
            raise SystemError("killed")

    def stored(*arguments):
        die()
        return store(*arguments)

    async def merged(*arguments, **named):
        die()
        return await merge(*arguments, **named)

    served._store, served.merge = stored, merged
    for _ in range(8):
        try:
            await served.look()
        except SystemError:
            continue
        assert served.selected() in served.deployments()
        served.come_up()
    [new] = served.deployments()
    assert (new != old, served.selected()) == (True, new)
    assert served.condition("Ready") == ("True", "Serving")
    assert served.deployments()[new]["spec"]["replicas"] == 3
