"""The options that every command to a cluster has, and how one is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster

ContextOption = Annotated[
    str | None,
    typer.Option("--context", help="A context of the kubeconfig. Unset: its current one."),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Unset: that of the context, else `default`."),
]
LongNamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", help="Of the cluster. Unset: that of the context, else `default`."),
]
"""Where `-n` means something else: lines."""
ClusterFlag = Annotated[
    bool,
    typer.Option("--cluster", help="A run of the kubeconfig's cluster; --context implies it."),
]
ObjectArgument = Annotated[
    str, typer.Argument(help="NAME of a run, or KIND/NAME: snapshot/best.", metavar="[KIND/]NAME")
]


def open_cluster(context: str | None, namespace: str | None) -> Cluster:
    """The cluster that the options name. Raises SpecError where there is no kubeconfig."""
    from rollout.cluster.client import Cluster

    return Cluster(context=context, namespace=namespace)


def names_cluster(*, cluster: bool, context: str | None, namespace: str | None) -> bool:
    """Whether the options mean a run of a cluster rather than one of this machine."""
    return cluster or context is not None or namespace is not None
