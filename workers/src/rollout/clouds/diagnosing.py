"""Whether a run could keep its objects in its place from here: every look is bounded, and a failed one is a finding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from rollout.clouds.amazon import Amazon
from rollout.clouds.contract import READERS, BucketPlace, Cloud, Role, Trouble, read_trouble
from rollout.clouds.google import Google
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
from rollout.objects.retry import Absent, Refused, Transient

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
SKEW_SECONDS_MAX = 300.0
"""Amazon refuses more than 900, Google's tokens more than about 600."""
SKEW_SECONDS_NOTED = 30.0
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

    @property
    def scheme(self) -> str:
        """``s3``, ``gs`` or ``file``."""
        return self.uri.partition("://")[0]


def place_of(target: Target) -> BucketPlace:
    """Its bucket. Raises SpecError for what is none."""
    bucket = parse_bucket(target.uri, endpoint=target.endpoint, region=target.region)
    return BucketPlace(
        bucket=bucket.name, prefix=bucket.prefix, endpoint=target.endpoint, region=target.region
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
        return _broken(str(folder), str(error), "a run cannot keep its objects there", fix)
    return Diagnosis(name="place", state="ok", found=f"{folder}: can be written")


def _judge_clock(cloud: Cloud, place: BucketPlace | None, now: Callable[[], float]) -> Diagnosis:
    """Whether the server answers at all, and at what time."""
    address = cloud.address(place)
    limit = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    try:
        date = httpx.head(address, timeout=limit, follow_redirects=False).headers.get("Date", "")
        skew = now() - parsedate_to_datetime(date).astimezone(UTC).timestamp()
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        said = Trouble(status=0, code=type(error).__name__, said=str(error))
        explained = cloud.explain(said, "reach", place or BucketPlace(bucket="", prefix=""))
        return _broken("server", f"{address}: {said.found}", explained.costs, explained.fix)
    except (ValueError, TypeError):
        costs = "a clock that is wrong shows in refusals only"
        fix = "see what stands before the server: its answers have no date"
        return Diagnosis(name="clock", state="lack", found="not compared", costs=costs, fix=fix)
    return _judge_skew(skew)


def _judge_skew(skew: float) -> Diagnosis:
    found = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    fix = "set this machine's clock (chrony, or the time service of the node)"
    if abs(skew) > SKEW_SECONDS_MAX:
        return _broken("clock", found, "signed calls and tokens are refused", fix)
    if abs(skew) > SKEW_SECONDS_NOTED:
        costs = "nothing yet: calls are refused from some minutes on"
        return Diagnosis(name="clock", state="lack", found=found, costs=costs, fix=fix)
    return Diagnosis(name="clock", state="ok", found="that of the server")


def _judge_identity(cloud: Cloud, place: BucketPlace | None, where: BucketPlace) -> Diagnosis:
    try:
        return Diagnosis(name="identity", state="ok", found=cloud.ask_identity(place))
    except (SpecError, Refused, Transient, Absent) as error:
        said = read_trouble(error)
        explained = cloud.explain(said, "identify", where)
        return _broken("identity", said.found, explained.costs, explained.fix)


def _judge_steps(
    cloud: Cloud, target: Target, place: BucketPlace, role: Role
) -> Iterator[Diagnosis]:
    """What a run does to its bucket, each tried whatever came of the others."""
    held: list[str] = []
    try:
        remote = open_bucket(
            parse_bucket(target.uri, endpoint=target.endpoint, region=target.region)
        )
        steps = probe_steps(remote, held)
    except RolloutError as error:
        said = read_trouble(error)
        explained = cloud.explain(said, "reach", place)
        yield _broken("bucket", said.found, explained.costs, explained.fix)
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
    return _broken(step.verb, trouble.found, explained.costs, explained.fix)


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


def _broken(name: str, found: str, costs: str, fix: str) -> Diagnosis:
    return Diagnosis(name=name, state="broken", found=found, costs=costs, fix=fix)
