"""Google Cloud: where its credentials come from (Workload Identity, a key, a user), and what its refusals mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollout.clouds.contract import BucketPlace, Explained, Trouble
from rollout.clouds.policies import gcs_binding
from rollout.doctor.judge import Diagnosis

SOURCE = "credentials"
KEY_BYTES_MAX = 1 << 20
KINDS = {
    "service_account": "a service account's key",
    "authorized_user": "a user's sign-in (gcloud)",
    "external_account": "workload identity federation",
    "external_account_authorized_user": "workforce identity federation",
    "impersonated_service_account": "an impersonated service account",
    "gdch_service_account": "a service account of Distributed Cloud",
}
KEY = re.compile(r"^projects/[^/\s]+/locations/[a-z0-9-]+/keyRings/[\w-]+/cryptoKeys/[\w-]+$")
LACKS = re.compile(r"(?:does not have|lacks) (?P<permission>storage\.[\w.]+) access")
NO_RUN = "a run cannot keep its objects there"
PERMISSIONS = {
    "look for": "storage.objects.get",
    "write": "storage.objects.create",
    "read": "storage.objects.get",
    "list": "storage.objects.list",
    "ask about": "storage.objects.get",
    "delete": "storage.objects.delete",
}
NO_CREDENTIALS = (
    "on GKE give the role's serviceAccountAnnotations iam.gke.io/gcp-service-account, and that account"
    " roles/iam.workloadIdentityUser for the pod's; elsewhere gcloud auth application-default login; a machine's or"
    " pod's identity needs its metadata service (metadata.google.internal, 169.254.169.254) to be reached"
)
EGRESS = (
    "open egress to it on port 443 (NetworkPolicy, firewall, Private Google Access), or set HTTPS_PROXY;"
    " check the address in spec.storage.endpoint"
)
SENTENCES: tuple[tuple[str, str], ...] = (
    (
        "short-lived token",
        "set this machine's clock: Google refuses a token that is signed at another time",
    ),
    (
        "invalid_grant",
        "sign in again (gcloud auth application-default login), or make a new key: this one was revoked or has ended; a wrong clock says the same",
    ),
    (
        "account not found",
        "the service account is gone: make it anew, or correct the annotation iam.gke.io/gcp-service-account",
    ),
    (
        "iam.serviceaccounts.getaccesstoken",
        "bind roles/iam.workloadIdentityUser of the Google service account to the pod's: serviceAccount:PROJECT.svc.id.goog[NAMESPACE/NAME]",
    ),
    (
        "organization's policy",
        "the bucket is behind VPC Service Controls: let this network or identity into its perimeter",
    ),
    (
        "key version is not enabled",
        "enable the key's primary version (gcloud kms keys versions enable), or name another key (spec.storage.kmsKey)",
    ),
    (
        "kms key location",
        "name a key of the bucket's own location (spec.storage.kmsKey)",
    ),
    (
        "cloud kms",
        "give the project's storage service agent roles/cloudkms.cryptoKeyEncrypterDecrypter at the bucket's key, and enable that key",
    ),
    ("billing", "turn on billing for the bucket's project"),
    (
        "retention",
        "take a bucket without a retention policy or holds: a run deletes what it needs no more",
    ),
    (
        "user project",
        "the bucket is requester-pays, which runs do not support: take another bucket",
    ),
    (
        "insufficient authentication scopes",
        "give the machine the scope cloud-platform, and keep rights to IAM",
    ),
)
"""What stands in Google's refusals, in small letters, and what ends them."""
UNAUTHORIZED, FORBIDDEN = 401, 403


