"""Whether a run's events could be sent to their queue or topic from here: nothing is sent, unless that is asked for."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping

from rollout.clouds.amazon import DENIALS, DENIED, FIXES, NO_CREDENTIALS, Amazon
from rollout.clouds.contract import BucketPlace, Cloud, Explained, Trouble, read_trouble
from rollout.clouds.google import FORBIDDEN, Google
from rollout.clouds.policies import KMS_ACTIONS, events_policy
from rollout.clouds.reaching import broken, judge_server
from rollout.doctor.judge import Diagnosis
from rollout.errors import SpecError
from rollout.events import asking
from rollout.events.asking import SendAnswer
from rollout.events.senders import is_emulated, require_client
from rollout.objects.retry import Absent, Refused, Transient
from rollout_api.fields.event_targets import EventTarget

FIELD = "spec.tracking[].events.uri"
COSTS = "the run trains, and its events wait in a file beside it"
NAME = "send"
NOWHERE = BucketPlace(bucket="", prefix="")
ACCOUNT = re.compile(r":(?P<account>\d{12}):")
KEY_TROUBLES = {
    "DISABLED": "enable the KMS key of the {what}",
    "NOTFOUND": "the KMS key of the {what} does not exist: give the {what} another",
    "INVALIDSTATE": "the KMS key of the {what} is disabled or being deleted: enable it, or take another",
    "OPTINREQUIRED": "the account may not use KMS: see its owner",
}
EGRESS = (
    "open egress to it on port 443 (NetworkPolicy, security group or firewall, a private endpoint), or set HTTPS_PROXY;"
    " check AWS_ENDPOINT_URL and PUBSUB_EMULATOR_HOST"
)


def diagnose_target(
    target: EventTarget,
    environ: Mapping[str, str],
    now: Callable[[], float] = time.time,
    *,
    sends: bool = False,
) -> tuple[Diagnosis, ...]:
    """Findings in the order in which they are mended. ``sends``: one event is sent, which tries the target's KMS key, too."""
    try:
        require_client(target, FIELD)
    except SpecError as error:
        return (broken("library", str(error), COSTS, "install it, where the coordinator runs"),)
    return tuple(_diagnose(target, environ, now, sends=sends))


def explain(target: EventTarget, trouble: Trouble, identity: str = "") -> Explained:
    """What a trouble at asking or sending means. ``identity``: who one is, as the cloud told it."""
    fix = _explain_pubsub(target, trouble) if _is_google(target) else None
    return Explained(costs=COSTS, fix=fix or _explain_amazon(target, trouble, identity))


def _diagnose(
    target: EventTarget, environ: Mapping[str, str], now: Callable[[], float], *, sends: bool
) -> Iterator[Diagnosis]:
    cloud: Cloud = Google(environ) if _is_google(target) else Amazon(environ)
    try:
        address = asking.service_address(target)
    except SpecError as error:
        yield broken("server", str(error), COSTS, "correct AWS_ENDPOINT_URL, or unset it")
        return
    server = judge_server(address, lambda said: explain(target, said), now)
    yield server
    if _is_google(target) and is_emulated():
        yield Diagnosis(name="identity", state="ok", found=f"nobody: an emulator at {address}")
        yield _judge_sending(target, "", sends=sends)
        return
    source = tuple(cloud.judge_source(now()))
    yield from source
    if server.name == "server" or any(one.state == "broken" for one in source):
        return  # every call would say the same in other words
    identity = _judge_identity(cloud, target)
    yield identity
    if identity.state != "broken":
        yield _judge_sending(target, identity.found, sends=sends)


def _is_google(target: EventTarget) -> bool:
    return target.service == "pubsub"


def _judge_identity(cloud: Cloud, target: EventTarget) -> Diagnosis:
    where = BucketPlace(bucket="", prefix="", region=target.region or None)
    try:
        return Diagnosis(name="identity", state="ok", found=cloud.ask_identity(where))
    except (SpecError, Refused, Transient, Absent) as error:
        said = read_trouble(error)
        fix = cloud.explain(said, "identify", where).fix
        return broken("identity", said.found, COSTS, fix)


def _judge_sending(target: EventTarget, identity: str, *, sends: bool) -> Diagnosis:
    try:
        asked = asking.send(target) if sends else asking.ask(target)
    except (SpecError, Refused, Transient, Absent) as error:
        said = read_trouble(error)
        explained = explain(target, said, identity)
        return broken(NAME, said.found, explained.costs, explained.fix)
    return _judge_answer(target, asked)


