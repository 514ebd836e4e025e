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
    kubectl.make_namespace(name)
    mine = replace(kubectl, namespace=name)
    try:
        wait_until(lambda: _has_account(mine), f"the account of pods in {name}")
        yield mine
    finally:
        delete(mine)


def _has_account(mine: Kubectl) -> bool:
    accounts = mine.get("serviceaccounts")["items"]
    return any(one["metadata"]["name"] == "default" for one in accounts)


def delete(mine: Kubectl) -> None:
    """Delete the namespace, and wait for the end of its pods: they hold devices, ports and the attention of operators.

    What else is in it goes in its own time: nobody else sees it.
    """
    mine.unmake_namespace(mine.namespace)
    wait_until(lambda: not mine.get("pods")["items"], f"every pod of {mine.namespace} is gone")
