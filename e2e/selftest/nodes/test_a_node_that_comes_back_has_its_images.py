"""A node that was lost comes back as its cluster knows it: with every image that the cluster was given."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import build
from cluster.local import Shape
from cluster.nodes.oci import Image, write_archive, write_layer
from cluster.providers import Cluster, open_cluster
from cluster.skips import or_skip

pytestmark = pytest.mark.real_nodes

GIVEN = "rollout.test/given:1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Of its own, with one node: nobody else's pods are lost with it."""
    with or_skip(), open_cluster(Shape(fake_nodes=0, real_nodes=1)) as made:
        if made.local is None:
            pytest.skip("cannot run here: only the local provider's nodes may be lost")
        yield made


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "given").touch()
    layer = write_layer(tmp_path / "root", tmp_path / "layer.tar")
    return write_archive(Image(name=GIVEN, layers=[layer]), tmp_path / "given.tar")


def test_a_lost_node_comes_back_with_the_images_of_its_cluster(cluster: Cluster, archive: Path):
    (node,) = cluster.local.nodes
    cluster.import_image(archive)
    before = cluster.kubectl.get("node", node.name)["metadata"]["uid"]
    images = (str(build.path("ctr")), "-n", "k8s.io", "images", "ls", "-q")
    assert GIVEN in node.run(*images).split()

    with cluster.local.lost(node):
        assert not node.alive()

    assert GIVEN in node.run(*images).split()
    assert cluster.kubectl.get("node", node.name)["metadata"]["uid"] != before
