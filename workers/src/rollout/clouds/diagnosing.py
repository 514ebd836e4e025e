"""Whether a run could keep its objects in its place from here: every look is bounded, and a failed one is a finding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout.clouds.amazon import Amazon
from rollout.clouds.contract import READERS, BucketPlace, Cloud, Role, Trouble, read_trouble
from rollout.clouds.google import Google
from rollout.clouds.reaching import broken, judge_server
from rollout.doctor.judge import Diagnosis
from rollout.errors import PlaceUnreachable, RolloutError, SpecError
from rollout.objects.places import (
    ProbeStep,
    open_bucket,
    parse_bucket,
    parse_folder,
    probe_steps,
    require_folder,
)
from rollout.objects.remote import Bucket
from rollout.objects.retry import Absent, Refused, Transient

TRIES_MAX = 2
SILENT_MAX = 1
"""So many steps may meet no answer at all: the rest would wait as long for the same."""
READING = frozenset({"look for"})
"""What a role that only reads can be tried at: nothing of a run is there yet."""
CLOUDS: Mapping[str, Callable[[Mapping[str, str]], Cloud]] = {"s3": Amazon, "gs": Google}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a run keeps its objects: ``uri`` as in ``spec.storage``, with the namespace where it has one."""

    uri: str
    endpoint: str | None = None
    region: str | None = None
    kms_key: str | None = None

    @property
    def scheme(self) -> str:
        """``s3``, ``gs`` or ``file``."""
        return self.uri.partition("://")[0]


def place_of(target: Target) -> BucketPlace:
    """Its bucket. Raises SpecError for what is none."""
    bucket = _bucket_of(target)
    return BucketPlace(
        bucket=bucket.name,
        prefix=bucket.prefix,
        endpoint=target.endpoint,
        region=target.region,
        kms_key=target.kms_key,
    )


def _bucket_of(target: Target) -> Bucket:
    return parse_bucket(
        target.uri, endpoint=target.endpoint, region=target.region, kms_key=target.kms_key
    )


def diagnose(
    target: Target, role: Role, environ: Mapping[str, str], now: Callable[[], float] = time.time
) -> tuple[Diagnosis, ...]:
    """Findings in the order in which they are mended. Raises SpecError for a URI that is none."""
    folder = parse_folder(target.uri)
    if folder is not None:
        return (_judge_folder(folder),)
    place = place_of(target)
    return tuple(_diagnose_bucket(CLOUDS[target.scheme](environ), target, place, role, now))


def diagnose_identity(
    scheme: str, environ: Mapping[str, str], now: Callable[[], float] = time.time
) -> tuple[Diagnosis, ...]:
    """Who one is at a cloud, without a place."""
    cloud, nowhere = CLOUDS[scheme](environ), BucketPlace(bucket="", prefix="")
    return (
        _judge_clock(cloud, None, now),
        *cloud.judge_source(now()),
        _judge_identity(cloud, None, nowhere),
    )


def _diagnose_bucket(
    cloud: Cloud, target: Target, place: BucketPlace, role: Role, now: Callable[[], float]
) -> Iterator[Diagnosis]:
    yield from cloud.judge_settings(place)
    yield _judge_clock(cloud, place, now)
    source = tuple(cloud.judge_source(now()))
    yield from source
    if any(one.state == "broken" for one in source):
        return  # every call would say the same in other words
    identity = _judge_identity(cloud, place, place)
    yield identity
    if identity.state != "broken":
        yield from _judge_steps(cloud, target, place, role)


def _judge_folder(folder: Path) -> Diagnosis:
    try:
        require_folder(folder)
    except PlaceUnreachable as error:
        fix = "let this user write there, or name another place in spec.storage.uri"
        return broken(str(folder), str(error), "a run cannot keep its objects there", fix)
    return Diagnosis(name="place", state="ok", found=f"{folder}: can be written")


def _judge_clock(cloud: Cloud, place: BucketPlace | None, now: Callable[[], float]) -> Diagnosis:
    """Whether the server answers at all, and at what time."""
    nowhere = BucketPlace(bucket="", prefix="")
    return judge_server(
        cloud.address(place), lambda said: cloud.explain(said, "reach", place or nowhere), now
    )


def _judge_identity(cloud: Cloud, place: BucketPlace | None, where: BucketPlace) -> Diagnosis:
    try:
        return Diagnosis(name="identity", state="ok", found=cloud.ask_identity(place))
    except (SpecError, Refused, Transient, Absent) as error:
        said = read_trouble(error)
        explained = cloud.explain(said, "identify", where)
        return broken("identity", said.found, explained.costs, explained.fix)


def _judge_steps(
    cloud: Cloud, target: Target, place: BucketPlace, role: Role
) -> Iterator[Diagnosis]:
    """What a run does to its bucket, each tried whatever came of the others."""
    held: list[str] = []
    try:
        remote = open_bucket(_bucket_of(target))
        steps = probe_steps(remote, held)
    except RolloutError as error:
        said = read_trouble(error)
        explained = cloud.explain(said, "reach", place)
        yield broken("bucket", said.found, explained.costs, explained.fix)
        return
    silent, is_written = 0, False
    for step in steps:
        if (role in READERS and step.verb not in READING) or silent > SILENT_MAX:
            continue
        if step.verb in {"read", "ask about", "delete"} and not is_written:
            continue  # of an object that is not there nothing is learned
        trouble = _try(step)
        is_written |= step.verb == "write" and trouble is None
        silent += trouble is not None and not trouble.status and not trouble.is_refused
        yield _judge_step(cloud, place, step, trouble)
    if held and held[-1]:
        fix = "turn versions and locks off, or give the bucket a rule that removes old versions"
        costs = "what a run deletes stays"
        yield Diagnosis(name="bucket", state="lack", found=held[-1], costs=costs, fix=fix)


def _judge_step(
    cloud: Cloud, place: BucketPlace, step: ProbeStep, trouble: Trouble | None
) -> Diagnosis:
    if trouble is None:
        return Diagnosis(name=step.verb, state="ok", found="permitted")
    explained = cloud.explain(trouble, step.verb, place)
    return broken(step.verb, trouble.found, explained.costs, explained.fix)


def _try(step: ProbeStep) -> Trouble | None:
    """Why it fails, None where it does not; what may be mended by trying is tried again once."""
    trouble = None
    for _ in range(TRIES_MAX):
        try:
            step.call()
        except Transient as error:
            trouble = read_trouble(error)
        except (Refused, Absent, RolloutError) as error:
            return read_trouble(error)
        else:
            return None
    return trouble
