"""Least policies, from the calls that runs were recorded to make: pure.

``RECORDED`` is what the tests record of a run's objects through the clouds' own client libraries, and compare with
this table: a new call fails there first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rollout.clouds.contract import READERS, BucketPlace, Role
from rollout_api.fields.event_targets import EventTarget, partition_of

Access = Literal["read", "write"]
RECORDED: Mapping[str, Mapping[Access, tuple[str, ...]]] = {
    "s3": {
        "read": ("GetObject", "HeadObject"),
        "write": (
            "AbortMultipartUpload",
            "CompleteMultipartUpload",
            "CreateMultipartUpload",
            "DeleteObject",
            "GetObject",
            "HeadObject",
            "ListObjectsV2",
            "PutObject",
            "UploadPart",
        ),
    },
    "gs": {
        "read": ("objects.get",),
        "write": ("objects.delete", "objects.get", "objects.insert", "objects.list"),
    },
    "sqs": {"read": (), "write": ("SendMessage",)},
    "sns": {"read": (), "write": ("Publish",)},
    "pubsub": {"read": (), "write": ("topics.publish",)},
}
"""Calls by scheme and access, in the clouds' names for them; a run's events are sent by its coordinator alone."""
S3_ACTIONS = {
    "AbortMultipartUpload": ("s3:AbortMultipartUpload",),
    "CompleteMultipartUpload": ("s3:PutObject",),
    "CreateMultipartUpload": ("s3:PutObject",),
    "DeleteObject": ("s3:DeleteObject",),
    "GetObject": ("s3:GetObject",),
    # Without the right to list, S3 says "forbidden" of an object that is not there.
    "HeadObject": ("s3:GetObject", "s3:ListBucket"),
    "ListObjectsV2": ("s3:ListBucket",),
    "PutObject": ("s3:PutObject",),
    "UploadPart": ("s3:PutObject",),
}
OF_S3_BUCKET = frozenset({"s3:ListBucket"})
KMS_ACTIONS: Mapping[Access, tuple[str, ...]] = {
    "read": ("kms:Decrypt",),
    "write": ("kms:Decrypt", "kms:GenerateDataKey"),
}
GCS_PERMISSIONS = {
    "objects.delete": "storage.objects.delete",
    "objects.get": "storage.objects.get",
    "objects.insert": "storage.objects.create",
    "objects.list": "storage.objects.list",
}
GCS_AGENT = "serviceAccount:service-PROJECT_NUMBER@gs-project-accounts.iam.gserviceaccount.com"
"""Google's storage uses keys itself, for whoever may use the bucket: the agent of the bucket's project."""
GCS_KEY_PERMISSIONS = (
    "cloudkms.cryptoKeyVersions.useToDecrypt",
    "cloudkms.cryptoKeyVersions.useToEncrypt",
)
OF_GCS_BUCKET = frozenset({"storage.objects.list"})

SENDS = {
    "SendMessage": "sqs:SendMessage",
    "Publish": "sns:Publish",
    "topics.publish": "pubsub.topics.publish",
}
"""What sending a run's events needs, by call."""


def access_of(role: Role) -> Access:
    """Whether a role reads or writes a run's objects."""
    return "read" if role in READERS else "write"


def s3_actions(role: Role) -> tuple[str, ...]:
    """IAM actions of a role's recorded calls."""
    calls = RECORDED["s3"][access_of(role)]
    return tuple(sorted({action for call in calls for action in S3_ACTIONS[call]}))


def s3_statement(actions: Iterable[str], place: BucketPlace) -> dict[str, Any]:
    """One statement that permits actions of one resource: all of the bucket, or all of its objects."""
    named = sorted(actions)
    bucket = f"arn:{partition_of(place.region)}:s3:::{place.bucket}"
    objects = f"{bucket}/{place.prefix}/*" if place.prefix else f"{bucket}/*"
    resource = bucket if set(named) <= OF_S3_BUCKET else objects
    return {"Effect": "Allow", "Action": named, "Resource": resource}


