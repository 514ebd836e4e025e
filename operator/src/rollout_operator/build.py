"""Opens what a process talks through (sessions, the Lease) and puts the process together."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from rollout_operator.controller.queue import KeyQueue
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.config import Connection, open_outer_session, open_session
from rollout_operator.kube.leader import Leader
from rollout_operator.kube.opened import OpenedWatches
from rollout_operator.kube.resources import own_paths
from rollout_operator.manager import Manager
from rollout_operator.metrics import build_metrics
from rollout_operator.run.index.store import RunStore
from rollout_operator.settings import Settings

LEASE_CONNECTIONS = 2
"""The Lease has connections of its own: writes that hang do not keep it from being renewed."""


@asynccontextmanager
async def open_manager(settings: Settings, connection: Connection) -> AsyncIterator[Manager]:
    """The process, with its sessions; nothing runs yet."""
    metrics = build_metrics()
    identity = settings.identity or f"{socket.gethostname()}-{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        apart = open_session(connection, connections_max=LEASE_CONNECTIONS)
        leader = Leader(
            client=KubeClient(
                await stack.enter_async_context(apart),
                connection.server,
                count=metrics.count_request,
            ),
            namespace=settings.operator_namespace or connection.namespace,
            identity=identity,
            enabled=settings.leader_election,
        )
        session = open_session(connection, may_send=leader.require)
        await stack.enter_async_context(session)
        outer = open_outer_session(may_send=leader.require)
        await stack.enter_async_context(outer)
        queue = KeyQueue()
        yield Manager(
            settings=settings,
            connection=connection,
            session=session,
            outer=outer,
            client=KubeClient(
                session,
                connection.server,
                may_write=leader.require,
                count=metrics.count_request,
            ),
            store=RunStore(queue.put),
            queue=queue,
            leader=leader,
            opened=OpenedWatches(own_paths(settings.namespaces)),
            metrics=metrics,
        )