class Google:
    """Google Cloud, or an emulator of its storage."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def judge_source(self, now: float) -> Iterator[Diagnosis]:
        """The environment's part of application default credentials, in its order."""
        del now  # tokens here are had from servers, and end with them
        path = self._environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        if path:
            yield _judge_file(path)
        elif self._environ.get("NO_GCE_CHECK", "").lower() == "true":
            found = "gcloud's file, else none: NO_GCE_CHECK keeps off the metadata service"
            yield _finding("lack", found, NO_CREDENTIALS)
        else:
            yield _finding("ok", "gcloud's file, else the metadata service (Workload Identity)")

    def judge_settings(self, place: BucketPlace) -> Iterator[Diagnosis]:
        """Buckets of Google's are found without a region."""
        emulator = self._environ.get("STORAGE_EMULATOR_HOST")
        if emulator and not place.endpoint:
            found = f"STORAGE_EMULATOR_HOST={emulator}"
            costs = "objects go to an emulator, without credentials"
            fix = "unset STORAGE_EMULATOR_HOST for a real bucket"
            yield Diagnosis(name="address", state="lack", found=found, costs=costs, fix=fix)
        if place.kms_key is not None:
            yield _judge_key(place.kms_key)
        if place.region:
            found = f"spec.storage.region: {place.region}"
            costs = "nothing: buckets of Google's are found without it"
            yield Diagnosis(
                name="region", state="lack", found=found, costs=costs, fix="leave it out"
            )

    def ask_identity(self, place: BucketPlace | None) -> str:
        """The account's address. Raises SpecError, Refused, Transient."""
        if place is not None and self.address(place).startswith("http://"):
            return f"nobody: {self.address(place)} is taken for an emulator"
        from rollout.objects import gcs

        return gcs.ask_caller()

    def address(self, place: BucketPlace | None) -> str:
        """The bucket's server."""
        named = place.endpoint if place else None
        host = self._environ.get("STORAGE_EMULATOR_HOST")
        emulator = host if not host or "://" in host else f"http://{host}"
        return named or emulator or "https://storage.googleapis.com"

    def explain(self, trouble: Trouble, verb: str, place: BucketPlace) -> Explained:
        """By what stands in Google's sentences; a right that is missing has its own."""
        said = trouble.said.lower()
        found = LACKS.search(trouble.said)
        for words, fix in SENTENCES:
            if words in said:
                return Explained(costs=NO_RUN, fix=fix)
        if "bucket does not exist" in said:
            return Explained(
                costs=NO_RUN, fix="make the bucket, or correct its name in spec.storage.uri"
            )
        if said.startswith("no credentials") or "metadata" in said:
            return Explained(costs=NO_RUN, fix=NO_CREDENTIALS)
        if trouble.status == UNAUTHORIZED:
            return Explained(
                costs=NO_RUN, fix="the token is not valid there or has ended: sign in again"
            )
        if trouble.status == FORBIDDEN:
            permission = found["permission"] if found else PERMISSIONS.get(verb, "")
            return Explained(costs=NO_RUN, fix=_grant(permission, place))
        if not trouble.status and not trouble.is_refused:
            return Explained(costs=NO_RUN, fix=EGRESS)
        fix = f"see whether Google's storage API answers at {self.address(place)}"
        return Explained(costs=NO_RUN, fix=trouble.fix or fix)


def _judge_key(key: str) -> Diagnosis:
    if KEY.match(key):
        return Diagnosis(name="key", state="ok", found=key)
    fix = "write projects/<p>/locations/<l>/keyRings/<r>/cryptoKeys/<k> into spec.storage.kmsKey, without a version"
    return Diagnosis(name="key", state="broken", found=f"{key}: no key", costs=NO_RUN, fix=fix)


def _judge_file(path: str) -> Diagnosis:
    fix = "let GOOGLE_APPLICATION_CREDENTIALS name a key or a federation's configuration, or unset it for Workload Identity"
    try:
        with Path(path).open("rb") as file:
            data = file.read(KEY_BYTES_MAX + 1)
        kind = msgspec.json.decode(data[:KEY_BYTES_MAX], type=dict).get("type")
    except OSError as error:
        return _finding("broken", f"{path}: {error.strerror or type(error).__name__}", fix)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _finding("broken", f"{path}: no JSON object", fix)
    if not isinstance(kind, str) or kind not in KINDS:
        return _finding("broken", f"{path}: its type is no kind of credentials", fix)
    return _finding("ok", f"{KINDS[kind]} (GOOGLE_APPLICATION_CREDENTIALS)")


def _grant(permission: str, place: BucketPlace) -> str:
    if not permission:
        return "see the identity's roles"
    binding = gcs_binding([permission], place)
    return f"grant {permission} by a role at the bucket: {json.dumps(binding)}"


def _finding(state: Any, found: str, fix: str = "") -> Diagnosis:
    costs = "" if state == "ok" else NO_RUN
    return Diagnosis(name=SOURCE, state=state, found=found, costs=costs, fix=fix)
