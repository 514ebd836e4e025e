"""``rollout ui``: the runs of this machine, and a training service's models, in a browser; or those of a cluster, for its people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from rollout.cli.output import print_line

LOOPBACK = "127.0.0.1"


def ui(
    *,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", help="The folder with the runs; default: ROLLOUT_HOME, or runs."),
    ] = None,
    service: Annotated[
        Path | None,
        typer.Option(
            "--service",
            help="The folder of the training service whose models are shown; default: service in the folder with the runs.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where it listens; 0: a free one.")
    ] = 8675,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="The runs of a cluster, to whoever shows a token of it, as far as that person may read them.",
        ),
    ] = False,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace", "-n", help="With --cluster: look at this one only; repeatable."
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            help="With --cluster: the address; beyond 127.0.0.1 with --certificate only.",
        ),
    ] = LOOPBACK,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="With --cluster: a folder with tls.crt and tls.key."),
    ] = None,
) -> None:
    """Look at runs and at models of a training service in a browser on this machine, live or afterwards, until Ctrl-C; the link that is printed opens it."""
    if cluster:
        _refuse(
            {"--runs": runs, "--service": service}, "of this machine; leave it out with --cluster"
        )
        _serve_cluster(listen, port, certificate, tuple(namespace or ()))
        return
    given = {
        "--namespace": namespace,
        "--listen": None if listen == LOOPBACK else listen,
        "--certificate": certificate,
    }
    _refuse(given, "of the console of a cluster; add --cluster")
    _serve_runs(runs, service, port)


def _serve_runs(runs: Path | None, service: Path | None, port: int) -> None:
    import os

    from rollout.common.stacks import run_loop
    from rollout.console.serve import serve_console
    from rollout.errors import SpecError
    from rollout.runs.run_dir import runs_home
    from rollout.service.reading.finding import has_book

    home = (runs or runs_home(os.environ)).absolute()
    if runs is not None and not home.is_dir():
        raise SpecError(f"--runs {runs}: there is no such folder; give the one that holds the runs")
    if service is not None and not has_book(service):
        raise SpecError(f"--service {service}: no service has kept a book there")
    book = None if service is None else service.absolute()
    run_loop(serve_console(home, port, _announce, book))


def _serve_cluster(
    listen: str, port: int, certificate: Path | None, namespaces: tuple[str, ...]
) -> None:
    from rollout.cluster.client import Cluster
    from rollout.common.stacks import run_loop
    from rollout.console.cluster.serve import ClusterConsoleSettings, serve_cluster_console

    settings = ClusterConsoleSettings(
        host=listen, port=port, certificate=certificate, namespaces=namespaces
    )
    run_loop(serve_cluster_console(Cluster(), settings, _announce_cluster))


def _refuse(given: Mapping[str, object], why: str) -> None:
    from rollout.errors import SpecError

    for option, value in given.items():
        if value:
            raise SpecError(f"{option}: is {why}")


def _announce(link: str) -> None:
    print_line(f"open in one browser: {link}")


def _announce_cluster(address: str) -> None:
    print_line(f"runs of the cluster for whoever shows a token of it: {address}")
