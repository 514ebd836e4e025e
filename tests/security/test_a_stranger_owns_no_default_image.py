"""The attacker registers the names that an installation would pull when nobody set them."""

from pathlib import Path

import pytest
import yaml

from rollout_api.generate.values import ImageValues, WorkerImages
from rollout_operator.settings import VLLM_IMAGE, parse_settings

REPOSITORY = Path(__file__).parents[2]
NOBODYS = ".invalid"
"""A top-level domain that no one can register (RFC 2606)."""


def host(image):
    """The registry of an image; empty where a runtime would look in the public one."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first) else ""


@pytest.mark.parametrize(
    "image", [ImageValues().repository, parse_settings({}).worker_image], ids=["operator", "worker"]
)
def test_an_image_that_was_not_set_is_in_no_registry(image):
    assert host(image).endswith(NOBODYS), image


def test_runs_take_the_engine_of_its_own_project_by_version():
    assert WorkerImages().vllm == ""
    assert VLLM_IMAGE.startswith("vllm/vllm-openai:v")


def test_what_is_installed_without_helm_has_no_other_images():
    files = (REPOSITORY / "manifests").glob("*/**/deployments.yaml")
    deployments = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    images = [
        container["image"]
        for one in deployments
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    assert len(deployments) > 3
    for image in images:
        assert host(image).endswith(NOBODYS), image
