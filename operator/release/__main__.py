"""`PYTHONPATH=operator python -m release build|verify|push`: exit status 1 with what is wrong on standard error."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from release import generated, signatures, versions
from release.build import Order, build
from release.contents import Contents
from release.errors import ReleaseError
from release.registry.client import Registry
from release.registry.push import push
from release.verify import find_differences, read_contents

PASSWORD = "ROLLOUT_RELEASE_KEY_PASSWORD"  # noqa: S105 - the name of a variable
"""Of the key that signs; unset: the key has none."""


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when the release is there, verifies or is pushed."""
    options = _parse(arguments)
    try:
        options.do(options)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("build", help="make a release of the commit that is checked out")
    made.add_argument("target", type=Path, help="folder to make")
    made.add_argument("--key", type=Path, required=True, help="private key (PEM, ECDSA P-256)")
    made.add_argument("--image", action="append", default=[], metavar="NAME=ARCHIVE")
    made.add_argument("--pins", default="constraints.hashes.txt", help="of this environment")
    made.set_defaults(do=_build)
    verified = commands.add_parser("verify", help="name what differs in a release")
    verified.add_argument("folder", type=Path)
    verified.set_defaults(do=_verify)
    pushed = commands.add_parser("push", help="verify a release, and push it to a registry")
    pushed.add_argument("folder", type=Path)
    pushed.add_argument("--registry", required=True, metavar="HOST[:PORT][/PREFIX]")
    pushed.set_defaults(do=_push)
    for command in (verified, pushed):
        command.add_argument("--key", type=Path, required=True, help="public key (PEM)")
    for command in (made, verified, pushed):
        command.add_argument("--version", required=True, metavar="X.Y.Z")
    return parser.parse_args(arguments)


def _build(options: argparse.Namespace) -> None:
    order = Order(
        checkout=Path(),
        version=versions.parse_version(options.version),
        key=signatures.load_private_key(options.key, os.environ.get(PASSWORD, "")),
        images=dict(_parse_image(one) for one in options.image),
        pins_file=options.pins,
        target=options.target,
    )
    contents = build(order, (versions.find_differences, generated.find_differences))
    _say(f"{options.target}: {contents.version} of {contents.commit}")
    for one in contents.artifacts:
        _say(f"  {one.repository}@{one.digest}")
    absent = {"rollout-operator", "rollout-worker"} - {*order.images}
    if absent:
        _say(f"without images: {', '.join(sorted(absent))} (IMAGES=name=archive adds them)")


def _parse_image(text: str) -> tuple[str, Path]:
    name, found, archive = text.partition("=")
    if not found or not archive:
        raise ReleaseError(f"image {text!r}: expected NAME=ARCHIVE")
    return name, Path(archive)


def _verify(options: argparse.Namespace) -> None:
    _hold(options)
    _say(f"{options.folder}: {options.version}, as signed")


def _push(options: argparse.Namespace) -> None:
    contents = _hold(options)
    with Registry.open(options.registry) as registry:
        for line in push(options.folder, contents, registry):
            _say(line)


def _hold(options: argparse.Namespace) -> Contents:
    key = signatures.load_public_key(options.key)
    version = versions.parse_version(options.version)
    if wrong := find_differences(options.folder, key, version):
        raise ReleaseError(f"{options.folder} is not {version}:\n  " + "\n  ".join(wrong))
    return read_contents(options.folder)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
