"""One pod of the learner: asks for its place in the group, runs torchrun there, says how that ended."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rollout.common.grace_period import working_seconds
from rollout.errors import Fenced, RolloutError, SpecError
from rollout.learner.config.ranks import RankPlace, plan_ranks
from rollout.pods.child import run_child
from rollout.pods.orders import config_path
from rollout.pods.telling import Telling
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.rendezvous import RENDEZVOUS_VARIABLE
from rollout_api.worker import WorkerOrder

log = logging.getLogger(__name__)

POD_NAME, POD_IP, INCARNATION = "ROLLOUT_POD_NAME", "ROLLOUT_POD_IP", "ROLLOUT_INCARNATION"
MEETING_PORT, MEETING_PORT_DEFAULT = "ROLLOUT_MEETING_PORT", "29400"
"""Where rank 0's pod listens for the other nodes; to be set where pods share a network."""
ASK_SECONDS = 5.0
"""How long one question for a place waits at the coordinator; a signal is heeded between two."""
STAY_SECONDS = 5.0
ANSWER_SECONDS_MAX = 5.0
"""How long a pod that was told to go waits to hear whether it saves first."""
TOLD_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Who this pod is. ``nonce`` names this start of its process."""

    worker: str
    group: int
    rank: int
    address: str
    nonce: str

    def join(self) -> m.Join:
        """The question for a place."""
        return m.Join(
            group=self.group,
            rank=self.rank,
            address=self.address,
            nonce=self.nonce,
            wait_seconds=ASK_SECONDS,
        )

    def stay(self, rendezvous: str) -> m.Stay:
        """The word that its ranks work."""
        return m.Stay(
            group=self.group,
            rank=self.rank,
            address=self.address,
            nonce=self.nonce,
            rendezvous=rendezvous,
        )

    def leaving(self, seconds: float) -> m.Leaving:
        """The word that it was told to go, and how long its ranks may save."""
        return m.Leaving(
            group=self.group,
            rank=self.rank,
            nonce=self.nonce,
            seconds=seconds,
        )

    def left(self, code: int) -> m.Left:
        """The word that its ranks have ended."""
        return m.Left(
            group=self.group,
            rank=self.rank,
            nonce=self.nonce,
            ok=code == 0,
            message="" if code == 0 else f"exit code {code}; see the log of {self.worker}",
        )


def find_node(environment: Mapping[str, str]) -> Node:
    """Who this pod is, by the environment that its template gives it. Raises SpecError."""
    host, port = _need(environment, POD_IP), environment.get(MEETING_PORT, MEETING_PORT_DEFAULT)
    group = _need(environment, INCARNATION)
    if not group.isdigit() or int(group) < 1:
        raise SpecError(f"{INCARNATION} is {group!r}; expected a whole number from 1")
    return Node(
        worker=_need(environment, POD_NAME),
        group=int(group),
        rank=ordinal_of(environment),
        address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        nonce=secrets.token_hex(16),
    )


def ordinal_of(environment: Mapping[str, str]) -> int:
    """A pod's number in its StatefulSet. Raises SpecError."""
    name = _need(environment, POD_NAME)
    found = re.search(r"-(\d+)$", name)
    if found is None:
        raise SpecError(
            f"{POD_NAME} is {name!r}; expected a StatefulSet's pod, such as run-learner-0"
        )
    return int(found.group(1))


