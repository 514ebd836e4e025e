"""A push sends what is missing, names the version last, overwrites none, and is gone on with where it was cut."""

import base64
import json
import stat

import pytest
import small_registry

from release import oci
from release.__main__ import main
from release.contents import layout_of, sbom_tag
from release.errors import RegistryError
from release.registry.client import Registry
from release.registry.credentials import find_credentials
from release.registry.push import push
from release.signatures import public_pem, signature_tag
from release.verify import read_contents

pytestmark = pytest.mark.process
HOST = "127.0.0.1"


@pytest.fixture
def config(tmp_path):
    """Where credentials are looked for; nothing of this machine's own."""

    def write(**content):
        (tmp_path / "config.json").write_text(json.dumps(content))

    write.environment = {"DOCKER_CONFIG": str(tmp_path), "PATH": "/usr/bin:/bin"}
    return write


def push_all(release, registry, environment, prefix="team"):
    contents = read_contents(release.folder)
    with Registry.open(f"{registry.host}/{prefix}".rstrip("/"), environment) as opened:
        opened.sleep = lambda _: None
        return list(push(release.folder, contents, opened))


def expected_tags(release, repository):
    root = layout_of(release.folder, repository)
    return {tag: one.digest for tag, one in oci.read_tags(root).items()}


def test_everything_of_a_release_is_in_the_registry_under_its_tags(small_release, config):
    with small_registry.running(lists_referrers=True) as registry:
        lines = push_all(small_release, registry, config.environment)

    contents = read_contents(small_release.folder)
    for one in contents.artifacts:
        assert registry.tags(f"team/{one.repository}") == expected_tags(
            small_release, one.repository
        )
    chart = contents.artifacts[0]
    assert lines[-2] == f"{registry.host}/team/charts/rollout:0.3.1@{chart.digest}"
    assert {name for name, _ in registry.blobs} == {
        f"team/{one.repository}" for one in contents.artifacts
    }


def test_the_versions_tag_comes_after_all_that_it_needs_and_its_signature(small_release, config):
    with small_registry.running() as registry:
        push_all(small_release, registry, config.environment)

    chart = read_contents(small_release.folder).artifacts[0]
    puts = [
        path.rpartition("/")[2]
        for method, path, _ in registry.requests
        if method == "PUT" and "/charts/rollout/manifests/" in path
    ]
    assert puts[-1] == "0.3.1"
    assert {signature_tag(chart.digest), sbom_tag(chart.digest)} < {*puts[:-1]}


def test_images_are_there_before_the_charts_that_name_them(small_release, config):
    with small_registry.running() as registry:
        lines = push_all(small_release, registry, config.environment)
    assert "rollout-operator:" in lines[0]


def test_a_registry_without_the_referrers_api_gets_the_list_that_it_lacks(small_release, config):
    with small_registry.running() as registry:
        push_all(small_release, registry, config.environment)
        push_all(small_release, registry, config.environment)

    one = read_contents(small_release.folder).artifacts[0]
    index = json.loads(registry.manifests["team/charts/rollout", one.digest.replace(":", "-")])
    assert [(e["digest"], e["artifactType"]) for e in index["manifests"]] == [
        (one.sbom, "application/vnd.cyclonedx+json")
    ]


def test_a_push_that_is_repeated_sends_no_bytes_again(small_release, config):
    with small_registry.running() as registry:
        push_all(small_release, registry, config.environment)
        registry.requests.clear()
        push_all(small_release, registry, config.environment)
    assert [path for method, path, _ in registry.requests if method == "POST"] == []


@pytest.mark.parametrize("taken", [0, 1, 3, 6, 9])
def test_a_push_that_was_cut_leaves_no_version_half_there_and_goes_on(small_release, config, taken):
    with small_registry.running(refuse_puts_after=taken) as registry:
        with pytest.raises(RegistryError, match="status 403"):
            push_all(small_release, registry, config.environment)
        for one in read_contents(small_release.folder).artifacts:
            tags = registry.tags(f"team/{one.repository}")
            assert "0.3.1" not in tags or signature_tag(one.digest) in tags
        registry.refuse_puts_after = None
        push_all(small_release, registry, config.environment)

    assert registry.tags("team/charts/rollout")["0.3.1"]


