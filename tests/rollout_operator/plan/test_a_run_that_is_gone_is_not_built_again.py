"""Children vanish before anybody says that their run has, or has ended: the API server is asked before they are made anew."""

from dataclasses import replace

import pytest
from worlds import RING, World

from rollout_operator.errors import Conflict, Terminating
from rollout_operator.run.apply import Applier
from rollout_operator.run.plan.model import Desired
from rollout_operator.run.tls import Authorities

SERVICE = ("Service", "run-learner")
PLAIN = Desired(attempt=1, record="run-1", live={})


class Server:
    """Runs as the API server has them; whatever else is asked for, or written, is noted."""

    def __init__(self, *runs, **status):
        self.runs = runs
        self.status = {"attempt": 1} | status
        self.asked = 0
        self.applied = []

    async def list(self, resource, _namespace, *, fieldSelector):
        assert (resource.plural, fieldSelector) == ("rolloutruns", "metadata.name=run")
        self.asked += 1
        return {"items": [{"metadata": meta, "status": self.status} for meta in self.runs]}

    async def get(self, *_, **__):
        raise LookupError("the record is read: the run is there")

    async def apply(self, body, *_, **__):
        self.applied.append(body)
        raise AssertionError("nothing is made of a run that is gone")


class Known:
    def __init__(self, *children):
        self.found = {(one.kind, one.name): one for one in children}

    def children(self, _namespace, _uid):
        return self.found


def record():
    made = World()._child("ConfigMap", "run-1", 1, None)
    return replace(made, expected="/".join(SERVICE), content="c", signature=RING.sign("c"))


def service():
    return World()._child(*SERVICE, 1, None)


async def ensure(server, *children, attempt=1, wanted=PLAIN):
    world = World(status={"attempt": attempt})
    found = Known(*children)
    made = Applier(
        client=server,
        store=found,
        keys=str,
        keyring=lambda: RING,
        authorities=Authorities(client=server),
    )
    observed = replace(world.observe(), children=found.found)
    await made.ensure(observed, wanted, dict, world.now)


LIVING = {"uid": "uid-0001", "generation": 1}
GONE = [(), ({"uid": "another"},), ({"uid": "uid-0001", "deletionTimestamp": "now"},)]


@pytest.mark.parametrize("runs", GONE)
@pytest.mark.parametrize("children", [(), (record(),)])
async def test_nothing_is_made_when_the_run_is_not_there_any_more(runs, children):
    wanted = PLAIN if children else replace(PLAIN, record=None)
    with pytest.raises(Terminating):
        await ensure(Server(*runs), *children, wanted=wanted)


async def test_what_is_missing_of_a_living_run_is_made():
    server = Server(LIVING)
    with pytest.raises(LookupError):
        await ensure(server, record())
    assert server.asked == 1


FINISHED = {"type": "Finished", "status": "True"}


@pytest.mark.parametrize(
    ("meta", "status"),
    [
        (LIVING | {"generation": 2}, {}),
        (LIVING, {"attempt": 2}),
        (LIVING, {"conditions": [FINISHED]}),
    ],
    ids=["edited", "another attempt", "over"],
)
async def test_nothing_is_made_of_a_run_that_has_gone_on_since_it_was_looked_at(meta, status):
    server = Server(meta, **status)
    with pytest.raises(Conflict):
        await ensure(server, record())
    assert server.applied == []


async def test_nobody_is_asked_while_everything_is_there():
    server = Server()
    await ensure(server, record(), replace(service(), digest="d", owned="d"))
    assert server.asked == 0


async def test_nobody_is_asked_for_the_first_children_of_an_attempt():
    server = Server()
    with pytest.raises(LookupError):
        await ensure(server, record(), attempt=0)
    assert server.asked == 0
