"""In a cluster a caller is a service account, by a token that nobody needs to be asked about."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import logging
import ssl
import threading
import time
from urllib.parse import urlsplit

import jwt
import pytest
from coordinator_kit import Bench, HttpServer
from cryptography.hazmat.primitives import serialization
from tls_kit import AUDIENCE, SUBJECTS, Authority, Issuer, authentication, replace

from rollout.coordinator.server.callers import AccountCallers, Keys, Unauthenticated
from rollout.errors import CoordinatorError, SpecError
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.routes import ALLOWED, ROLES, ROUTES
from rollout.protocol.tls import Certificate, Trust
from rollout.protocol.transport import HttpTransport

NOW = int(time.time())


class World:
    """One coordinator over TLS, its issuer, and another cluster's."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.issuer, self.foreign = Issuer(), Issuer()
        self.keys = self.issuer.write_keys(folder / "keys" / "jwks.json")
        authority = Authority()
        authority.issue(folder / "tls")
        self.trust = Trust(authority.write_ca(folder / "ca.crt"))
        self.bench = Bench(folder)
        self.server = HttpServer(
            self.bench,
            callers=AccountCallers(authentication(self.keys), "uid-1"),
            certificate=Certificate(folder / "tls" / "tls.crt", folder / "tls" / "tls.key"),
        )
        parts = urlsplit(self.server.url)
        self.connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=30, context=self.trust.context()
        )

    def call(self, method: str, path: str, token: str | None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/msgpack"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self.connection.request(method, path, body=b"not msgpack", headers=headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self.connection.close()
        self.server.close()
        self.bench.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("accounts"))
    yield made
    made.close()


def unsigned(issuer: Issuer, role: str) -> str:
    header = {"alg": "none", "typ": "JWT", "kid": issuer.current}
    parts = [json.dumps(part).encode() for part in (header, issuer.claims(role))]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def signed_with_the_public_key(issuer: Issuer, role: str) -> str:
    """The old confusion: an HMAC whose secret is the public key."""
    public = issuer.keys[issuer.current].public_key()
    secret = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    header = {"alg": "HS256", "typ": "JWT", "kid": issuer.current}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (header, issuer.claims(role))
    ]
    mark = hmac.new(secret, b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(mark).rstrip(b"=")]).decode()


def bad_tokens(world: World, role: str) -> dict[str, str | None]:
    good = world.issuer.token
    head, body, mark = good(role).split(".")
    return {
        "none at all": None,
        "nonsense": "nonsense",
        "expired": good(role, iat=NOW - 7200, nbf=NOW - 7200, exp=NOW - 3600),
        "not valid yet": good(role, nbf=NOW + 3600, exp=NOW + 7200),
        "without an end": good(role, exp=None),
        "for the API server": good(role, aud=[ISSUER_AUDIENCE]),
        "of another run": good(role, aud=["rollout/uid-2"]),
        "of another account": good(role, sub="system:serviceaccount:team:default"),
        "of the same account elsewhere": good(
            role, sub=SUBJECTS[role].replace("account:", "account:x-")
        ),
        "of another issuer": good(role, iss="https://other.cluster"),
        "of another cluster": world.foreign.token(role),
        "unsigned": unsigned(world.issuer, role),
        "signed with what is public": signed_with_the_public_key(world.issuer, role),
        "changed": f"{head}.{body[:-4]}AAAA.{mark}",
        "cut": f"{head}.{body}.",
    }


ISSUER_AUDIENCE = "https://kubernetes.default.svc"


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_an_endpoint_lets_in_its_role_with_a_good_token_only(world, path):
    for role in ROLES:
        status, _ = world.call("POST", path, world.issuer.token(role))
        assert status == (400 if role == ROUTES[path].role else 403), role
        for what, token in bad_tokens(world, role).items():
            assert world.call("POST", path, token)[0] == 401, (role, what)


@pytest.mark.parametrize(("method", "path"), sorted(key for key in ALLOWED if key[1] not in ROUTES))
def test_what_is_read_and_stored_is_for_its_roles_too(world, method, path):
    place = path.replace("{name}", "0" * 64)
    for role in ROLES:
        status, _ = world.call(method, place, world.issuer.token(role))
        refused = role not in ALLOWED[method, path]
        assert (status == 403) == refused, (role, status)
        assert world.call(method, place, world.issuer.token(role, aud=["rollout/uid-2"]))[0] == 401


def test_every_route_that_is_served_is_in_the_table(world):
    app = world.server._runner.app
    served = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.resource.canonical not in {"/healthz", "/metrics"}
    }
    assert served - {("HEAD", path) for _, path in ALLOWED} <= ALLOWED.keys()


