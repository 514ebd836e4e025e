"""AWS: where its credentials come from (IRSA, Pod Identity, keys, a machine's role), and what its refusals mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from rollout.clouds.contract import BucketPlace, Explained, Trouble
from rollout.clouds.policies import s3_statement
from rollout.clouds.tokens import read_token
from rollout.doctor.judge import Diagnosis
from rollout.objects.retry import Refused

AUDIENCE = "sts.amazonaws.com"
SOURCE = "credentials"
REGION = re.compile(r"^[a-z]{2}(-[a-z]+)+-\d+$")
ROLE = re.compile(r"^arn:aws[a-z-]*:iam::\d{12}:role/.+$")
DENIED = re.compile(
    r"not authorized to perform: (?P<action>[\w:*]+)(?: on resource: \"?(?P<resource>[^\s\"]+))?"
)
KEY = re.compile(r"^arn:aws[a-z-]*:kms:(?P<region>[a-z0-9-]+):\d{12}:key/[\w-]+$")
EXPECTED = re.compile(r"expecting '(?P<region>[\w-]+)'")
NO_RUN = "a run cannot keep its objects there"
ACTIONS = {
    "look for": ("s3:GetObject", "s3:ListBucket"),
    "write": ("s3:PutObject",),
    "read": ("s3:GetObject",),
    "list": ("s3:ListBucket",),
    "ask about": ("s3:GetObject",),
    "delete": ("s3:DeleteObject",),
}
NO_CREDENTIALS = (
    "on EKS give the role's serviceAccountAnnotations eks.amazonaws.com/role-arn (IRSA), or make a Pod Identity association;"
    " elsewhere set AWS_PROFILE or run aws sso login; a machine's role needs its metadata service (169.254.169.254) to be reached"
)
EGRESS = (
    "open egress to it on port 443 (NetworkPolicy, security group, VPC endpoint), or set HTTPS_PROXY;"
    " check the address in spec.storage.endpoint or AWS_ENDPOINT_URL"
)
FIXES = {
    "ExpiredToken": "the session has ended: sign in again (aws sso login), or unset AWS_SESSION_TOKEN and the keys beside it",
    "ExpiredTokenException": "the session or the service account's token has ended: start the pod anew, or sign in again",
    "InvalidAccessKeyId": "the key does not exist there: correct AWS_ACCESS_KEY_ID, or take a role",
    "InvalidClientTokenId": "the key does not exist, or its session token is missing: set all of AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or take a role",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is not that of the key: correct it",
    "RequestTimeTooSkewed": "set this machine's clock (chrony, or the time service of the node)",
    "NoSuchBucket": "make the bucket, or correct its name in spec.storage.uri",
    "InvalidIdentityToken": "register the cluster's OIDC issuer as an identity provider in IAM, with audience sts.amazonaws.com",
    "KMS.DisabledException": "enable the KMS key that encrypts the bucket (spec.storage.kmsKey, or the bucket's own)",
    "KMS.NotFoundException": "the KMS key (spec.storage.kmsKey, or that of the bucket's default encryption) does not exist in the bucket's region: correct it",
    "KMS.KMSInvalidStateException": "the KMS key that encrypts the bucket is disabled or being deleted: enable it, or take another (spec.storage.kmsKey)",
    "AllAccessDisabled": "the bucket's account is suspended: see its owner",
}
WRONG_REGION = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
DENIALS = frozenset({"AccessDenied", "AccessDeniedException", "403", "Forbidden"})
MOVED = frozenset({301, 307})


class Amazon:
    """AWS, or a server that speaks S3's protocol."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def judge_source(self, now: float) -> Iterator[Diagnosis]:
        """The environment's part of the standard chain, in its order."""
        get = self._environ.get
        key, secret = get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")
        role, token = get("AWS_ROLE_ARN"), get("AWS_WEB_IDENTITY_TOKEN_FILE")
        pod = get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if bool(key) != bool(secret):
            missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
            yield _broken(f"{missing} is not set, its other half is", "set both, or neither")
        elif key:
            yield from self._judge_keys(hides=bool(token or pod))
        elif role or token:
            yield from _judge_web_identity(role or "", token or "", now)
        elif pod:
            yield from self._judge_pod_identity(now)
        elif get("AWS_PROFILE"):
            yield _well(f"profile {get('AWS_PROFILE')} (AWS_PROFILE)")
        elif (get("AWS_EC2_METADATA_DISABLED") or "").lower() == "true":
            yield _note(
                "files in ~/.aws, else none: AWS_EC2_METADATA_DISABLED keeps off a machine's role"
            )
        else:
            yield _well("files in ~/.aws, else the role of this machine")

    def judge_settings(self, place: BucketPlace) -> Iterator[Diagnosis]:
        """A region is named, and looks like one."""
        region = self._region(place)
        fix = "name the bucket's region in spec.storage.region, such as eu-central-1"
        if region and not place.endpoint and not REGION.match(region):
            yield _broken(f"{region} is no region", fix, "region")
        elif region or place.endpoint:
            yield Diagnosis(name="region", state="ok", found=region or "that of the server")
        else:
            costs = "calls go to us-east-1, and are sent on or refused"
            yield Diagnosis(name="region", state="lack", found="unset", costs=costs, fix=fix)
        yield from _judge_key(place.kms_key, region)

    def ask_identity(self, place: BucketPlace | None) -> str:
        """The caller's ARN; a server that is not Amazon's has none to tell. Raises SpecError, Refused, Transient."""
        from rollout.objects import s3

        way = s3.find_way()
        if not way:
            raise Refused("no credentials (nothing of the standard chain has any)", NO_CREDENTIALS)
        if place is not None and place.endpoint and not self._environ.get("AWS_ENDPOINT_URL_STS"):
            return f"as the server at {place.endpoint} knows it (by {way})"
        return f"{s3.ask_caller(place.region if place else None)} (by {way})"

    def address(self, place: BucketPlace | None) -> str:
        """The bucket's server."""
        named = (place.endpoint if place else None) or self._environ.get("AWS_ENDPOINT_URL_S3")
        named = named or self._environ.get("AWS_ENDPOINT_URL")
        region = self._region(place)
        suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        return named or (f"https://s3.{region}.{suffix}" if region else f"https://s3.{suffix}")

    def explain(self, trouble: Trouble, verb: str, place: BucketPlace) -> Explained:
        """Amazon's codes, and the sentences in which it names actions and keys."""
        if trouble.code in FIXES:
            return Explained(costs=NO_RUN, fix=FIXES[trouble.code])
        if trouble.code in WRONG_REGION or trouble.status in MOVED:
            return Explained(costs=NO_RUN, fix=_region_fix(trouble.said))
        if trouble.said.startswith("no credentials"):
            return Explained(costs=NO_RUN, fix=NO_CREDENTIALS)
        if trouble.code in DENIALS or trouble.status == 403:
            return Explained(costs=NO_RUN, fix=_denied_fix(trouble.said, verb, place))
        if not trouble.status and not trouble.is_refused:
            return Explained(costs=NO_RUN, fix=EGRESS)
        fix = f"see whether a server of S3's protocol answers at {self.address(place)}"
        return Explained(costs=NO_RUN, fix=trouble.fix or fix)

    def _region(self, place: BucketPlace | None) -> str:
        """The region that the run or the environment names; empty: neither does."""
        get = self._environ.get
        named = place.region if place else None
        return named or get("AWS_REGION") or get("AWS_DEFAULT_REGION") or ""

    def _judge_keys(self, *, hides: bool) -> Iterator[Diagnosis]:
        if hides:
            fix = "remove AWS_ACCESS_KEY_ID and its secret from the pod (env, Secret)"
            found = "keys in the environment hide the service account's role"
            yield Diagnosis(
                name=SOURCE, state="lack", found=found, costs="the role is never taken", fix=fix
            )
        elif self._environ.get("AWS_SESSION_TOKEN"):
            yield _note("keys of a session in the environment: they end within hours")
        else:
            yield _well("keys in the environment (AWS_ACCESS_KEY_ID)")

    def _judge_pod_identity(self, now: float) -> Iterator[Diagnosis]:
        path = self._environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        if path is None:
            yield _well("a container's role (AWS_CONTAINER_CREDENTIALS_FULL_URI)")
            return
        token = read_token(path)
        restart = "make the Pod Identity association, then start the pod anew"
        if token.error:
            yield _broken(f"Pod Identity: {path}: {token.error}", restart)
        elif _has_ended(token.claims.exp if token.claims else None, now):
            yield _broken(f"Pod Identity: the token in {path} has ended", restart)
        else:
            yield _well("Pod Identity")


