"""Set-ups that do not work, each as somebody has it: what is set, what the cloud says, and what the doctor has to name."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time

from clouds_kit import ROLE_ARN, Refusal

S3, GS = "s3://runs/team", "gs://runs/team"
SQS = "sqs://eu-central-1/111122223333/runs"
FOREIGN = "sqs://eu-central-1/999999999999/runs"
SNS = "sns://eu-central-1/111122223333/runs"
PUBSUB = "pubsub://a-project/runs"
HIDDEN = "a-text-that-is-never-shown"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": HIDDEN}
KEY = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
OF_ANOTHER = KEY.replace("eu-central-1", "us-east-1")
TOKEN, GONE = "TOKEN", "/nowhere/token"
IRSA = {"AWS_ROLE_ARN": ROLE_ARN, "AWS_WEB_IDENTITY_TOKEN_FILE": TOKEN}
POD = {
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": TOKEN,
}
ADC = "GOOGLE_APPLICATION_CREDENTIALS"
DENIED = "User: arn:aws:sts::111122223333:assumed-role/x/y is not authorized to perform: {} on resource: {}"
POLICY = '"arn:aws:s3:::runs/team/*"'


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """``finding`` is the diagnosis that has to be broken; ``words`` stand in its fix or in what was found.

    ``claims``: of the token that TOKEN stands for; None: an empty file. ``file``: what a file of credentials holds, SERVICE
    for a service account's. ``closed``: nobody answers there. ``storage``: further fields of a manifest's storage.
    """

    uri: str
    env: dict[str, str] = field(default_factory=lambda: dict(KEYS))
    refusals: dict[str, Refusal] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    claims: dict | None = field(default_factory=dict)
    file: str | None = None
    storage: str = ""
    region: str = "eu-central-1"
    skew: float = 0.0
    closed: bool = False
    finding: str
    words: tuple[str, ...]


def _amazon(finding: str, *words: str, uri: str = S3, **more) -> SetUp:
    return SetUp(uri=uri, finding=finding, words=words, **more)


def _refused(finding: str, method: str, refusal: Refusal, *words: str, uri: str = S3) -> SetUp:
    return SetUp(uri=uri, refusals={method: refusal}, finding=finding, words=words)


def _google(said: str, *words: str, status: int = 403) -> SetUp:
    refusals = {"GET": Refusal(status, "google", said)}
    return SetUp(uri=GS, env={}, refusals=refusals, finding="look for", words=words)


def _token(said: str, *words: str) -> SetUp:
    """What Google's server of tokens says to a service account."""
    refusals = {"POST": Refusal(400, "oauth", said)}
    return SetUp(
        uri=PUBSUB,
        env={ADC: "FILE"},
        file="SERVICE",
        refusals=refusals,
        finding="identity",
        words=words,
    )


def _file(content: str | None, *words: str) -> SetUp:
    return SetUp(uri=PUBSUB, env={ADC: "FILE"}, file=content, finding="credentials", words=words)