def _need(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise SpecError(f"{name} is not set: the pod's template must set it (downward API)")
    return value


def work_in_group(
    order: WorkerOrder,
    node: Node,
    environment: Mapping[str, str],
    told: threading.Event,
    telling: Telling | None = None,
) -> None:
    """Run this pod's ranks once and report how they ended. Raises CoordinatorError when nobody answers."""
    client = CoordinatorClient.open(order, "learner").as_worker(node.worker)
    try:
        joined = _join(client, node, told)
        if joined is not None:
            _run_ranks(client, order, node, joined, environment, told, telling)
    except Fenced as error:
        log.warning("this pod's group is over: %s", error)
    finally:
        client.close()


def _join(client: CoordinatorClient, node: Node, told: threading.Event) -> m.Joined | None:
    """The place, or None when there is nothing to do."""
    said = ""
    while not told.is_set():
        joined = client.call(routes.JOIN, node.join())
        if joined.stop is not None:
            log.info("no work for this learner reason=%s", joined.stop)
            return None
        if joined.rendezvous:
            return joined
        if joined.waiting.partition(" for ")[0] != said:
            said = joined.waiting.partition(" for ")[0]
            log.info("rank %d waits: %s", node.rank, joined.waiting)
    return None


def _run_ranks(
    client: CoordinatorClient,
    order: WorkerOrder,
    node: Node,
    joined: m.Joined,
    environment: Mapping[str, str],
    told: threading.Event,
    telling: Telling | None,
) -> None:
    learner = order.spec.learner
    place = RankPlace(
        num_nodes=learner.nodes,
        node_rank=node.rank,
        address=joined.addresses[0],
    )
    module, arguments = plan_ranks(str(config_path(order)), learner.processes_per_node, place)
    meeting = {**environment, RENDEZVOUS_VARIABLE: joined.rendezvous}
    log.info("rank %d starts group=%d", node.rank, node.group)
    over, end = threading.Event(), threading.Event()
    alone = threading.Event()
    with (
        _staying(client, node, joined.rendezvous, over, alone),
        _leaving(client, order, node, told, end, alone),
    ):
        code = run_child(module, arguments, meeting, end, over, telling)
    if not over.is_set():
        client.call(routes.LEFT, node.left(0 if told.is_set() else code))


@contextmanager
def _leaving(
    client: CoordinatorClient,
    order: WorkerOrder,
    node: Node,
    told: threading.Event,
    end: threading.Event,
    alone: threading.Event,
) -> Iterator[None]:
    """Once this pod is ``told`` to go, set ``end`` for its ranks: now, or when the time for saving is over.

    A notice reaches one pod, and often not the one of rank 0: the coordinator stops all ranks at one boundary. Where
    the coordinator has gone, too, as with a run that was deleted, nobody stops them: this pod is ``alone``.
    """
    ended = threading.Event()

    def heed() -> None:
        while not told.is_set():
            if ended.wait(TOLD_POLL_SECONDS):
                return
        client.tell_to_go()
        until = time.monotonic() + working_seconds(order.learner_grace_seconds)
        if _may_save(order, node, until):
            log.info("told to go: rank %d works on to the next boundary", node.rank)
            while not (ended.wait(TOLD_POLL_SECONDS) or alone.is_set()):
                if time.monotonic() > until:
                    break
        end.set()

    heeding = threading.Thread(target=heed, daemon=True, name="heeding")
    heeding.start()
    try:
        yield
    finally:
        ended.set()


def _may_save(order: WorkerOrder, node: Node, until: float) -> bool:
    """What the coordinator says to that; no, when it does not say so within seconds."""
    answers: list[bool] = []

    def ask() -> None:
        client = CoordinatorClient.open(order, "learner", patience_seconds=ANSWER_SECONDS_MAX)
        try:
            word = node.leaving(until - time.monotonic())
            answers.append(client.as_worker(node.worker).call(routes.LEAVING, word).saves)
        except RolloutError as error:
            log.warning("cannot save before leaving: %s", error)
        finally:
            client.close()

    asking = threading.Thread(target=ask, daemon=True, name="leaving")
    asking.start()
    asking.join(ANSWER_SECONDS_MAX)
    return answers == [True]


@contextmanager
def _staying(
    client: CoordinatorClient,
    node: Node,
    rendezvous: str,
    over: threading.Event,
    alone: threading.Event,
) -> Iterator[None]:
    """Say every few seconds that the ranks work; ``over`` is set when their group is, ``alone`` while nobody hears."""
    ended = threading.Event()

    def say() -> None:
        while not ended.wait(STAY_SECONDS):
            try:
                client.call(routes.STAY, node.stay(rendezvous))
                alone.clear()
            except Fenced as error:
                log.warning("this pod's group is over: %s", error)
                over.set()
                return
            except RolloutError as error:
                log.warning("the coordinator does not answer: %s", error)
                alone.set()

    teller = threading.Thread(target=say, daemon=True, name="staying")
    teller.start()
    try:
        yield
    finally:
        ended.set()
