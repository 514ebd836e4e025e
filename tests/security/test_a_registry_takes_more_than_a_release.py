"""The attacker is the registry that a release is pushed to, or stands before it: it wants credentials, memory, or another release."""

import base64
import json
from pathlib import Path

import pytest
import release_kit
import small_registry

from release.errors import RegistryError
from release.registry.client import Registry
from release.registry.push import push
from release.verify import read_contents

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return release_kit.make_release(tmp_path_factory.mktemp("release"))


@pytest.fixture
def environment(tmp_path):
    return {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}


def log_in(environment, *hosts):
    said = f"{small_registry.USER}:{small_registry.PASSWORD}".encode()
    auth = {"auth": base64.b64encode(said).decode()}
    config = Path(environment["DOCKER_CONFIG"], "config.json")
    config.write_text(json.dumps({"auths": dict.fromkeys(hosts, auth)}))


def push_all(release, registry, environment):
    with Registry.open(registry.host, environment) as opened:
        opened.sleep = lambda _: None
        return list(push(release.folder, read_contents(release.folder), opened))


def test_a_token_service_without_tls_elsewhere_hears_no_password(release, environment):
    with small_registry.running(auth="Bearer", realm="http://tokens.example/token") as registry:
        log_in(environment, registry.host)
        with pytest.raises(RegistryError, match=r"leads to http://tokens\.example: not TLS"):
            push_all(release, registry, environment)


def test_another_registry_hears_no_password_of_this_one(release, environment):
    with small_registry.running(auth="Basic") as registry:
        log_in(environment, "registry.example")
        with pytest.raises(RegistryError, match="status 401"):
            push_all(release, registry, environment)
    assert all("authorization" not in headers for _, _, headers in registry.requests)


def test_an_upload_that_is_sent_elsewhere_carries_no_token(release, environment):
    with small_registry.running() as storage, small_registry.running(auth="Basic") as registry:
        registry.location = f"http://{storage.host}/v2/elsewhere/blobs/uploads/x"
        log_in(environment, registry.host)
        # the bytes are not where the registry looks, so its manifest is not taken
        with pytest.raises(RegistryError, match="status 404"):
            push_all(release, registry, environment)
    assert storage.requests
    assert all("authorization" not in headers for _, _, headers in storage.requests)


@pytest.mark.parametrize(
    "location", ["http://storage.example/up", "file:///etc/passwd", "ftp://a/b", "http://[::1"]
)
def test_an_upload_leaves_tls_for_nobody(release, environment, location):
    with (
        small_registry.running(location=location) as registry,
        pytest.raises(RegistryError, match=r"not TLS|no address"),
    ):
        push_all(release, registry, environment)


def test_an_answer_without_end_is_not_read_to_its_end(release, environment):
    with (
        small_registry.running(flood=True) as registry,
        pytest.raises(RegistryError, match="bytes of answer"),
    ):
        push_all(release, registry, environment)


def test_a_registry_that_gives_something_else_for_the_tag_is_told(release, environment):
    with (
        small_registry.running(lies=True) as registry,
        pytest.raises(RegistryError, match=r"after it was pushed, expected sha256:"),
    ):
        push_all(release, registry, environment)


def test_a_registry_in_the_clear_elsewhere_is_spoken_to_by_tls_only(environment):
    with Registry.open("registry.example:5000", environment) as opened:
        assert opened._scheme() == "https"
    for near in ("127.0.0.1:5000", "localhost", "localhost:1"):
        with Registry.open(near, environment) as opened:
            assert opened._scheme() == "http"
    for far in ("127.0.0.1.example", "localhost.example:80", "127.0.0.10"):
        with Registry.open(far, environment) as opened:
            assert opened._scheme() == "https"
