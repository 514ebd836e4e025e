"""Who has an endpoint's requests: its servers, or a pod that holds them while there are none. Pure.

An autoscaler takes the servers of an idle endpoint away, and brings one for the first request that waits. The address goes to
the holder first, and only then does the last server go; it comes back when a server is ready, and what the holder has by then it
sends on itself, by an address of the servers' own.
"""

from __future__ import annotations

from dataclasses import replace

from rollout_operator.cache.children import Deployed
from rollout_operator.endpoint.model import EndpointPlan, EndpointSeen

SETTLE_SECONDS = 2.0
"""Between a change of who has requests and what follows from it."""


def plan_holding(seen: EndpointSeen, plan: EndpointPlan) -> EndpointPlan:
    """With whether there is a holder, and whether the address is its."""
    holds = seen.may_rest or (seen.held and not seen.suspend)
    held = holds and bool(plan.serves) and _is_held(seen, plan)
    again = plan.requeue_seconds
    if plan.keep and (held != seen.held or holds != seen.may_rest):
        again = SETTLE_SECONDS if again is None else min(again, SETTLE_SECONDS)
    return replace(plan, holds=holds, held=held, requeue_seconds=again)


def _is_held(seen: EndpointSeen, plan: EndpointPlan) -> bool:
    serving, holder = seen.servers.get(plan.serves), seen.holder
    if serving is not None and _stays(serving) and not _falls_asleep(seen, plan):
        return False
    return seen.held or (holder is not None and holder.ready > 0)


def _stays(serving: Deployed) -> bool:
    """Whether a server answers that is not about to go: a Deployment of none says for a while that its last ones are ready."""
    return min(serving.ready, serving.replicas) > 0


def _falls_asleep(seen: EndpointSeen, plan: EndpointPlan) -> bool:
    """Whether an autoscaler wants no servers, and none is needed for another revision either."""
    unwanted = seen.spec is not None and not seen.spec.replicas
    return seen.may_rest and unwanted and seen.target in ("", plan.serves)