def _judge_key(key: str | None, region: str) -> Iterator[Diagnosis]:
    """A key that S3 could use in that region."""
    if key is None:
        return
    found = KEY.match(key)
    if found is None:
        fix = "write the key's whole ARN into spec.storage.kmsKey, arn:aws:kms:<region>:<account>:key/<id>"
        yield _broken(f"{key} is no key's ARN", fix, "key")
    elif region and found["region"] != region:
        fix = f"name a key of {region} in spec.storage.kmsKey, or correct spec.storage.region"
        yield _broken(f"a key of {found['region']}, for a bucket of {region}", fix, "key")
    else:
        yield Diagnosis(name="key", state="ok", found=key)


def _judge_web_identity(role: str, path: str, now: float) -> Iterator[Diagnosis]:
    annotate = (
        "annotate the pod's service account with eks.amazonaws.com/role-arn, and start the pod anew"
    )
    if not role or not path:
        missing = "AWS_WEB_IDENTITY_TOKEN_FILE" if role else "AWS_ROLE_ARN"
        yield _broken(f"IRSA: {missing} is not set", annotate)
        return
    if not ROLE.match(role):
        fix = "write the role's whole ARN, arn:aws:iam::<account>:role/<name>, into the annotation"
        yield _broken(f"IRSA: AWS_ROLE_ARN={role} is no role's ARN", fix)
        return
    token = read_token(path)
    if token.error or token.claims is None:
        yield _broken(f"IRSA: {path}: {token.error}", annotate)
    elif AUDIENCE not in token.claims.audiences:
        fix = f"set eks.amazonaws.com/audience: {AUDIENCE} at the service account, or leave it out"
        yield _broken(f"IRSA: the token is for {', '.join(token.claims.audiences)}", fix)
    elif _has_ended(token.claims.exp, now):
        fix = (
            "start the pod anew: the kubelet no longer renews the token; check this machine's clock"
        )
        yield _broken(f"IRSA: the token in {path} has ended", fix)
    else:
        yield _well(f"IRSA: {role} for {token.claims.sub}")