def test_refusals_and_logs_never_hold_a_token(world, caplog):
    caplog.set_level(logging.DEBUG)
    for role in ROLES:
        for token in bad_tokens(world, role).values():
            _, said = world.call("POST", "/v1/actor/claim", token)
            for part in (token or "").split("."):
                if len(part) > 8 and part != "nonsense":
                    assert part.encode() not in said
                    assert part not in caplog.text


def test_a_refusal_says_what_is_wrong(world):
    said = {
        what: world.call("POST", "/v1/actor/claim", token)[1].decode(errors="replace")
        for what, token in bad_tokens(world, "actor").items()
    }
    assert "has expired" in said["expired"]
    assert "another audience" in said["of another run"]
    assert "another issuer" in said["of another issuer"]
    assert "no role in this run" in said["of another account"]


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_keys_rotate_without_a_restart(tmp_path, algorithm):
    issuer = Issuer(algorithm)
    file = issuer.write_keys(tmp_path / "jwks.json")
    callers = AccountCallers(authentication(file), "uid-1")
    old = issuer.token("actor")
    issuer.rotate("key-2")
    new = issuer.token("learner")
    with pytest.raises(Unauthenticated) as refused:
        callers.identify(f"Bearer {new}")
    assert refused.value.again
    issuer.write_keys(file)
    assert callers.identify(f"Bearer {new}").role == "learner"
    assert callers.identify(f"Bearer {old}").role == "actor"
    del issuer.keys["key-1"]
    issuer.write_keys(file)
    with pytest.raises(Unauthenticated, match="not known"):
        callers.identify(f"Bearer {old}")


def test_a_key_set_that_cannot_be_read_leaves_the_last_one_in_force(tmp_path):
    issuer = Issuer()
    file = issuer.write_keys(tmp_path / "jwks.json")
    callers = AccountCallers(authentication(file), "uid-1")
    replace(file, b"{")
    assert callers.identify(f"Bearer {issuer.token('actor')}").pod == "arithmetic-actor-0"
    with pytest.raises(SpecError, match=r"jwksFile .* is no key set"):
        AccountCallers(authentication(file), "uid-1")


def test_unknown_keys_make_the_file_read_again_only_so_often(tmp_path):
    issuer = Issuer()
    file, now = issuer.write_keys(tmp_path / "jwks.json"), [0.0]
    keys = Keys(file, clock=lambda: now[0])
    before = keys._read_at
    for now[0] in (1.0, 2.0, 4.9):
        assert keys.find("nobody") is None
        assert keys._read_at == before
    now[0] = 5.0
    assert keys.find("nobody") is None
    assert keys._read_at == 5.0


def test_a_shared_secret_in_the_key_set_is_not_a_key(tmp_path):
    file = tmp_path / "jwks.json"
    secret = base64.urlsafe_b64encode(b"s" * 32).decode()
    file.write_text(json.dumps({"keys": [{"kty": "oct", "kid": "key-1", "k": secret}]}))
    token = jwt.encode({"aud": AUDIENCE}, b"s" * 32, algorithm="HS256", headers={"kid": "key-1"})
    with pytest.raises(Unauthenticated, match="not known"):
        AccountCallers(authentication(file), "uid-1").identify(f"Bearer {token}")


def test_a_worker_sends_the_token_that_lies_there_now(world, tmp_path):
    file = tmp_path / "token"
    replace(file, world.issuer.token("operator", iat=1, nbf=1, exp=2).encode())
    transport = HttpTransport(world.server.url, file.read_text, world.trust)
    client = CoordinatorClient(transport, patience_seconds=0.0)
    with pytest.raises(CoordinatorError, match="has expired") as refused:
        client.status()
    assert file.read_text() not in str(refused.value)
    replace(file, world.issuer.token("operator").encode())
    assert client.status().name == "arithmetic"
    client.close()


def test_a_token_whose_key_is_not_known_yet_is_tried_again(world, monkeypatch):
    """Keys reach the coordinator a while after the first token that is signed with them."""
    monkeypatch.setattr("rollout.coordinator.server.app.KEY_AGAIN_SECONDS", 1)
    world.issuer.rotate("key-late")
    token = world.issuer.token("operator")
    client = CoordinatorClient(
        HttpTransport(world.server.url, lambda: token, world.trust), patience_seconds=60.0
    )
    publishing = threading.Timer(0.3, world.issuer.write_keys, [world.keys])
    publishing.start()
    assert client.status().name == "arithmetic"
    publishing.join()
    client.close()


def test_tls_is_1_3(world):
    parts = urlsplit(world.server.url)
    context = world.trust.context()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(world.folder / "ca.crt")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=30, context=old)
    with pytest.raises(ssl.SSLError):
        connection.request("GET", "/healthz")
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
