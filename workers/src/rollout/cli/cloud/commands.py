"""``rollout cloud doctor|policy``: whether a run's place can be used from here, and the least policy for it."""

from __future__ import annotations

import os
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout.cli.doctor import print_finding
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line
from rollout.cli.snapshot.options import EndpointOption, RegionOption

if TYPE_CHECKING:
    from rollout.clouds.diagnosing import Target
    from rollout_api.fields.event_targets import EventTarget

app = typer.Typer(help="Buckets and identities of clouds.", no_args_is_help=True)


class RoleOption(StrEnum):
    """Which of a run's processes is meant: an actor reads, the others write, too."""

    coordinator = "coordinator"
    learner = "learner"
    actor = "actor"


ForOption = Annotated[
    str | None,
    typer.Option("--for", help="A run's manifest; its spec.storage is meant.", metavar="FILE"),
]
UriOption = Annotated[
    str | None, typer.Option("--uri", help="A place: s3://, gs:// or file:///.", metavar="URI")
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", help="The run's namespace in a cluster, which is in its place."
    ),
]
WhichOption = Annotated[RoleOption, typer.Option("--role", help="Whose rights are meant.")]


@app.command("doctor")
def doctor(
    *,
    for_: ForOption = None,
    uri: UriOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    namespace: NamespaceOption = None,
    role: WhichOption = RoleOption.learner,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Who this environment is at its cloud and whether a run could keep its objects there; exit code 1 where not.

    Does to the place what a run does: an object of its own is written, read, listed and removed.
    Without --for or --uri it says who one is at each cloud whose library is installed.
    """
    from rollout.clouds.diagnosing import CLOUDS, diagnose, diagnose_identity

    target = _target(for_, uri, endpoint, region, namespace)
    if target is None:
        found = {one: diagnose_identity(one, os.environ) for one in CLOUDS if _is_installed(one)}
    else:
        found = {target.uri: diagnose(target, role.value, os.environ)}
    if output is OutputFormat.json:
        print_json({place: [asdict(one) for one in said] for place, said in found.items()})
    else:
        for place, said in found.items():
            print_line(place)
            for one in said:
                print_finding(one)
    is_broken = any(one.state == "broken" for said in found.values() for one in said)
    raise typer.Exit(int(is_broken and target is not None))


@app.command("policy")
def policy(
    *,
    for_: ForOption = None,
    uri: UriOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    namespace: NamespaceOption = None,
    role: WhichOption = RoleOption.learner,
    key: Annotated[
        str | None,
        typer.Option(
            "--kms-key",
            help="The ARN of the KMS key of the bucket, queue or topic (Amazon's).",
            metavar="ARN",
        ),
    ] = None,
) -> None:
    """Print the least policy for a run's place: IAM's for s3://, permissions and conditions for gs://. Asks nobody.

    For a queue or topic of a run's events (sqs://, sns://, pubsub://) it is what the coordinator needs to send there.
    """
    if (target := _event_target(uri)) is None:
        print_json(_policy(_target(for_, uri, endpoint, region, namespace), role, key))
        return
    from rollout.clouds.policies import events_policy
    from rollout.errors import SpecError

    if for_ or endpoint or region or namespace:
        raise SpecError(f"{target.uri} names all of its place: leave out the other options")
    if key is not None and target.service == "pubsub":
        raise SpecError(f"--kms-key: {target.uri} is no place of Amazon's")
    print_json(events_policy(target, key))


def _event_target(uri: str | None) -> EventTarget | None:
    """The queue or topic that a URI names; None: it names none."""
    from rollout_api.fields.event_targets import parse_event_target

    return None if uri is None else parse_event_target(uri)


def _policy(target: Target | None, role: RoleOption, key: str | None) -> Any:
    from rollout.clouds.diagnosing import place_of
    from rollout.clouds.policies import gcs_policy, s3_policy
    from rollout.errors import SpecError

    if target is None:
        raise SpecError("no place: name a manifest with --for, or a bucket with --uri")
    place = place_of(target)
    if target.scheme == "s3":
        return s3_policy(place, role.value, key)
    if key is not None:
        raise SpecError(
            f"--kms-key: {target.uri} is no s3:// place; Google's bucket keys are used by the project's storage"
            " service agent, which needs roles/cloudkms.cryptoKeyEncrypterDecrypter"
        )
    return gcs_policy(place, role.value)


def _target(
    manifest: str | None,
    uri: str | None,
    endpoint: str | None,
    region: str | None,
    namespace: str | None,
) -> Target | None:
    """The place that the options name. Raises SpecError where they name two, or half of one."""
    from rollout.clouds.diagnosing import Target
    from rollout.errors import SpecError

    if manifest is not None:
        if uri or endpoint or region:
            raise SpecError("--for names the whole place: leave out --uri, --endpoint and --region")
        target = _of_manifest(manifest)
    elif uri is None:
        if endpoint or region or namespace:
            raise SpecError(
                "--endpoint, --region and --namespace are of a place: name it with --uri"
            )
        return None
    else:
        target = Target(uri=uri, endpoint=endpoint, region=region)
    below = f"/{namespace}" if namespace else ""
    return Target(
        uri=f"{target.uri.rstrip('/')}{below}", endpoint=target.endpoint, region=target.region
    )


def _of_manifest(manifest: str) -> Target:
    from rollout.clouds.diagnosing import Target
    from rollout.errors import SpecError
    from rollout.runs.manifest import load_folder_or_file
    from rollout.runs.validation import require_valid
    from rollout_api.v1alpha1.storage import Storage

    documents = load_folder_or_file(manifest)
    require_valid(documents)
    bodies = [(one.data.get("spec") or {}).get("storage") for one in documents]
    storages = [Storage.model_validate(one) for one in bodies if one is not None]
    named = list({one.uri: one for one in storages if one.uri is not None}.values())
    if len(named) != 1:
        raise SpecError(
            f"{manifest}: {len(named)} places in spec.storage.uri, expected one; name it with --uri"
        )
    return Target(uri=named[0].uri or "", endpoint=named[0].endpoint, region=named[0].region)


def _is_installed(scheme: str) -> bool:
    from importlib.util import find_spec

    return find_spec({"s3": "boto3", "gs": "google.auth"}[scheme]) is not None
