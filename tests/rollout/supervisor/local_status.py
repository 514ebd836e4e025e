"""Statuses as the coordinator would give them."""

from rollout.protocol.status import Status


def make_status(**changes) -> Status:
    fields = {
        "name": "adder",
        "uid": "u",
        "phase": "Running",
        "lineage": 0,
        "step": 0,
        "steps_max": 10,
        "policy_version": 0,
        "chain": "",
        "position": 0,
        "uptime_seconds": 1.0,
        "seconds_per_step": None,
        "tokens_per_second": None,
        "reward": None,
        "loss": None,
        "metrics": {},
        "phase_seconds": {},
        "waiting": (),
        "bottleneck": "Balanced",
        "dispositions": {},
        "workers": (),
        "evaluations": (),
        "conditions": (),
    }
    return Status(**{**fields, **changes})
