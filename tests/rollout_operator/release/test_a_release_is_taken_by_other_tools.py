"""CNCF Distribution takes a release, Helm pulls its charts and cosign verifies its signatures: each the real program.

In the quick tier a registry of ours takes it, and OpenSSL verifies: test_a_release_is_pushed_whole.py,
test_signatures_are_those_that_others_verify.py.
"""

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import release_kit

from cluster import build, pins
from cluster.control.ports import find_free_port
from cluster.errors import BuildError
from cluster.skips import or_skip
from release import signatures
from release.parts import charts
from release.registry.client import Registry
from release.registry.push import push
from release.verify import read_contents

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def built(name):
    with or_skip(BuildError):
        build.ensure((name,))
    return str(build.path(name))


def run(*command, cwd=None, home="/nonexistent"):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """CNCF Distribution on loopback, which keeps what it is given in a folder: its address."""
    binary, folder, port = built("registry"), tmp_path_factory.mktemp("registry"), find_free_port()
    config = folder / "config.yml"
    config.write_text(CONFIG.format(folder=folder, port=port))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([binary, "serve", str(config)], stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{port}/v2/", folder / "log")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def wait_for(url, log):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def pushed(small_release, registry):
    """The place of a release in that registry."""
    contents = read_contents(small_release.folder)
    with Registry.open(f"{registry}/team", {"HOME": "/nonexistent"}) as opened:
        list(push(small_release.folder, contents, opened))
        again = list(push(small_release.folder, contents, opened))
    assert len(again) == 3
    return f"{registry}/team"


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