def _judge_answer(target: EventTarget, asked: SendAnswer) -> Diagnosis:
    if asked.state == "may_not":
        found = "not permitted, or no such topic"
        fix = f"make the topic where there is none; {_grant(target)}"
        return broken(NAME, found, COSTS, fix)
    if asked.state == "unsaid":
        costs = "whether it may be sent to shows the first event"
        fix = "send one: rollout cloud doctor --send-event"
        found = f"there, and does not say whether it may be sent to ({asked.said})"
        return Diagnosis(name=NAME, state="lack", found=found, costs=costs, fix=fix)
    found = "permitted" if asked.state == "may" else asked.said
    return Diagnosis(name=NAME, state="ok", found=found)


def _grant(target: EventTarget, identity: str = "") -> str:
    policy = events_policy(target)
    if _is_google(target):
        [binding] = policy["bindings"]
        return f"grant {binding['permissions'][0]} by a role at the topic (roles/pubsub.publisher): {json.dumps(binding)}"
    [statement] = policy["Statement"]
    found = ACCOUNT.search(identity)
    is_foreign = found is not None and found["account"] != target.owner
    also = f", and in the {_what(target)}'s own policy: it is of another account" * is_foreign
    return f"grant {statement['Action'][0]}: {json.dumps(statement)}{also}"


def _what(target: EventTarget) -> str:
    return "queue" if target.service == "sqs" else "topic"


def _explain_pubsub(target: EventTarget, trouble: Trouble) -> str:
    said = trouble.said.lower()
    if trouble.is_absent or trouble.status == 404:
        return f"make the topic {target.name} in the project {target.owner}, or correct {FIELD}"
    if "has not been used in project" in said or "service_disabled" in said:
        return (
            f"enable the API: gcloud services enable pubsub.googleapis.com --project {target.owner}"
        )
    if not trouble.status and not trouble.is_refused:
        return EGRESS
    told = Google({}).explain(trouble, "", NOWHERE).fix
    is_plain = trouble.status == FORBIDDEN and told == "see the identity's roles"
    return _grant(target) if is_plain else told


def _explain_amazon(target: EventTarget, trouble: Trouble, identity: str) -> str:
    what = _what(target)
    code = trouble.code.upper().replace(".", "")
    if code.startswith("KMS"):
        return _explain_key(target, trouble, code)
    if trouble.is_absent or "NONEXISTENTQUEUE" in code or "QUEUEDOESNOTEXIST" in code:
        where = f"{target.region} of the account {target.owner}"
        return f"make the {what} {target.name} in {where}, or correct {FIELD}; one of another account is hidden from who has no right to it"
    if trouble.code in FIXES:
        return FIXES[trouble.code]
    if trouble.said.startswith("no credentials"):
        return NO_CREDENTIALS
    if trouble.code in DENIALS or "ACCESSDENIED" in code or trouble.code == "AuthorizationError":
        return _explain_denial(target, trouble, identity)
    if not trouble.status and not trouble.is_refused:
        return EGRESS
    return trouble.fix or f"see whether {target.service.upper()} answers there"


def _explain_denial(target: EventTarget, trouble: Trouble, identity: str) -> str:
    found = DENIED.search(trouble.said)
    if "explicit deny" in trouble.said:
        what = _what(target)
        return f"it is denied in words ({what} policy, SCP or boundary): no grant helps until that Deny goes"
    if found is not None and found["action"].startswith("kms:"):
        return _grant_key(target, found["resource"] or "")
    return _grant(target, identity)


def _explain_key(target: EventTarget, trouble: Trouble, code: str) -> str:
    for word, fix in KEY_TROUBLES.items():
        if word in code:
            return fix.format(what=_what(target))
    found = DENIED.search(trouble.said)
    return _grant_key(target, (found["resource"] if found else None) or "")


def _grant_key(target: EventTarget, key: str) -> str:
    statement = {
        "Effect": "Allow",
        "Action": list(KMS_ACTIONS["write"]),
        "Resource": key or f"the key of the {_what(target)}",
    }
    return f"grant the {_what(target)}'s KMS key, in the identity's policy and the key's: {json.dumps(statement)}"