def _has_ended(expires: float | None, now: float) -> bool:
    return expires is not None and expires <= now


def _region_fix(said: str) -> str:
    found = EXPECTED.search(said)
    named = f"set spec.storage.region to {found['region']}" if found else "name the bucket's region"
    return f"{named} (spec.storage.region; aws s3api get-bucket-location tells it)"


def _denied_fix(said: str, verb: str, place: BucketPlace) -> str:
    found = DENIED.search(said)
    action = found["action"] if found else ""
    if "AssumeRoleWithWebIdentity" in said:
        return (
            "let the role's trust policy admit this service account: Action sts:AssumeRoleWithWebIdentity, with"
            ' StringEquals of the issuer\'s ":sub" (system:serviceaccount:<namespace>:<name>) and ":aud" (sts.amazonaws.com)'
        )
    if action.startswith("kms:"):
        key = (found["resource"] if found else None) or "the bucket's key"
        statement = {"Effect": "Allow", "Action": [action], "Resource": key}
        return f"grant {action}, in the identity's policy and the key's: {json.dumps(statement)}"
    if "explicit deny" in said:
        return f"{action or 'it'} is denied in words (bucket policy, SCP or boundary): no grant helps until that Deny goes"
    actions = (action,) if action else ACTIONS.get(verb, ())
    if not actions:
        return "see the identity's policies"
    statements = [json.dumps(s3_statement([one], place)) for one in actions]
    return f"grant {' and '.join(actions)}: {', '.join(statements)}"


def _well(found: str) -> Diagnosis:
    return Diagnosis(name=SOURCE, state="ok", found=found)


def _note(found: str) -> Diagnosis:
    return Diagnosis(
        name=SOURCE,
        state="lack",
        found=found,
        costs="a long run loses its rights",
        fix="take a role: IRSA, Pod Identity or a machine's",
    )


def _broken(found: str, fix: str, name: str = SOURCE) -> Diagnosis:
    return Diagnosis(name=name, state="broken", found=found, costs=NO_RUN, fix=fix)
