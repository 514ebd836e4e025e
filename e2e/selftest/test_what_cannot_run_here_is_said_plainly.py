"""A cluster that this machine or provider cannot give is refused with what is missing, before anything is started."""

import pytest

from cluster.__main__ import main
from cluster.docker import kind
from cluster.errors import CannotRunHereError
from cluster.local import Shape
from cluster.providers import open_cluster


def refusal(shape: Shape, **environment: str) -> str:
    with pytest.raises(CannotRunHereError) as refused, open_cluster(shape, environment):
        pass
    return str(refused.value)


def test_an_unknown_provider_is_refused_with_the_known_ones():
    assert "local, kind, existing" in refusal(Shape(), ROLLOUT_E2E_PROVIDER="minikube")


def test_an_existing_cluster_needs_a_kubeconfig(tmp_path):
    environment = {
        "ROLLOUT_E2E_PROVIDER": "existing",
        "ROLLOUT_E2E_KUBECONFIG": str(tmp_path / "no"),
    }
    assert "expected the path of a kubeconfig" in refusal(Shape(), **environment)


def give_programs(folder, monkeypatch, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_kind_without_docker_says_so(monkeypatch, tmp_path):
    give_programs(tmp_path, monkeypatch, kubectl="exit 0")
    said = refusal(Shape(), ROLLOUT_E2E_PROVIDER="kind")
    assert said == "kind needs docker, which is not on PATH"


def test_kind_without_dockers_daemon_repeats_what_docker_says(monkeypatch, tmp_path):
    docker = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"
    give_programs(tmp_path, monkeypatch, kubectl="exit 0", docker=docker, kind="exit 9")
    said = refusal(Shape(real_nodes=1), ROLLOUT_E2E_PROVIDER="kind")
    assert said == "kind needs Docker's daemon: Cannot connect to the Docker daemon"


def test_kind_has_no_fake_nodes(monkeypatch, tmp_path):
    give_programs(tmp_path, monkeypatch, kubectl="exit 0", docker="exit 0", kind="exit 9")
    assert "real nodes only" in refusal(Shape(fake_nodes=2), ROLLOUT_E2E_PROVIDER="kind")


def test_the_command_says_why_a_provider_gives_no_cluster(monkeypatch, tmp_path, capsys):
    give_programs(tmp_path, monkeypatch, kubectl="exit 0")
    monkeypatch.setattr("sys.argv", ["cluster", "can", "kind"])
    assert main() == 1
    assert "docker" in capsys.readouterr().err

    monkeypatch.setattr("sys.argv", ["cluster", "kind", "up", "mine"])
    assert main() == 1
    assert "docker" in capsys.readouterr().err


def test_a_cluster_by_kind_is_made_of_our_configuration_and_ended(monkeypatch, tmp_path):
    told = tmp_path / "told"
    say = f'echo "$@" >> {told}'
    give_programs(tmp_path, monkeypatch, kubectl="exit 0", docker="exit 0", kind=say)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment = {"ROLLOUT_E2E_PROVIDER": "kind"}

    with open_cluster(Shape(fake_nodes=0, real_nodes=2), environment) as cluster:
        cluster.import_image(tmp_path / "image.tar")

    made, loaded, ended = told.read_text().splitlines()
    assert made.startswith(f"create cluster --config {kind.CONFIG} --name rollout-e2e-")
    assert loaded.startswith(f"load image-archive {tmp_path}/image.tar --name rollout-e2e-")
    assert ended.startswith("delete cluster --name rollout-e2e-")


def test_real_nodes_name_the_packages_they_need(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "nft" else f"/bin/{tool}")
    assert "nftables" in refusal(Shape(real_nodes=1))


def test_real_nodes_need_root(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in refusal(Shape(real_nodes=1))
