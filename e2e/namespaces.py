"""A namespace for a block: when it is over, none of its pods is left that the next test would meet on a node."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cluster.kubectl import Kubectl
from waiting import wait_until


@contextmanager
def in_namespace(kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a new namespace whose pods may be made at once."""
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    mine = replace(kubectl, namespace=name)
    try:
        mine.wait("--for=create", "serviceaccount/default")
        yield mine
    finally:
        delete(mine)


def delete(mine: Kubectl) -> None:
    """Delete the namespace, and wait for the end of its pods: they hold devices, ports and the attention of operators.

    What else is in it goes in its own time: nobody else sees it.
    """
    mine("delete", "namespace", mine.namespace, "--wait=false", "--ignore-not-found")
    wait_until(lambda: not mine.get("pods")["items"], f"every pod of {mine.namespace} is gone")
