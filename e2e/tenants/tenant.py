"""A namespace as the example for teams makes it, an editor of it and nothing else, and the pods of its runs."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import yaml
from chart_installation import Installation
from kubernetes import client, config
from people import Answer, Person
from puppets import Puppets
from stage import World

from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY
from runs import build_run
from waiting import wait_until

EXAMPLE = REPOSITORY / "manifests" / "tenant" / "tenant.yaml"
RUN = "arithmetic"
NAMESPACES = "/api/v1/namespaces"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces"
QUIET = {"limits": {"activeSeconds": 36_000}}
FORBIDDEN = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """`me` may edit the namespace; `world` is what the administrator sees of it."""

    me: Person
    world: World
    installation: Installation

    @property
    def namespace(self) -> str:
        """Mine."""
        return self.me.namespace

    @property
    def kubectl(self) -> Kubectl:
        """The administrator's, in my namespace."""
        return self.world.kubectl

    def start(self, name: str = RUN, spec: dict[str, Any] | None = None) -> dict[str, Any]:
        """A run of mine that works, as it is then."""
        self.make(name, spec)
        self.world.wait_for("Ready", "True", "Running", name)
        return self.world.run(name)

    def make(self, name: str = RUN, spec: dict[str, Any] | None = None) -> Answer:
        """A run of mine, asked for."""
        answer = self.try_to_make(name, spec)
        assert answer.done, answer.words
        return answer

    def try_to_make(self, name: str = RUN, spec: dict[str, Any] | None = None) -> Answer:
        """As ``make``, whatever becomes of it."""
        return self.me.create(build_run(name, QUIET | (spec or {})))

    def record(self, name: str = RUN) -> dict[str, Any]:
        """What the operator noted of a run's attempt."""
        return self.kubectl.get("configmap", self.world.run(name)["status"]["configuration"])

    def as_pod(self, role: str, name: str = RUN) -> Person:
        """A run's service account, which who may edit the namespace may be."""
        return self.installation.account(f"{name}-{role}", self.namespace)


@contextmanager
def housed(installation: Installation, user: str) -> Iterator[Tenant]:
    """A tenant for a block. Nobody waits for the end of their namespace: there are no nodes that its pods would hold."""
    name = f"team-{secrets.token_hex(4)}"
    mine = replace(installation.kubectl, namespace=name)
    boss = installation.person(namespace=name)
    for manifest in example(name, "Namespace", "RoleBinding"):
        place = NAMESPACES if manifest["kind"] == "Namespace" else f"{BINDINGS}/{name}/rolebindings"
        answer = boss.send("POST", place, manifest)
        assert answer.done, answer.words
    wait_until(lambda: boss.get("ServiceAccount", "default").done, f"{name} has an account")
    api = client.CoreV1Api(config.new_client_from_config(str(mine.kubeconfig)))
    puppets = Puppets(api=api, namespace=name)
    puppets.start()
    me = installation.person(user, name, namespace=name)
    wait_until(lambda: me.get("RolloutRun", RUN).status != FORBIDDEN, f"{user} may do something")
    world = World(kubectl=mine, puppets=puppets, operator=installation.operator)
    try:
        yield Tenant(me=me, world=world, installation=installation)
    finally:
        puppets.stop()
        boss.send("DELETE", f"{NAMESPACES}/{name}")


def example(namespace: str, *kinds: str) -> list[dict[str, Any]]:
    """What the repository's example gives a team, of these kinds."""
    found = yaml.safe_load_all(EXAMPLE.read_text().replace("team-a", namespace))
    return [one for one in found if one["kind"] in kinds]
