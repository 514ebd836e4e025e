"""Waits for the end of a pod that runs once, whichever end that is: waiting for a good one would outlast a bad one."""

from typing import Any

from cluster.kubectl import Kubectl
from terminal import why_of_pods
from waiting import wait_until

ENDS = ("Succeeded", "Failed")


def wait_for_end(kubectl: Kubectl, pod: str) -> dict[str, Any]:
    """The pod, ended; one that has no image is said at once."""
    seen: dict[str, Any] = {}

    def ended() -> bool:
        seen.update(kubectl.get("pod", pod))
        return seen["status"]["phase"] in ENDS

    wait_until(ended, f"the end of pod {pod}", every=0.3, hopeless=lambda: why_of_pods([seen]))
    return seen


def wait_for_success(kubectl: Kubectl, pod: str) -> str:
    """What the pod wrote, once it has ended well. Raises AssertionError, with the same, when it has not."""
    phase = wait_for_end(kubectl, pod)["status"]["phase"]
    wrote = kubectl("logs", pod)
    assert phase == "Succeeded", f"pod {pod} ended badly: {wrote}"
    return wrote
