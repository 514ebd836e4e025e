"""Where objects lie: a place that this version cannot reach is refused before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.run import RolloutRunSpec

_PLACE = re.compile(
    r"^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?|gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/.*)?|file:///.+)$"
)
_BUCKETS = ("s3://", "gs://")
_OUTPUT = re.compile(r"^((s3|gs)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]/+[^/].*|file:///.+)$")
_AMAZON_KEY = re.compile(
    r"^arn:aws[a-z-]*:kms:(?P<region>[a-z]{2}(-[a-z]+)+-\d+):\d{12}:key/(mrk-)?[0-9a-f-]{32,40}$"
)
_GOOGLE_KEY = re.compile(
    r"^projects/[^/\s]+/locations/[a-z0-9-]+/keyRings/[\w-]{1,63}/cryptoKeys/[\w-]{1,63}$"
)
_SHARED = re.compile(r"^file://")


def place_is_known(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A bucket or a folder; names of buckets as Amazon S3 and Google Cloud Storage have them (3 to 63 characters)."""
    uri = spec.storage.uri if spec.storage else None
    if uri is not None and not _PLACE.match(uri):
        yield Problem(
            field="spec.storage.uri",
            reason="NotSupported",
            message=f"{uri!r} is none of s3://bucket/prefix, gs://bucket/prefix and file:///folder",
            fix="name a bucket or a folder; leave storage.uri out to keep objects in the run's folder",
        )


def endpoint_has_a_bucket(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A server without a bucket on it."""
    storage = spec.storage
    if storage is None or storage.endpoint is None:
        return
    if not (storage.uri or "").startswith(_BUCKETS):
        yield Problem(
            field="spec.storage.endpoint",
            reason="NoBucket",
            message="a server of buckets is named, and no bucket on it",
            fix="set storage.uri to s3://bucket/prefix or gs://bucket/prefix, or leave the endpoint out",
        )
    elif not storage.endpoint.startswith(("http://", "https://")):
        yield Problem(
            field="spec.storage.endpoint",
            reason="InvalidValue",
            message=f"{storage.endpoint!r} is no address",
            fix="write https://host:port",
        )


def region_is_of_s3(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Google's buckets are found by their names alone."""
    storage = spec.storage
    if storage is not None and storage.region and (storage.uri or "").startswith("gs://"):
        yield Problem(
            field="spec.storage.region",
            reason="NotSupported",
            message="a region is named for a bucket of Google Cloud Storage, which is found without one",
            fix="leave storage.region out",
        )


def key_is_of_the_buckets_cloud(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A key that the bucket's cloud could use: of that cloud, and of the bucket's region where the run names one."""
    storage = spec.storage
    if storage is None or storage.kms_key is None:
        return
    uri, key = storage.uri or "", storage.kms_key
    if not uri.startswith(_BUCKETS):
        yield not_supported(
            "spec.storage.kmsKey",
            "encryption by a cloud's key of what lies in no bucket",
            "set storage.uri to s3://bucket/prefix or gs://bucket/prefix; encrypt the disk of a folder itself",
        )
        return
    found = _AMAZON_KEY.match(key)
    if uri.startswith("s3://") and found is None:
        yield _no_key(key, "arn:aws:kms:<region>:<account>:key/<id> (no alias: policies name keys)")
    elif uri.startswith("gs://") and not _GOOGLE_KEY.match(key):
        yield _no_key(key, "projects/<p>/locations/<l>/keyRings/<r>/cryptoKeys/<k> (no version)")
    elif found is not None and storage.region not in {None, found["region"]}:
        yield Problem(
            field="spec.storage.kmsKey",
            reason="WrongRegion",
            message=f"the key is of {found['region']}, the bucket of {storage.region}: S3 takes keys of the bucket's own region only",
            fix=f"name a key of {storage.region}, or correct storage.region",
        )


def _no_key(key: str, expected: str) -> Problem:
    return Problem(
        field="spec.storage.kmsKey",
        reason="InvalidValue",
        message=f"{key!r} is no key of the bucket's cloud",
        fix=f"write {expected}",
    )


def outputs_are_encrypted_too(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """What a run writes to another cloud's bucket could not be encrypted by its key."""
    storage = spec.storage
    if storage is None or storage.kms_key is None or storage.uri is None:
        return
    kind = f"{storage.uri.partition('://')[0]}://"
    outputs = {
        "spec.train.output.uri": spec.train.output if spec.train else None,
        "spec.infer.output.uri": spec.infer.output if spec.infer else None,
    }
    for field, output in outputs.items():
        to = "" if output is None else output.uri
        if to.startswith(_BUCKETS) and not to.startswith(kind):
            fix = f"name a place at {kind}, or leave storage.kmsKey out"
            yield not_supported(field, "an output that storage.kmsKey cannot encrypt", fix)


def folder_is_shared(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Pods share no folder."""
    uri = spec.storage.uri if spec.storage else None
    if facts.platform == "cluster" and uri and _SHARED.match(uri):
        yield Problem(
            field="spec.storage.uri",
            reason="NotSupported",
            message="pods of a cluster share no folder",
            fix="use s3://bucket/prefix or gs://bucket/prefix, or leave storage.uri out",
        )


def model_goes_to_a_known_place(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A folder or a prefix of a bucket, on one machine: the operator exports nothing."""
    output = spec.train.output if spec.train else None
    if output is None:
        return
    if facts.platform == "cluster":
        fix = "leave it out, and take the model home by rollout model export, or go on by model.fromRun"
        yield not_supported("spec.train.output", "an export at the end of a run in a cluster", fix)
    scheme, mark, _ = output.uri.partition("://")
    if mark and not _OUTPUT.match(output.uri):
        what = (
            f"a model at {scheme}:// without a prefix"
            if scheme in {"s3", "gs"}
            else f"a model at {scheme}://"
        )
        fix = "name a folder, s3://bucket/prefix or gs://bucket/prefix"
        yield not_supported("spec.train.output.uri", what, fix)


def wheel_has_a_digest(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Code by name only is whatever lies there when a pod starts."""
    wheel = spec.code.wheel if spec.code else None
    if wheel is not None and wheel.digest is None:
        yield Problem(
            field="spec.code.wheel.digest",
            reason="MissingField",
            message=f"{wheel.uri} may be another file tomorrow, and each pod would run what it finds",
            fix="write sha256:... of the file, as sha256sum prints it",
        )


def retention_removes_something(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A run that ends before its oldest snapshot is old enough keeps everything."""
    behind = spec.storage.bodies_behind if spec.storage else None
    if behind is None or spec.train is None or spec.train.max_steps is None:
        return
    oldest = spec.train.max_steps - (spec.snapshots.keep_last - 1) * spec.snapshots.every_steps
    if oldest - behind < 1:
        yield Problem(
            field="spec.storage.ledger.retention.trajectories.steps",
            reason="NothingRemoved",
            message=f"{behind} steps behind the oldest of {spec.snapshots.keep_last} snapshots, one every"
            f" {spec.snapshots.every_steps} steps: in {spec.train.max_steps} steps no trajectory is removed",
            fix="use a smaller number, lower snapshots.keepLast, or leave the retention out",
            severity=Severity.warning,
        )


RULES = (
    place_is_known,
    endpoint_has_a_bucket,
    region_is_of_s3,
    key_is_of_the_buckets_cloud,
    outputs_are_encrypted_too,
    folder_is_shared,
    model_goes_to_a_known_place,
    wheel_has_a_digest,
    retention_removes_something,
)
