"""The attacker takes a runtime that serves namespaces of a team, by a name, or by labels that theirs had or will have."""

from typing import cast

import pytest
from worlds import PLATFORM, SPEC

from rollout_operator.controller.queue import Key
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import NAMESPACES
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.queue.asking import Asker
from rollout_operator.signing import Keyring

SERVED = {"from": "Selector", "selector": {"matchLabels": {"team": "research"}}}
STORAGE = {"metadata": {"name": "standard"}, "provisioner": "x"}
RUN = Key(namespace="mine", name="r", kind="RolloutRun")


class Namespaces:
    """An API server that knows the labels of one namespace, and counts who asks."""

    def __init__(self, labels):
        self.labels, self.num_asked = labels, 0

    async def get(self, resource, namespace, name, *, metadata_only=False):
        assert (resource, namespace, name, metadata_only) == (NAMESPACES, None, "mine", True)
        self.num_asked += 1
        meta = {"name": "mine"} if self.labels is None else {"name": "mine", "labels": self.labels}
        return {"metadata": meta}

    async def list(self, resource, namespace=None, **_):
        annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
        return {"items": [{**STORAGE, "metadata": {"name": "s", "annotations": annotations}}]}


def observer(labels, served=SERVED):
    client = cast("KubeClient", Namespaces(labels))
    store = RunStore()
    meta = {"name": "default", "uid": "runtime", "resourceVersion": "1"}
    store.put_object(
        "ClusterRolloutRuntime", {"metadata": meta, "spec": {"allowedNamespaces": served}}
    )
    meta = {"name": "r", "namespace": "mine", "uid": "run", "resourceVersion": "2"}
    store.put_object("RolloutRun", {"metadata": meta, "spec": SPEC})
    return Observer(
        client=client,
        store=store,
        platform=lambda: PLATFORM,
        asker=Asker(client=client, served=lambda: False),
        keyring=Keyring,
    )


async def gate(looking):
    stored = looking.store.find(RUN)
    return (await looking.check(looking.look(stored), stored)).gate


async def test_a_namespace_with_the_labels_is_served():
    assert await gate(observer({"team": "research", "more": "x"})) is None


@pytest.mark.parametrize("labels", [None, {}, {"team": "teaching"}, {"name": "research"}])
async def test_one_without_them_is_refused_and_looked_at_again(labels):
    blocked = await gate(observer(labels))
    assert blocked.reason == "NotAllowed"
    assert "does not serve namespace 'mine'" in blocked.message
    assert blocked.retry_seconds > 0


async def test_labels_are_those_of_the_moment_at_which_an_attempt_starts():
    looking = observer({})
    assert await gate(looking) is not None
    looking.client.labels = {"team": "research"}
    assert await gate(looking) is None
    looking.client.labels = {"team": "teaching"}
    assert await gate(looking) is not None


async def test_nobody_asks_where_no_runtime_asks_for_labels():
    looking = observer({}, {"from": "All"})
    assert await gate(looking) is None
    assert looking.client.num_asked == 0
