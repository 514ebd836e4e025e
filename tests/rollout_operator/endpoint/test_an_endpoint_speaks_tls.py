"""``spec.tls``: servers end TLS with the namespace's own Secret, and the address moves with what serves."""

import json

import pytest
from endpoint_world import World

TLS = {"secretRef": {"name": "chat-tls"}}
KEYS = [{"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}]


async def settle(world):
    await world.look(2)
    world.come_up()
    await world.look(3)


def world_with(**spec):
    world = World(**spec)
    world.secrets |= {"chat-tls", "keys"}
    return world


def server(world):
    template = world.deployments()[world.selected()]["spec"]["template"]["spec"]
    return template, template["containers"][0]


def port(world):
    [found] = world.objects["Service", "chat-server"]["spec"]["ports"]
    return found["port"], found["targetPort"]


async def test_clients_come_by_tls_and_probes_do_not():
    world = world_with(tls=TLS)
    await settle(world)
    template, container = server(world)
    assert {one["name"]: one["containerPort"] for one in container["ports"]} == {
        "api": 8443,
        "inside": 8000,
    }
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert (container[probe]["httpGet"]["port"], container[probe]["httpGet"]["scheme"]) == (
            "inside",
            "HTTP",
        )
    [volume] = [one for one in template["volumes"] if one["name"] == "tls"]
    assert volume["secret"]["secretName"] == "chat-tls"
    assert [one["key"] for one in volume["secret"]["items"]] == ["tls.crt", "tls.key"]
    assert port(world) == (443, "api")
    assert world.status["url"] == "https://chat-server.ns.svc/v1"
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize("keys", [[], KEYS])
async def test_what_is_not_encrypted_is_for_pods_of_the_namespace_only(keys):
    world = world_with(tls=TLS, apiKeys=keys)
    await settle(world)
    secure, plain = world.objects["NetworkPolicy", "chat-server"]["spec"]["ingress"]
    assert secure["ports"] == [{"port": 8443, "protocol": "TCP"}]
    assert ("from" in secure) == (not keys)
    assert plain == {
        "ports": [{"port": 8000, "protocol": "TCP"}],
        "from": [{"podSelector": {}}],
    }


async def test_the_address_stays_as_it_is_until_servers_with_tls_answer():
    world = world_with()
    await settle(world)
    old = world.selected()
    world.edit(tls=TLS)
    await world.look(3)
    assert (world.selected(), port(world)) == (old, (80, "api"))
    assert world.status["url"] == "http://chat-server.ns.svc/v1"
    world.come_up()
    await world.look(3)
    assert world.selected() != old
    assert port(world) == (443, "api")
    world.edit(tls=None)
    await world.look(3)
    assert (port(world), world.status["url"]) == ((443, "api"), "https://chat-server.ns.svc/v1")
    world.come_up()
    await world.look(3)
    assert (world.selected(), port(world)) == (old, (80, "api"))


async def test_a_secret_that_is_not_there_is_named_and_what_serves_goes_on():
    world = World()
    await settle(world)
    world.edit(tls=TLS)
    await world.look(2)
    assert world.condition("Stalled") == ("True", "ReferenceNotFound")
    assert "Secret 'chat-tls' does not exist" in world.said("Stalled")
    assert world.condition("Available") == ("True", "Serving")


async def test_a_key_of_tls_is_mounted_in_no_container_but_the_gateways():
    runtime = {"modelCache": {"hostPath": {"path": "/models"}}}
    world = world_with(runtime=runtime, tls=TLS, engine={"vllm": {}})
    await settle(world)
    template, _ = server(world)
    everyone = [*template["initContainers"], *template["containers"]]
    having = [one["name"] for one in everyone if "rollout/tls" in json.dumps(one["volumeMounts"])]
    assert having == ["server"]