CREDENTIALS = {
    "a key without its secret": _amazon("credentials", "AWS_SECRET_ACCESS_KEY", "set both", env={"AWS_ACCESS_KEY_ID": "AKIA"}),
    "a secret without its key": _amazon("credentials", "AWS_ACCESS_KEY_ID", "set both", env={"AWS_SECRET_ACCESS_KEY": "s"}),
    "no credentials at all": _amazon("identity", "IRSA", "Pod Identity", "aws sso login", env={}),
    "IRSA without a token": _amazon("credentials", "annotate the pod's service account", env={"AWS_ROLE_ARN": ROLE_ARN}),
    "IRSA without a role": _amazon("credentials", "AWS_ROLE_ARN is not set", env={"AWS_WEB_IDENTITY_TOKEN_FILE": TOKEN}),
    "IRSA with a role's name alone": _amazon("credentials", "the role's whole ARN", env={**IRSA, "AWS_ROLE_ARN": "research"}),
    "IRSA whose token is not mounted": _amazon("credentials", "annotate", env={**IRSA, "AWS_WEB_IDENTITY_TOKEN_FILE": GONE}),
    "IRSA whose token is empty": _amazon("credentials", "annotate", env=IRSA, claims=None),
    "IRSA whose token is for somebody else": _amazon("credentials", "eks.amazonaws.com/audience", env=IRSA, claims={"aud": ["vault"]}),
    "IRSA whose token has ended": _amazon("credentials", "the kubelet no longer renews", env=IRSA, claims={"exp": time() - 60}),
    "Pod Identity without its token": _amazon("credentials", "Pod Identity association", env={**POD, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": GONE}),
    "Pod Identity whose token has ended": _amazon("credentials", "start the pod anew", env=POD, claims={"exp": time() - 60}),
    "a role that does not trust the account": _amazon("identity", "trust policy", env=IRSA, refusals={"AssumeRoleWithWebIdentity": Refusal(403, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity")}),
    "an issuer that IAM does not know": _amazon("identity", "OIDC issuer", env=IRSA, refusals={"AssumeRoleWithWebIdentity": Refusal(400, "InvalidIdentityToken")}),
    "a token of an account that STS takes no more": _amazon("identity", "start the pod anew", env=IRSA, refusals={"AssumeRoleWithWebIdentity": Refusal(400, "ExpiredTokenException")}),
    "a session that has ended": _refused("identity", "GetCallerIdentity", Refusal(403, "ExpiredToken"), "sign in again"),
    "a key that does not exist": _refused("identity", "GetCallerIdentity", Refusal(403, "InvalidClientTokenId"), "AWS_SESSION_TOKEN"),
    "a secret of another key": _refused("identity", "GetCallerIdentity", Refusal(403, "SignatureDoesNotMatch"), "AWS_SECRET_ACCESS_KEY"),
    "Google's key that is not mounted": _file(None, "GOOGLE_APPLICATION_CREDENTIALS"),
    "Google's key that is no JSON": _file("<html>", "no JSON object"),
    "Google's key of an unknown kind": _file('{"type": "key"}', "no kind of credentials"),
    "nobody is signed in at Google": SetUp(uri=PUBSUB, env={}, finding="identity", words=("iam.gke.io/gcp-service-account", "gcloud auth")),
    "Google's key that was revoked": _token("Invalid grant: account not found", "sign in again"),
    "a clock that Google does not believe": _token("Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe", "set this machine's clock"),
}  # fmt: skip
PLACES = {
    "a region that is none": _amazon("region", "such as eu-central-1", region="frankfurt"),
    "a bucket of another region": _refused("write", "PUT", Refusal(400, "AuthorizationHeaderMalformed", "the region 'eu-central-1' is wrong; expecting 'us-west-2'"), "spec.storage.region to us-west-2"),
    "a bucket that redirects": _refused("look for", "HEAD", Refusal(301, "", headers={"x-amz-bucket-region": "us-west-2"}), "get-bucket-location"),
    "a bucket that is not there": _refused("write", "PUT", Refusal(404, "NoSuchBucket"), "make the bucket"),
    "closed egress to S3": _amazon("server", "open egress", closed=True),
    "a clock that is twenty minutes off": _amazon("clock", "set this machine's clock", skew=-1200),
    "a clock that S3 refuses": _refused("write", "PUT", Refusal(403, "RequestTimeTooSkewed"), "clock"),
    "an account that is suspended": _refused("write", "PUT", Refusal(403, "AllAccessDisabled"), "see its owner"),
    "no right to write": _refused("write", "PUT", Refusal(403, "AccessDenied", DENIED.format("s3:PutObject", "arn:aws:s3:::runs/team/x")), "s3:PutObject", POLICY),
    "no right to read": _refused("read", "GET", Refusal(403, "AccessDenied"), "s3:GetObject", POLICY),
    "no right to list": _refused("list", "LIST", Refusal(403, "AccessDenied"), "s3:ListBucket", '"arn:aws:s3:::runs"'),
    "no right to delete": _refused("delete", "DELETE", Refusal(403, "AccessDenied"), "s3:DeleteObject", POLICY),
    "no right to look for what is not there": _refused("look for", "HEAD", Refusal(403, "AccessDenied"), "s3:GetObject and s3:ListBucket"),
    "a Deny in words": _refused("write", "PUT", Refusal(403, "AccessDenied", DENIED.format("s3:PutObject", "x with an explicit deny in a service control policy")), "no grant helps"),
    "a key that one may not use": _refused("write", "PUT", Refusal(403, "AccessDenied", DENIED.format("kms:GenerateDataKey", KEY)), "kms:GenerateDataKey", KEY, "and the key's"),
    "a key that one may not read by": _refused("read", "GET", Refusal(403, "AccessDenied", DENIED.format("kms:Decrypt", KEY)), "kms:Decrypt", KEY),
    "a key that is disabled": _refused("write", "PUT", Refusal(400, "KMS.DisabledException"), "enable the KMS key"),
    "a bucket's key that does not exist": _refused("write", "PUT", Refusal(400, "KMS.NotFoundException"), "does not exist in the bucket's region"),
    "a key that is being deleted": _refused("write", "PUT", Refusal(400, "KMS.KMSInvalidStateException"), "being deleted"),
    "a server that knows of no keys": _amazon("write", "does not encrypt by the key", storage=f', kmsKey: "{KEY}"'),
    "a folder that cannot be made": SetUp(uri="file:///proc/nowhere/objects", env={}, finding="/proc/nowhere/objects", words=("let this user write there",)),
    "closed egress to Google": SetUp(uri=GS, env={}, closed=True, finding="server", words=("open egress", "Private Google Access")),
    "Google's bucket that is not there": _google("The specified bucket does not exist.", "make the bucket", status=404),
    "no right to Google's objects": _google("x@p.iam.gserviceaccount.com does not have storage.objects.get access to the Google Cloud Storage object.", "storage.objects.get", "startsWith('projects/_/buckets/runs/objects/team/')"),
    "a bucket behind a perimeter": _google("Request is prohibited by organization's policy.", "perimeter"),
    "Google's key that its agent may not use": _google("Permission denied on Cloud KMS key.", "cryptoKeyEncrypterDecrypter"),
    "Google's key that is disabled": _google("Cloud KMS key version is not enabled, current state is: DISABLED.", "enable the key's primary version", status=400),
    "Google's key of another location": _google("Bucket location and Cloud KMS key location are not compatible.", "of the bucket's own location", status=400),
    "a project that is not paid for": _google("The billing account for the owning project is disabled", "billing"),
    "a bucket that its readers pay": _google("Bucket is a requester pays bucket but no user project provided.", "requester-pays", status=400),
    "a machine without the scope": _google("Request had insufficient authentication scopes.", "scope cloud-platform"),
    "Google's token that is taken no more": SetUp(uri=PUBSUB, env={ADC: "FILE"}, file="SERVICE", refusals={"testIamPermissions": Refusal(401, "google", "Request had invalid authentication credentials.")}, finding="send", words=("sign in again",)),
}  # fmt: skip
EVENTS = {
    "no right to send to a queue": _refused("send", "SendMessageBatch", Refusal(403, "AccessDeniedException", DENIED.format("sqs:SendMessage", "arn:aws:sqs:eu-central-1:111122223333:runs")), '"Action": ["sqs:SendMessage"]', '"arn:aws:sqs:eu-central-1:111122223333:runs"', uri=SQS),
    "a queue of another account": _refused("send", "SendMessageBatch", Refusal(403, "AccessDenied"), "sqs:SendMessage", "the queue's own policy", uri=FOREIGN),
    "a queue that is denied in words": _refused("send", "SendMessageBatch", Refusal(403, "AccessDenied", DENIED.format("sqs:SendMessage", "x with an explicit deny in a service control policy")), "no grant helps", uri=SQS),
    "a queue that is not there": _refused("send", "SendMessageBatch", Refusal(400, "QueueDoesNotExist"), "make the queue runs in eu-central-1 of the account 111122223333", uri=SQS),
    "a queue whose key is disabled": _refused("send", "SendMessageBatch", Refusal(400, "KmsDisabled"), "enable the KMS key of the queue", uri=SQS),
    "a queue whose key is gone": _refused("send", "SendMessageBatch", Refusal(400, "KmsNotFound"), "does not exist", uri=SQS),
    "a queue whose key is being deleted": _refused("send", "SendMessageBatch", Refusal(400, "KmsInvalidState"), "being deleted", uri=SQS),
    "a queue whose key one may not use": _refused("send", "SendMessageBatch", Refusal(400, "KmsAccessDenied", DENIED.format("kms:GenerateDataKey", KEY)), "kms:GenerateDataKey", KEY, uri=SQS),
    "closed egress to a queue": _amazon("server", "open egress", uri=SQS, closed=True),
    "a queue asked with an old session": _refused("identity", "GetCallerIdentity", Refusal(403, "ExpiredToken"), "sign in again", uri=SQS),
    "no right to publish to a topic": _refused("send", "PublishBatch", Refusal(403, "AuthorizationError", DENIED.format("SNS:Publish", "arn:aws:sns:eu-central-1:111122223333:runs")), '"Action": ["sns:Publish"]', uri=SNS),
    "a topic that is not there": _refused("send", "PublishBatch", Refusal(404, "NotFound"), "make the topic runs in eu-central-1", uri=SNS),
    "a topic whose key one may not use": _refused("send", "PublishBatch", Refusal(400, "KMSAccessDenied", DENIED.format("kms:Decrypt", KEY)), "kms:Decrypt", KEY, uri=SNS),
    "Google's topic that one may not publish to": SetUp(uri=PUBSUB, env={ADC: "FILE"}, file="SERVICE", answers={"testIamPermissions": b"{}"}, finding="send", words=("pubsub.topics.publish", "make the topic", "projects/a-project/topics/runs")),
    "Google's topic behind an API that is off": SetUp(uri=PUBSUB, env={ADC: "FILE"}, file="SERVICE", refusals={"testIamPermissions": Refusal(403, "google", "Cloud Pub/Sub API has not been used in project 1 before or it is disabled.")}, finding="send", words=("gcloud services enable pubsub.googleapis.com",)),
    "an account that may ask nothing of a topic": SetUp(uri=PUBSUB, env={ADC: "FILE"}, file="SERVICE", refusals={"testIamPermissions": Refusal(403, "google", "User not authorized to perform this action.")}, finding="send", words=("roles/pubsub.publisher", "projects/a-project/topics/runs")),
    "a project of Google's that is not there": SetUp(uri=PUBSUB, env={ADC: "FILE"}, file="SERVICE", refusals={"testIamPermissions": Refusal(404, "google", "Requested project not found.")}, finding="send", words=("make the topic runs in the project a-project",)),
}  # fmt: skip
SET_UPS = {**CREDENTIALS, **PLACES, **EVENTS}
