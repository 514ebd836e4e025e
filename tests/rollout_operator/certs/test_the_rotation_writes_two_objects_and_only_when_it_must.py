"""One look after another at a Secret and a configuration. The real API server is asked in e2e."""

import base64
from datetime import UTC, datetime, timedelta

import pytest

from rollout_operator.certs.plan import parse_certificates
from rollout_operator.certs.rotate import MANAGER, Target, expiry, rotate
from rollout_operator.rotation.__main__ import parse_target

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TARGET = Target(
    namespace="system", secret="tls", configuration="hooks", dns_names=("w.system.svc",)
)
HOOKS = {"name": "hooks", "uid": "h", "resourceVersion": "8", "generation": 3}


class Objects:
    """The two objects, and what was applied to them."""

    def __init__(self):
        meta = {"name": "tls", "namespace": "system", "uid": "s", "resourceVersion": "7"}
        hooks = [{"name": name, "clientConfig": {"service": {}}} for name in ("runs", "others")]
        self.stored = {
            "Secret": {"metadata": meta},
            "ValidatingWebhookConfiguration": {"metadata": HOOKS, "webhooks": hooks},
        }
        self.applied = []

    async def get(self, resource, _namespace, _name):
        return self.stored[resource.kind]

    async def apply(self, body, resource, *, manager, force):
        assert (manager, force) == (MANAGER, True)
        self.applied.append(body)
        if resource.kind == "Secret":
            self.stored["Secret"]["data"] = body["data"]
        for hook in body.get("webhooks", ()):
            for known in self.stored[resource.kind]["webhooks"]:
                if known["name"] == hook["name"]:
                    known["clientConfig"] |= hook["clientConfig"]

    def bundles(self):
        hooks = self.stored["ValidatingWebhookConfiguration"]["webhooks"]
        return [base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks]


async def test_the_first_look_fills_both_and_the_second_writes_nothing():
    objects = Objects()

    made = await rotate(objects, TARGET, NOW)
    assert [body["kind"] for body in objects.applied] == [
        "Secret",
        "ValidatingWebhookConfiguration",
    ]
    await rotate(objects, TARGET, NOW + timedelta(hours=1))

    assert len(objects.applied) == 2
    assert objects.bundles() == [made.bundle_pem, made.bundle_pem]
    assert expiry(made) == NOW + timedelta(days=90)


async def test_a_write_is_bound_to_what_was_read():
    objects = Objects()
    await rotate(objects, TARGET, NOW)
    meta = [body["metadata"] for body in objects.applied]
    assert [(one["uid"], one["resourceVersion"]) for one in meta] == [("s", "7"), ("h", "8")]


async def test_nothing_but_the_bundle_is_written_to_the_configuration():
    objects = Objects()
    await rotate(objects, TARGET, NOW)
    for hook in objects.applied[1]["webhooks"]:
        assert set(hook) == {"name", "clientConfig"}
        assert set(hook["clientConfig"]) == {"caBundle"}


async def test_a_bundle_that_somebody_emptied_is_written_again():
    objects = Objects()
    made = await rotate(objects, TARGET, NOW)
    hooks = objects.stored["ValidatingWebhookConfiguration"]["webhooks"]
    del hooks[1]["clientConfig"]["caBundle"]

    await rotate(objects, TARGET, NOW + timedelta(hours=1))

    assert objects.bundles() == [made.bundle_pem] * 2
    assert [body["kind"] for body in objects.applied[2:]] == ["ValidatingWebhookConfiguration"]


async def test_a_renewal_leaves_the_bundle_alone():
    objects = Objects()
    made = await rotate(objects, TARGET, NOW)
    renewed = await rotate(objects, TARGET, NOW + timedelta(days=61))

    assert renewed.server != made.server
    assert [body["kind"] for body in objects.applied[2:]] == ["Secret"]


async def test_a_secret_that_was_torn_is_made_anew():
    objects = Objects()
    made = await rotate(objects, TARGET, NOW)
    objects.stored["Secret"]["data"]["tls.key"] = base64.b64encode(b"x").decode()

    again = await rotate(objects, TARGET, NOW + timedelta(hours=1))

    assert again.bundle != made.bundle
    data = objects.stored["Secret"]["data"]
    assert parse_certificates({k: base64.b64decode(v) for k, v in data.items()}) == again


def test_settings_name_what_is_missing():
    with pytest.raises(
        ValueError, match="ROLLOUT_WEBHOOK_SECRET, ROLLOUT_WEBHOOK_NAMES must be set"
    ):
        parse_target(
            {"ROLLOUT_OPERATOR_NAMESPACE": "system", "ROLLOUT_WEBHOOK_CONFIGURATION": "hooks"}
        )
