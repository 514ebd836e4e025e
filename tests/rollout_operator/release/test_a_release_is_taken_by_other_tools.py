"""CNCF Distribution takes a release, Helm pulls its charts and cosign verifies its signatures: each the real program.

In the quick tier a registry of ours takes it, and OpenSSL verifies: test_a_release_is_pushed_whole.py,
test_signatures_are_those_that_others_verify.py.
"""

import json
import subprocess
from pathlib import Path

import pytest
import release_kit
from distribution import built, distributing, push_release

from cluster import pins
from release import signatures
from release.parts import charts
from release.verify import read_contents

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


def run(*command, cwd=None, home="/nonexistent"):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """CNCF Distribution on loopback, which keeps what it is given in a folder: its address."""
    with distributing(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="module")
def pushed(small_release, registry):
    """The place of a release in that registry."""
    place = f"{registry}/team"
    push_release(small_release.folder, place)
    assert push_release(small_release.folder, place) == 3
    return place


def test_helm_pulls_the_chart_that_was_packed(small_release, pushed, tmp_path):
    place = f"oci://{pushed}/charts/rollout"
    done = run(
        *(built("helm"), "pull", place, "--version", "0.3.1", "--plain-http"),
        cwd=tmp_path,
        home=tmp_path,
    )
    assert done.returncode == 0, done.stderr

    chart = small_release.checkout / "charts" / "rollout"
    epoch = 1_767_323_045  # of the commit
    assert (tmp_path / "rollout-0.3.1.tgz").read_bytes() == charts.pack(chart, "rollout", epoch)
    told = next(one for one in read_contents(small_release.folder).artifacts)
    assert told.digest in done.stdout + done.stderr


def test_helm_makes_the_same_objects_of_our_packed_chart_as_of_its_folder(tmp_path):
    helm, folder = built("helm"), ROOT / "charts" / "rollout"
    packed = tmp_path / "rollout.tgz"
    packed.write_bytes(charts.pack(folder, "rollout", 1_700_000_000))

    options = ("--namespace", "n", "--kube-version", pins.KUBERNETES, "--set", "crds.enabled=true")
    made = [run(helm, "template", "rollout", str(one), *options) for one in (folder, packed)]

    assert made[0].returncode == 0, made[0].stderr
    assert made[0].stdout == made[1].stdout


@pytest.fixture(scope="module")
def cosign(tmp_path_factory, small_release):
    """Ask cosign about an artifact of the registry, with a key and claims."""
    binary, home = built("cosign"), tmp_path_factory.mktemp("home")

    def ask(reference, *claims, number=7):
        key = home / f"{number}.pub"
        key.write_bytes(signatures.public_pem(release_kit.fixed_key(number).public_key()))
        command = [binary, "verify", "--key", str(key), "--insecure-ignore-tlog"]
        command += ["--allow-http-registry", *claims, reference]
        return run(*command, home=home)

    return ask


@pytest.mark.parametrize(
    "repository", ["charts/rollout", "charts/rollout-crds", "rollout-operator"]
)
def test_cosign_verifies_each_artifact_with_its_version(pushed, cosign, repository):
    done = cosign(f"{pushed}/{repository}:0.3.1", "-a", "version=0.3.1")
    assert done.returncode == 0, done.stderr
    (said,) = json.loads(done.stdout)
    assert said["optional"]["version"] == "0.3.1"


def test_cosign_refuses_another_key_and_another_version(pushed, cosign):
    reference = f"{pushed}/charts/rollout:0.3.1"
    assert cosign(reference, number=8).returncode != 0
    assert cosign(reference, "-a", "version=0.4.0").returncode != 0


def test_cosign_verifies_the_sboms_manifest(small_release, pushed, cosign):
    one = read_contents(small_release.folder).artifacts[0]
    assert cosign(f"{pushed}/{one.repository}@{one.sbom}").returncode == 0


def test_cosign_verifies_the_list_of_digests(small_release, tmp_path):
    command = [built("cosign"), "verify-blob", "--key", "cosign.pub", "--signature"]
    command += ["SHA256SUMS.sig", "--insecure-ignore-tlog", "SHA256SUMS"]
    done = run(*command, cwd=small_release.folder, home=tmp_path)
    assert done.returncode == 0, done.stderr
