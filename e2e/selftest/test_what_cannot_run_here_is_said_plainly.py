"""A cluster that this machine or provider cannot give is refused with what is missing, before anything is started."""

import pytest

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


def test_kind_without_docker_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "docker" in refusal(Shape(), ROLLOUT_E2E_PROVIDER="kind")


def test_real_nodes_name_the_packages_they_need(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "nft" else f"/bin/{tool}")
    assert "nftables" in refusal(Shape(real_nodes=1))


def test_real_nodes_need_root(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in refusal(Shape(real_nodes=1))
