"""The way in from outside the cluster: an HTTPRoute to this endpoint's address and no other, and what Gateways say of it."""

from copy import deepcopy

import pytest
from endpoint_world import UID, World

from rollout_operator.cache.answers import read_answer
from rollout_operator.endpoint.permitted import EndpointPermit
from rollout_operator.errors import ChildRefused, Forbidden

KEYS = [{"name": "ann", "secretKeyRef": {"name": "keys", "key": "a"}}]
GATEWAY = {"name": "public", "namespace": "edge"}
ROUTE = {"gateways": [GATEWAY], "hostnames": ["chat.example.com"]}
PLACE = ("HTTPRoute", "chat-server")


async def served(**spec):
    world = World(apiKeys=KEYS, **spec)
    world.secrets.add("keys")
    await settle(world)
    return world


async def settle(world):
    for _ in range(2):
        await world.look()
        world.come_up()
    await world.look(2)


def answer(world, accepted="True", resolved="True", parent=GATEWAY):
    """What a Gateway's controller says."""
    conditions = [
        {
            "type": "Accepted",
            "status": accepted,
            "reason": "NotAllowedByListeners",
            "message": "no",
        },
        {
            "type": "ResolvedRefs",
            "status": resolved,
            "reason": "BackendNotFound",
            "message": "none",
        },
    ]
    one = {"parentRef": parent, "controllerName": "example.com/gateway", "conditions": conditions}
    live = world.objects[PLACE]
    live["status"] = {"parents": [one]}
    world._touch(live)


async def test_a_route_leads_to_the_address_of_the_endpoint():
    world = await served(route=ROUTE, requestSeconds=300)
    found = world.objects[PLACE]
    assert found["metadata"]["ownerReferences"][0]["uid"] == UID
    spec = found["spec"]
    assert spec["parentRefs"] == [GATEWAY] and spec["hostnames"] == ["chat.example.com"]
    [rule] = spec["rules"]
    assert rule["backendRefs"] == [{"name": "chat-server", "port": 80}]
    [port] = world.objects["Service", "chat-server"]["spec"]["ports"]
    assert port["port"] == 80
    assert rule["timeouts"] == {"request": "360s"}, "as long as the servers take, and their queue"
    paths = {one["path"]["value"] for one in rule["matches"]}
    assert paths == {"/v1", "/tokenize", "/classify"}, "metrics and health stay inside"


async def test_what_gateways_say_is_said_and_what_serves_inside_goes_on():
    world = await served(route=ROUTE)
    assert world.condition("Routed") == ("False", "RouteNotAccepted")
    answer(world, accepted="False")
    await world.look()
    assert world.condition("Routed") == ("False", "RouteNotAccepted")
    assert "NotAllowedByListeners: no" in world.said("Routed")
    assert world.condition("Ready") == ("True", "Serving")
    answer(world)
    await world.look()
    assert world.condition("Routed") == ("True", "RouteAccepted")


async def test_one_of_two_gateways_that_has_said_nothing_is_waited_for():
    world = await served(route={"gateways": [GATEWAY, {"name": "other"}]})
    answer(world)
    await world.look()
    assert world.condition("Routed") == ("False", "RouteNotAccepted")
    [said] = world.objects[PLACE]["status"]["parents"]
    world.objects[PLACE]["status"]["parents"].append(
        {**said, "parentRef": {"name": "other", "namespace": "ns"}}
    )
    world._touch(world.objects[PLACE])
    await world.look()
    assert world.condition("Routed") == ("True", "RouteAccepted")


async def test_a_route_that_is_taken_out_of_the_spec_goes():
    world = await served(route=ROUTE)
    world.edit(route=None)
    await settle(world)
    assert PLACE not in world.objects
    assert world.condition("Routed") == ("", "")


async def test_a_cluster_without_the_gateway_api_is_named_without_a_loop():
    world = World(route=ROUTE, apiKeys=KEYS)
    world.secrets.add("keys")
    world.served.clear()
    await settle(world)
    assert world.condition("Routed") == ("False", "KindNotServed")
    assert "gateway.networking.k8s.io/v1" in world.said("Routed")
    assert world.condition("Ready") == ("True", "Serving")
    before = world.writes
    await world.look(3)
    assert world.writes == before and world.again is None


async def test_an_api_server_that_refuses_the_route_leaves_what_serves_as_it_is():
    world = await served()
    selected = world.selected()
    world.broken["HTTPRoute"] = Forbidden("apply", 403, "not yours")
    world.edit(route=ROUTE)
    await world.look()
    assert world.selected() == selected and len(world.deployments()) == 1
    del world.broken["HTTPRoute"]
    await settle(world)
    assert PLACE in world.objects


WISHES = {
    "another Service": lambda spec: spec["rules"][0].update(
        backendRefs=[{"name": "bank", "port": 80}]
    ),
    "another namespace": lambda spec: spec["rules"][0]["backendRefs"][0].update(namespace="bank"),
    "an object that is no Service": lambda spec: spec["rules"][0]["backendRefs"][0].update(
        kind="Secret"
    ),
    "nowhere": lambda spec: spec["rules"][0].pop("backendRefs"),
    "a mirror": lambda spec: spec["rules"][0].update(filters=[{"type": "RequestMirror"}]),
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES.keys())
async def test_a_route_is_never_sent_that_leads_to(wish):
    world = await served(route=ROUTE)
    manifest = deepcopy(world.objects[PLACE])
    permit = EndpointPermit(endpoint="chat", namespace="ns", uid=UID)
    permit.check(manifest)
    wish(manifest["spec"])
    with pytest.raises(ChildRefused, match="it is not sent"):
        permit.check(manifest)


@pytest.mark.parametrize("kind", ["HorizontalPodAutoscaler", "ScaledObject"])
async def test_an_autoscaler_is_never_sent_that_scales_something_else(kind):
    how = (
        {"hpa": {}}
        if kind == "HorizontalPodAutoscaler"
        else {"keda": {"serverAddress": "http://p:1"}}
    )
    world = await served(scaling={"maxReplicas": 2, **how})
    manifest = deepcopy(world.objects[kind, "chat-server"])
    permit = EndpointPermit(endpoint="chat", namespace="ns", uid=UID)
    permit.check(manifest)
    manifest["spec"]["scaleTargetRef"] = {"kind": "Deployment", "name": "bank"}
    with pytest.raises(ChildRefused, match="it is not sent"):
        permit.check(manifest)


@pytest.mark.parametrize("status", [{}, {"parents": []}, {"parents": None}, {"conditions": None}])
def test_an_empty_answer_is_none(status):
    live = {"metadata": {"namespace": "ns"}, "spec": {"parentRefs": [GATEWAY]}, "status": status}
    found = read_answer("HTTPRoute", live)
    assert (found.given, found.trouble) == (False, "")