def s3_policy(place: BucketPlace, role: Role, key: str | None = None) -> dict[str, Any]:
    """An IAM policy document. ``key``: the ARN of the bucket's KMS key, where it has one; the place's own goes before it."""
    key = place.kms_key or key
    groups = _by_resource(s3_actions(role), OF_S3_BUCKET)
    statements = [s3_statement(group, place) for group in groups]
    if key is not None:
        allowed = list(KMS_ACTIONS[access_of(role)])
        statements.append({"Effect": "Allow", "Action": allowed, "Resource": key})
    return {"Version": "2012-10-17", "Statement": statements}


def gcs_permissions(role: Role) -> tuple[str, ...]:
    """Permissions of a role's recorded calls."""
    return tuple(sorted({GCS_PERMISSIONS[call] for call in RECORDED["gs"][access_of(role)]}))


def gcs_binding(permissions: Iterable[str], place: BucketPlace) -> dict[str, Any]:
    """One binding at the bucket that permits all of it, or all below the prefix.

    Listing is asked of the bucket, whose name no object's prefix begins with: it has no condition.
    """
    named = list(permissions)
    binding: dict[str, Any] = {"bucket": place.bucket, "permissions": named}
    if place.prefix and set(named) != OF_GCS_BUCKET:
        starts = f"projects/_/buckets/{place.bucket}/objects/{place.prefix}/"
        binding["condition"] = f"resource.name.startsWith('{starts}')"
    return binding


def gcs_policy(place: BucketPlace, role: Role) -> dict[str, Any]:
    """A custom role, and the conditions of its bindings at the bucket."""
    groups = _by_resource(gcs_permissions(role), OF_GCS_BUCKET)
    bindings = [gcs_binding(group, place) for group in groups]
    if place.kms_key is not None:
        named = {"kmsKey": place.kms_key, "member": GCS_AGENT}
        bindings.append({**named, "permissions": list(GCS_KEY_PERMISSIONS)})
    return {"bindings": bindings}


def events_policy(target: EventTarget, key: str | None = None) -> dict[str, Any]:
    """What the coordinator needs to send a run's events: one action at one queue or topic. ``key``: the ARN of its KMS key."""
    [action] = [SENDS[call] for call in RECORDED[target.service]["write"]]
    if target.service == "pubsub":
        return {"bindings": [{"topic": target.resource, "permissions": [action]}]}
    statements = [{"Effect": "Allow", "Action": [action], "Resource": target.resource}]
    if key is not None:
        allowed = list(KMS_ACTIONS["write"])
        statements.append({"Effect": "Allow", "Action": allowed, "Resource": key})
    return {"Version": "2012-10-17", "Statement": statements}


def run_policy(
    place: BucketPlace | None,
    scheme: str,
    targets: Iterable[EventTarget],
    role: Role,
    key: str | None = None,
) -> dict[str, Any]:
    """All that a role of a run needs: of one cloud its policy, of two each one's by the cloud's name.

    ``place`` None: its objects lie in no bucket. ``key``: the ARN of the KMS key of all that is Amazon's.
    """
    amazon: list[dict[str, Any]] = []
    google: list[dict[str, Any]] = []
    if place is not None and scheme == "s3":
        amazon += s3_policy(place, role, key)["Statement"]
    elif place is not None:
        google += gcs_policy(place, role)["bindings"]
    for target in targets if role == "coordinator" else ():
        policy = events_policy(target, key)
        amazon += policy.get("Statement", ())
        google += policy.get("bindings", ())
    both = {
        **({"aws": {"Version": "2012-10-17", "Statement": _once(amazon)}} if amazon else {}),
        **({"gcp": {"bindings": _once(google)}} if google else {}),
    }
    return next(iter(both.values())) if len(both) == 1 else both


def _once(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for number, one in enumerate(found) if one not in found[:number]]


def _by_resource(named: Iterable[str], of_bucket: frozenset[str]) -> list[list[str]]:
    """Those of objects, then those of the bucket itself; no group is empty."""
    objects, bucket = [], []
    for one in named:
        (bucket if one in of_bucket else objects).append(one)
    return [group for group in (objects, bucket) if group]
