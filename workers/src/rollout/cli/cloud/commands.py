"""``rollout cloud doctor|policy``: whether a run's place and the targets of its events can be used from here, and the least policy."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.cloud import prices
from rollout.cli.doctor import print_finding
from rollout.cli.output import OutputFormat, OutputOption, print_json, print_line
from rollout.cli.snapshot.options import EndpointOption, RegionOption

if TYPE_CHECKING:
    from rollout.clouds.diagnosing import Target
    from rollout.doctor.judge import Diagnosis
    from rollout_api.fields.event_targets import EventTarget

app = typer.Typer(help="Buckets, identities and prices of clouds.", no_args_is_help=True)
app.add_typer(prices.app, name="prices")


class RoleOption(StrEnum):
    """Which of a run's processes is meant: an actor reads, the others write, too."""

    coordinator = "coordinator"
    learner = "learner"
    actor = "actor"


ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="A run's manifest; its spec.storage and the targets of its events are meant.",
        metavar="FILE",
    ),
]
UriOption = Annotated[
    str | None,
    typer.Option(
        "--uri",
        help="A place: s3://, gs:// or file:///; or a target of events: sqs://, sns:// or pubsub://.",
        metavar="URI",
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", help="The run's namespace in a cluster, which is in its place."
    ),
]
WhichOption = Annotated[
    RoleOption | None,
    typer.Option(
        "--role",
        help="Whose rights are meant; unset: those of a learner, and of the coordinator for events.",
    ),
]
SendOption = Annotated[
    bool,
    typer.Option(
        "--send-event",
        help="Send one event to each target, of a type of its own: tries the keys of queues and topics, too.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlaces:
    """What a command is asked about: a place of objects, and targets of events."""

    place: Target | None = None
    events: tuple[EventTarget, ...] = ()


@app.command("doctor")
def doctor(
    *,
    for_: ForOption = None,
    uri: UriOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    namespace: NamespaceOption = None,
    role: WhichOption = None,
    send_event: SendOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Who this environment is at its cloud, and whether a run could keep its objects and send its events from here; exit code 1 where not.

    Does to the place what a run does: an object of its own is written, read, listed and removed. Queues and topics are
    asked, and sent nothing. Without --for or --uri it says who one is at each cloud whose library is installed.
    """
    from rollout.clouds.diagnosing import CLOUDS, diagnose_identity
    from rollout.errors import SpecError

    asked = _asked(for_, uri, endpoint, region, namespace)
    if send_event and (asked is None or not asked.events):
        raise SpecError("--send-event: no target of events is named here; see spec.tracking")
    if asked is None:
        found = {one: diagnose_identity(one, os.environ) for one in CLOUDS if _is_installed(one)}
    else:
        found = _diagnose(asked, role, sends=send_event)
    if output is OutputFormat.json:
        print_json({place: [asdict(one) for one in said] for place, said in found.items()})
    else:
        for place, said in found.items():
            print_line(place)
            for one in said:
                print_finding(one)
    is_broken = any(one.state == "broken" for said in found.values() for one in said)
    raise typer.Exit(int(is_broken and asked is not None))


@app.command("policy")
def policy(
    *,
    for_: ForOption = None,
    uri: UriOption = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    namespace: NamespaceOption = None,
    role: WhichOption = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--kms-key",
            help="The ARN of the KMS key of the bucket, queue or topic (Amazon's).",
            metavar="ARN",
        ),
    ] = None,
) -> None:
    """Print the least policy for a run: IAM's for AWS, permissions and conditions for Google Cloud. Asks nobody.

    The coordinator's has what sending the run's events needs; a run in both clouds has a policy of each.
    """
    from rollout.clouds.diagnosing import place_of
    from rollout.clouds.policies import events_policy, run_policy
    from rollout.errors import SpecError

    asked = _asked(for_, uri, endpoint, region, namespace)
    if asked is None:
        raise SpecError("no place: name a manifest with --for, or a bucket with --uri")
    _require_key_fits(asked, key)
    if asked.place is None and for_ is None:
        print_json(events_policy(asked.events[0], key))
        return
    whose = role.value if role is not None else "coordinator" if asked.events else "learner"
    place = asked.place
    if place is not None and place.scheme == "file" and asked.events:
        place = None  # a folder needs no policy
    where, scheme = (place_of(place), place.scheme) if place is not None else (None, "")
    print_json(run_policy(where, scheme, asked.events, whose, key))


def _diagnose(
    asked: NamedPlaces, role: RoleOption | None, *, sends: bool
) -> dict[str, tuple[Diagnosis, ...]]:
    from rollout.clouds.diagnosing import diagnose
    from rollout.clouds.targets import diagnose_target

    found: dict[str, tuple[Diagnosis, ...]] = {}
    if asked.place is not None:
        whose = role or RoleOption.learner
        found[asked.place.uri] = diagnose(asked.place, whose.value, os.environ)
    if role in {None, RoleOption.coordinator}:  # nobody else sends events
        for target in asked.events:
            found[target.uri] = diagnose_target(target, os.environ, sends=sends)
    return found


def _require_key_fits(asked: NamedPlaces, key: str | None) -> None:
    """Raises SpecError where nothing that is asked about is Amazon's."""
    from rollout.errors import SpecError

    if key is None:
        return
    schemes = {one.service for one in asked.events}
    schemes |= {asked.place.scheme} if asked.place is not None else set()
    if not schemes & {"s3", "sqs", "sns"}:
        raise SpecError(
            f"--kms-key: no place of Amazon's is named ({', '.join(sorted(schemes))}); Google's bucket keys are used by"
            " the project's storage service agent, which needs roles/cloudkms.cryptoKeyEncrypterDecrypter"
        )


def _asked(
    manifest: str | None,
    uri: str | None,
    endpoint: str | None,
    region: str | None,
    namespace: str | None,
) -> NamedPlaces | None:
    """What the options name. Raises SpecError where they name two, or half of one."""
    from rollout.errors import SpecError
    from rollout_api.fields.event_targets import parse_event_target

    target = None if uri is None else parse_event_target(uri)
    if target is None:
        return _asked_place(manifest, uri, endpoint, region, namespace)
    if manifest or endpoint or region or namespace:
        raise SpecError(f"{target.uri} names all of its place: leave out the other options")
    return NamedPlaces(events=(target,))


def _asked_place(
    manifest: str | None,
    uri: str | None,
    endpoint: str | None,
    region: str | None,
    namespace: str | None,
) -> NamedPlaces | None:
    from rollout.clouds.diagnosing import Target
    from rollout.errors import SpecError

    if manifest is not None:
        if uri or endpoint or region:
            raise SpecError("--for names the whole place: leave out --uri, --endpoint and --region")
        asked = _of_manifest(manifest)
    elif uri is None:
        if endpoint or region or namespace:
            raise SpecError(
                "--endpoint, --region and --namespace are of a place: name it with --uri"
            )
        return None
    else:
        asked = NamedPlaces(place=Target(uri=uri, endpoint=endpoint, region=region))
    if asked.place is None:
        return asked
    below = f"/{namespace}" if namespace else ""
    return replace(asked, place=replace(asked.place, uri=f"{asked.place.uri.rstrip('/')}{below}"))


def _of_manifest(manifest: str) -> NamedPlaces:
    from rollout.clouds.diagnosing import Target
    from rollout.errors import SpecError
    from rollout.events.build import find_targets
    from rollout.runs.manifest import load_folder_or_file
    from rollout.runs.validation import require_valid
    from rollout_api.v1alpha1.operations import Tracking
    from rollout_api.v1alpha1.storage import Storage

    documents = load_folder_or_file(manifest)
    require_valid(documents)
    specs = [one.data.get("spec") or {} for one in documents]
    storages = [Storage.model_validate(one["storage"]) for one in specs if one.get("storage")]
    named = list({one.uri: one for one in storages if one.uri is not None}.values())
    tracking = [
        Tracking.model_validate(one) for spec in specs for one in spec.get("tracking") or ()
    ]
    events = {target.uri: target for _, target in find_targets(tracking)}
    if len(named) > 1 or not (named or events):
        raise SpecError(
            f"{manifest}: {len(named)} places in spec.storage.uri, expected one, or targets of events in"
            " spec.tracking; name it with --uri"
        )
    place = None
    if named:
        found = named[0].model_dump(
            include={"uri", "endpoint", "region", "kms_key"}, by_alias=False
        )
        place = Target(**found)
    return NamedPlaces(place=place, events=tuple(events.values()))


def _is_installed(scheme: str) -> bool:
    from importlib.util import find_spec

    return find_spec({"s3": "boto3", "gs": "google.auth"}[scheme]) is not None
