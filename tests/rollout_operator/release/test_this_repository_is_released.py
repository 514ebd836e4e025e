"""The files of this checkout become a release by the command of the page, and what the page shows can be typed."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import release_kit

from release import signatures, versions
from release.__main__ import _parse, main
from release.verify import read_contents

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "make-a-release.md"


def current_version():
    return versions.tomllib.loads((ROOT / "crds/pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def checkout(tmp_path):
    """A commit of the files that this checkout would commit, with a heading for its version in the changelog."""
    target = tmp_path / "checkout"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    changelog = target / "CHANGELOG.md"
    heading = f"## Unreleased\n\n## {current_version()}\n"
    changelog.write_text(changelog.read_text().replace("## Unreleased\n", heading, 1))
    release_kit.git(target, "init", "-q", "-b", "main")
    release_kit.commit(target)
    return target


@pytest.mark.process
def test_this_repository_is_released_and_verifies(checkout, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    version = current_version()
    key = release_kit.write_key(tmp_path / "release.key", release_kit.fixed_key())
    public = tmp_path / "cosign.pub"
    public.write_bytes(signatures.public_pem(release_kit.fixed_key().public_key()))
    folder = tmp_path / "out" / version

    assert main(["build", str(folder), "--version", version, "--key", str(key)]) == 0, (
        capsys.readouterr().err
    )

    assert "without images: rollout-operator, rollout-worker" in capsys.readouterr().out
    assert main(["verify", str(folder), "--version", version, "--key", str(public)]) == 0
    assert read_contents(folder).version == version


def commands_of_page():
    text = PAGE.read_text()
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
    made = [line for line in lines if line.startswith("make ")]
    direct = [line for line in lines if "python -m release" in line]
    return made, direct


def test_every_command_of_the_page_is_one():
    made, direct = commands_of_page()
    assert (len(made), len(direct)) == (1, 2)
    for line in direct:
        words = shlex.split(line)
        assert words[:4] == ["PYTHONPATH=operator", "python", "-m", "release"]
        _parse(words[4:])


def test_make_release_asks_for_what_the_page_says():
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"python -m release (build .*)\n", makefile)
    given = {"$(VERSION)": "0.2.0", "$(KEY)": "release.key", "$(PINS)": "constraints.hashes.txt"}
    for name, value in given.items():
        recipe = recipe.replace(name, value)
    recipe = recipe.replace("$(addprefix --image ,$(IMAGES))", "--image rollout-operator=a.tar")
    options = _parse(shlex.split(recipe))
    assert (options.version, str(options.key)) == ("0.2.0", "release.key")
    assert options.image == ["rollout-operator=a.tar"]


def test_make_release_without_a_version_says_what_it_needs():
    made = (ROOT / "Makefile").read_text()
    (said,) = re.findall(r'echo "(make release [^"]*)"', made)
    assert "VERSION=x.y.z KEY=" in said


def test_a_version_that_is_not_the_repositorys_is_refused_by_the_command(
    checkout, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(checkout)
    key = release_kit.write_key(tmp_path / "release.key", release_kit.fixed_key())
    command = ["build", str(tmp_path / "out"), "--key", str(key), "--version"]

    assert main([*command, "99.0.0"]) == 1
    assert "charts/rollout/Chart.yaml: version: 0" in capsys.readouterr().err
    assert main([*command, "v1"]) == 1
    assert "expected x.y.z" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["rollout-operator", "=a.tar", "rollout-operator="])
def test_an_image_without_name_or_archive_is_refused(text, tmp_path, capsys):
    key = release_kit.write_key(tmp_path / "release.key", release_kit.fixed_key())
    command = ["build", str(tmp_path / "out"), "--key", str(key), "--version", "0.1.0"]
    assert main([*command, "--image", text]) == 1
    assert "image" in capsys.readouterr().err