def test_another_release_of_that_version_is_not_overwritten(small_release, config):
    with small_registry.running() as registry:
        other = b'{"schemaVersion":2}'
        registry.manifests["team/charts/rollout-crds", "0.3.1"] = other
        with pytest.raises(
            RegistryError, match=r"0\.3\.1 is sha256:.* a version is not overwritten"
        ):
            push_all(small_release, registry, config.environment)
        assert list(registry.manifests) == [("team/charts/rollout-crds", "0.3.1")]
        assert registry.blobs == {}


def test_a_registry_that_is_busy_is_asked_again_and_not_for_ever(small_release, config):
    with small_registry.running(busy=3) as registry:
        assert push_all(small_release, registry, config.environment)
    with small_registry.running(busy=1000) as registry:
        with pytest.raises(RegistryError, match="4 times: status 503"):
            push_all(small_release, registry, config.environment)
        assert len(registry.requests) == 4


@pytest.mark.parametrize("auth", ["Basic", "Bearer"])
def test_who_is_logged_in_may_push(small_release, config, auth):
    said = f"{small_registry.USER}:{small_registry.PASSWORD}".encode()
    with small_registry.running(auth=auth) as registry:
        config(auths={registry.host: {"auth": base64.b64encode(said).decode()}})
        assert push_all(small_release, registry, config.environment)
        config(auths={})
        with pytest.raises(RegistryError, match="docker login"):
            push_all(small_release, registry, config.environment)


def test_a_helpers_credentials_are_taken(config, tmp_path):
    helper = tmp_path / "docker-credential-mine"
    helper.write_text(
        '#!/bin/sh\nread host\necho "{\\"Username\\": \\"$host\\", \\"Secret\\": \\"s\\"}"\n'
    )
    helper.chmod(stat.S_IRWXU)
    config(credHelpers={"registry.example": "mine"})
    environment = config.environment | {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    found = find_credentials("registry.example", environment)

    assert (found.user, found.password) == ("registry.example", "s")
    assert "'s'" not in repr(found)
    assert find_credentials("other.example", environment) is None


@pytest.mark.parametrize(
    "content",
    [
        {"credsStore": "absent"},
        {"credsStore": "../../bin/sh"},
        {"auths": {"registry.example": {"auth": "no base64!"}}},
        {"auths": {"registry.example": {"auth": base64.b64encode(b"nopassword").decode()}}},
    ],
)
def test_credentials_that_cannot_be_read_are_named(config, content):
    config(**content)
    with pytest.raises(RegistryError):
        find_credentials("registry.example", config.environment)


@pytest.mark.parametrize(
    "place",
    ["docker.io/me", "https://registry.example", "a b", "", "host/UPPER", "host/../x", "/x"],
)
def test_a_place_that_is_no_registry_is_refused(place, config):
    with (
        pytest.raises(RegistryError, match="expected HOST"),
        Registry.open(place, config.environment),
    ):
        pass


def test_the_command_verifies_before_it_sends_anything(release_copy, tmp_path, monkeypatch, capsys):
    key = tmp_path / "cosign.pub"
    key.write_bytes(public_pem(release_copy.key.public_key()))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with small_registry.running() as registry:
        arguments = ["push", str(release_copy.folder), "--key", str(key), "--version", "0.3.1"]
        arguments += ["--registry", registry.host]
        (release_copy.folder / "cosign.pub").write_text("another")
        assert main(arguments) == 1
        assert registry.requests == []

        (release_copy.folder / "cosign.pub").write_bytes(key.read_bytes())
        assert main(arguments) == 0

    assert f"{registry.host}/charts/rollout:0.3.1@sha256:" in capsys.readouterr().out
