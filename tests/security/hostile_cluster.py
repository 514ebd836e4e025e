"""Broken input for what reads for the operator: ``python hostile_cluster.py PARSER CASES``; not a test itself.

Records and children as somebody with rights in one namespace may write them, reviews as any pod may send them, and
what a run's coordinator, which is a tenant's, may answer or write of its progress.
"""

import asyncio
import base64
import copy
import gzip
import json
import sys
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from hostile_kit import PIECES, blobs, documents, main, texts
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "rollout_operator"))

from worlds import RING, World

from rollout.errors import RolloutError
from rollout_api import names
from rollout_api.v1alpha1.run_status import RunStatus
from rollout_operator.cache.children import parse_child
from rollout_operator.errors import CoordinatorUnreachable, RecordUnverified
from rollout_operator.kube.config import open_outer_session
from rollout_operator.kube.managed_fields import seal
from rollout_operator.run import coordinator
from rollout_operator.run.attempt import CHILDREN_BYTES_MAX, read_record, unpack
from rollout_operator.run.coordinator import HttpCoordinators
from rollout_operator.signing import ALLOWANCES_FILE, CHILDREN_FILE, record_content
from rollout_operator.webhook.review import review
from rollout_operator.webhook.server import WebhookServer

# -- records and children -------------------------------------------------------------------------------

WORDS = st.sampled_from(PIECES) | st.text(max_size=8) | texts("true") | texts("1")
ALLOWANCES = '{"host_paths": [], "host_network": false, "volumes": [], "accounts": {}}'
CHILDREN = gzip.compress(json.dumps([{"kind": "Service", "metadata": {"name": "x"}}]).encode())


def record(labels, annotations, data, packed, *, signed):
    """A ConfigMap as the API server hands it out: any words, but all of them words."""
    owner = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "uid": "u",
        "controller": True,
    }
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "run-1",
            "namespace": "n",
            "uid": "c",
            "resourceVersion": "7",
            "ownerReferences": [owner],
            "labels": {names.LABEL_RUN: "run", names.LABEL_ATTEMPT: "1", **labels},
            "annotations": {names.ANNOTATION_CHILDREN: "Service/x", **annotations},
        },
        "data": {ALLOWANCES_FILE: ALLOWANCES, **data},
        "binaryData": {CHILDREN_FILE: base64.b64encode(packed).decode()},
    }
    if signed:
        signature = RING.sign(record_content(made))
        made["metadata"]["annotations"][names.ANNOTATION_SIGNATURE] = signature
    return made


LABELS = st.dictionaries(
    st.sampled_from([names.LABEL_RUN, names.LABEL_ATTEMPT]) | WORDS, WORDS, max_size=3
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            *(names.ANNOTATION_CHILDREN, names.ANNOTATION_GENERATION, names.ANNOTATION_SIGNATURE),
            *(names.ANNOTATION_APPLIED, names.ANNOTATION_HOLD_UNTIL, names.ANNOTATION_DISRUPTIONS),
        ]
    ),
    WORDS,
    max_size=3,
)
RECORDS = st.builds(
    record,
    LABELS,
    ANNOTATIONS,
    st.dictionaries(st.just(ALLOWANCES_FILE), texts(ALLOWANCES), max_size=1),
    blobs(CHILDREN) | texts("[]").map(lambda text: gzip.compress(text.encode(errors="replace"))),
    signed=st.booleans(),
)


def read_any_record(folder, live):
    del folder
    parse_child("ConfigMap", live)
    try:
        found = read_record(live, RING)
    except RecordUnverified as error:
        raise RolloutError(str(error)) from error
    except ValueError as error:
        raise RolloutError(str(error)) from error
    assert found.config_map == live
    assert len(unpack(base64.b64decode(live["binaryData"][CHILDREN_FILE]))) <= CHILDREN_BYTES_MAX


PATHS = st.sampled_from(
    ["f:metadata", "f:labels", "f:spec", "f:replicas", ".", "f:items"]
) | st.builds("".join, st.tuples(st.sampled_from(["f:", "k:", "v:", ".", ""]), WORDS))
FIELDS = st.recursive(
    st.just({}), lambda inner: st.dictionaries(PATHS, inner, max_size=3), max_leaves=12
)


def child(labels, annotations, fields, items):
    made = record(labels, annotations, {}, b"", signed=False)
    template = {"metadata": {"labels": labels}}
    made |= {"kind": "StatefulSet", "spec": {"replicas": 1, "template": template, "items": items}}
    made = seal(made)
    entry = {"manager": names.MANAGER_CHILDREN, "operation": "Apply", "fieldsV1": fields}
    made["metadata"]["managedFields"] = [entry]
    return made


def read_child(folder, live):
    del folder
    found = parse_child("StatefulSet", live)
    assert found is not None
    parse_child("StatefulSet", live, found)


ITEMS = st.lists(st.dictionaries(WORDS, WORDS | st.integers(), max_size=2) | WORDS, max_size=3)

# -- what a coordinator says ----------------------------------------------------------------------------

