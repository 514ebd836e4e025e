"""Command line of the test cluster: build, up, down, status; can, kind."""

import argparse
import sys

from cluster import build, local, machine, packages, pins, providers
from cluster import instance as instances
from cluster.commands import Options
from cluster.control import background
from cluster.docker import kind
from cluster.errors import BuildError, CannotRunHereError, ClusterError
from cluster.nodes import containers

GROUPS = {
    "control-plane": (*pins.CONTROL_PLANE, *pins.FAKE_NODES),
    "charts": pins.CHARTS,
    "nodes": pins.REAL_NODES,
    "kueue": pins.KUEUE,
    "flux": pins.FLUX,
    "rivals": pins.RIVALS,
    "all": pins.EVERYTHING,
}


def main() -> int:
    """Run one command; 1 and a plain message when it fails."""
    arguments = _parser().parse_args()
    try:
        arguments.act(arguments)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _build(arguments: argparse.Namespace) -> None:
    if arguments.background:
        background.step_back()
    packages.ensure()
    names = GROUPS[arguments.group] if arguments.group else _useful_here()
    build.ensure(names)
    for name in names:
        print(build.path(name))
    if arguments.images and not machine.why_no_real_nodes():
        _build_images()


def _build_images() -> None:
    """What tests would make when they first ask for it. One that cannot be made is theirs to skip for."""
    for ensure in (containers.ensure_worker, containers.ensure_operator):
        try:
            print(ensure())
        except BuildError as error:
            print(f"no image, its tests will be skipped: {error}", file=sys.stderr)


def _useful_here() -> tuple[str, ...]:
    """What this machine can run; the rest is named, and its tests say so again when they are skipped."""
    if reason := machine.why_no_control_plane():
        print(f"no cluster can run here: {reason}", file=sys.stderr)
        return ()
    if reason := machine.why_no_real_nodes():
        print(f"no real nodes can run here, fake ones can: {reason}", file=sys.stderr)
        return (*GROUPS["control-plane"], *GROUPS["charts"])
    return pins.EVERYTHING


def _up(arguments: argparse.Namespace) -> None:
    options = Options(
        audit=arguments.audit,
        feature_gates=tuple(arguments.feature_gate),
        controllers=arguments.controllers,
    )
    shape = local.Shape(
        fake_nodes=arguments.fake_nodes, real_nodes=arguments.real_nodes, options=options
    )
    cluster = local.up(shape, name=arguments.name, owned=False)
    folders = dict.fromkeys(str(build.folder(name)) for name in ("kubectl", "helm"))
    print(f"export KUBECONFIG={cluster.instance.kubeconfig}")
    print(f"export PATH={':'.join(folders)}:$PATH")


def _down(arguments: argparse.Namespace) -> None:
    for name in arguments.names:
        local.down(instances.find(name))


def _can(arguments: argparse.Namespace) -> None:
    if reason := providers.why_not(arguments.provider):
        raise CannotRunHereError(reason)


def _kind(arguments: argparse.Namespace) -> None:
    if arguments.what == "down":
        kind.down(arguments.name)
        return
    print(f"export KUBECONFIG={kind.up(arguments.name)}")


def _status(_: argparse.Namespace) -> None:
    print("to be built:", ", ".join(build.missing(pins.EVERYTHING)) or "nothing")
    for instance in instances.everything():
        living = [name for name, one in instance.processes().items() if one.handle()]
        state = "orphaned" if instance.orphaned() else instance.recall().get("server", "starting")
        print(f"{instance.name}: {state}; {', '.join(living) or 'no process'}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    commands = parser.add_subparsers(required=True)
    building = commands.add_parser("build", help="build what is missing and can run here")
    building.add_argument("group", nargs="?", choices=GROUPS)
    building.add_argument("--images", action="store_true", help="also the images of real nodes")
    building.add_argument(
        "--background", action="store_true", help="last in turn; ends with whoever started it"
    )
    building.set_defaults(act=_build)
    starting = commands.add_parser("up", help="start a cluster; prints what to source")
    starting.add_argument("name")
    starting.add_argument("--fake-nodes", type=int, default=2)
    starting.add_argument("--real-nodes", type=int, default=0)
    starting.add_argument("--audit", default="", help="Metadata, Request or RequestResponse")
    starting.add_argument("--feature-gate", action="append", default=[], metavar="NAME=BOOL")
    starting.add_argument("--controllers", default="*")
    starting.set_defaults(act=_up)
    ending = commands.add_parser("down", help="end clusters")
    ending.add_argument("names", nargs="+")
    ending.set_defaults(act=_down)
    asking = commands.add_parser("can", help="whether a provider gives clusters here, or why not")
    asking.add_argument("provider")
    asking.set_defaults(act=_can)
    in_docker = commands.add_parser("kind", help="a cluster in Docker, by kind (unproven)")
    in_docker.add_argument("what", choices=("up", "down"))
    in_docker.add_argument("name")
    in_docker.set_defaults(act=_kind)
    commands.add_parser("status", help="list clusters").set_defaults(act=_status)
    return parser


if __name__ == "__main__":
    sys.exit(main())