WHEN = "2026-01-01T00:00:10Z"
SNAPSHOT = {"name": "step-1", "step": 1, "time": WHEN, "modelURI": "file:///m"}
PROGRESS = {
    "attempt": 1,
    "step": 3,
    "maxSteps": 9,
    "policyVersion": 3,
    "lineage": 0,
    "rewardMean": 0.5,
    "tokensPerSecond": 10.0,
    "bottleneck": "Actors",
    "mismatchKl": 0.1,
    "staleness": 0.5,
    "dispositions": {"consumed": 2},
    "conditions": [{"type": "Learning", "status": "True", "reason": "Yes", "message": "m"}],
    "actorsWanted": 2,
    "group": {"incarnation": 1, "stage": "Running", "message": ""},
    "stuck": {"worker": "actor-0", "message": "waits", "time": WHEN},
    "lastSnapshot": SNAPSHOT,
    "best": {**SNAPSHOT, "metric": "m", "value": 1.5},
    "outcome": {"kind": "Succeeded", "reason": "Done", "message": ""},
    "updateTime": WHEN,
}


@contextmanager
def running(folder):
    del folder
    world = World()
    world.settle()
    assert world.pods
    yield world


def plan_after(world, progress):
    """What the operator plans for a run whose coordinator wrote this."""
    status = {**world.status, "progress": progress}
    try:
        RunStatus.model_validate(status)
    except ValueError as error:
        raise RolloutError(str(error)) from error
    told = copy.copy(world)
    told.status = status
    told.plan()


def answer_of(
    body, head=b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
):
    return head + body


class Caller(HttpCoordinators):
    """Without TLS and tokens: what is fed is what comes back."""

    async def _token(self, uid):
        del uid
        return "t"

    async def _tls(self, observed):
        del observed
        return True


@contextmanager
def tenants_coordinator(folder):
    """Asks a coordinator, which answers with given bytes and closes."""
    del folder
    said = [b""]
    loop = asyncio.new_event_loop()

    async def speak(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said[0])
        writer.close()

    async def opened():
        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        session = open_outer_session()
        return server, await session.__aenter__()

    server, session = loop.run_until_complete(opened())
    port = server.sockets[0].getsockname()[1]
    coordinator.coordinator_url = lambda *_: f"http://127.0.0.1:{port}"
    caller = Caller(client=None, session=session, namespace="n", account="a")
    observed = World().observe()

    def ask(answer):
        said[0] = answer
        try:
            loop.run_until_complete(caller.stop(observed, "Suspended"))
        except CoordinatorUnreachable as error:
            raise RolloutError(str(error)) from error

    yield ask
    loop.run_until_complete(session.close())
    server.close()


def ask_coordinator(ask, answer):
    try:
        ask(answer)
    finally:
        ask(answer_of(b"{}"))  # the next honest answer is taken


# -- reviews ----------------------------------------------------------------------------------------------

OBJECT = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "x", "namespace": "n", "labels": {"a": "b"}},
    "spec": {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 1,
        },
    },
}
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u", "operation": "UPDATE", "object": OBJECT, "oldObject": OBJECT},
}


class Sent:
    """A request, as far as it is read."""

    def __init__(self, body):
        self._body = body

    async def read(self):
        return self._body


async def verdict_of(body):
    """In the place of kopf: takes the objects apart as it does, and asks the same question."""
    request = body["request"]
    objects = {name: dict(request.get(name) or {}) or None for name in ("object", "oldObject")}
    found = review({"operation": request["operation"], **objects})
    return {"response": {"uid": request["uid"], "allowed": found.allowed, "message": found.message}}


@contextmanager
def webhook(folder):
    del folder
    loop = asyncio.new_event_loop()
    server = WebhookServer(certificate=None, ports=None)
    server._answer = verdict_of
    yield lambda body: loop.run_until_complete(server._judge(Sent(body)))


HONEST_REVIEW = json.dumps(REVIEW).encode()


def ask_webhook(judge, body):
    try:
        json.dumps(judge(body))
    except web.HTTPException as error:
        assert error.status < 500, error.reason
        raise RolloutError(error.reason) from error
    finally:
        assert judge(HONEST_REVIEW)["response"]["allowed"], "the next honest call is served"


REVIEWS = documents(REVIEW).map(lambda one: json.dumps(one).encode()) | blobs(HONEST_REVIEW)
HONEST_RECORD = record({}, {}, {}, CHILDREN, signed=True)
PARSERS = {
    "operator-record": (read_any_record, RECORDS, HONEST_RECORD, None),
    "child": (
        read_child,
        st.builds(child, LABELS, ANNOTATIONS, FIELDS, ITEMS),
        child({}, {}, {}, []),
        None,
    ),
    "progress": (plan_after, documents(PROGRESS), PROGRESS, running),
    "coordinator-answer": (
        ask_coordinator,
        blobs(answer_of(b"{}")),
        answer_of(b"{}"),
        tenants_coordinator,
    ),
    "review": (ask_webhook, REVIEWS, HONEST_REVIEW, webhook),
}

if __name__ == "__main__":
    main(PARSERS.__getitem__)
