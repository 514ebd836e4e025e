"""Tasks in Harbor's form in real pods, with the image that the run names: played, judged, and refused where their image is another."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokered import Brokered, build_brokered, in_pods, wait_for_policy
from harbor_kit import AGENT, FOLDER, IMAGE, builder, every_row, laid, play

from cluster.errors import BuildError
from cluster.nodes import containers
from cluster.providers import Cluster
from cluster.skips import or_skip
from namespaces import in_namespace
from rollout.errors import DataError, InfrastructureError, SpecError

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]
HARBOR = {
    "module": "rollout.environments.adapters.harbor",
    "className": "Harbor",
    "parameters": [{"name": "image", "value": containers.WORKER}],
}
OWN_IMAGE = {
    name: text.replace(IMAGE, containers.WORKER).replace("#!/bin/bash", "#!/bin/sh")
    for name, text in FOLDER.items()
}
"""The task, from the one image that the nodes have."""


@pytest.fixture(scope="module")
def brokered(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokered]:
    with or_skip(BuildError):
        real_cluster.import_image(containers.ensure_worker())
    with in_namespace(real_cluster.kubectl) as mine:
        small = {"memoryRequest": "64Mi", "cpuRequest": "50m", "warmPods": 1}
        place = tmp_path_factory.mktemp("broker")
        made = build_brokered(mine, place, {"python": HARBOR}, image="nobody/has:this", **small)
        wait_for_policy(made)
        yield made


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_tasks_are_played_and_judged_in_pods_of_the_image_that_the_run_names(
    brokered: Brokered, code: Path, monkeypatch: pytest.MonkeyPatch
):
    given = {"instead": "", "image": containers.WORKER}

    async def live() -> tuple[float, float, str]:
        async with in_pods(brokered, monkeypatch):
            good = await play(code, "hello", OWN_IMAGE, **given)
            bad = await play(code, "goodbye", OWN_IMAGE, **given)
            silent = {**OWN_IMAGE, "tests/test.sh": "#!/bin/sh\nexit 0\n"}
            with pytest.raises(InfrastructureError) as judged_nothing:
                await play(code, "hello", silent, **given)
            return good.turn_reward, bad.turn_reward, str(judged_nothing.value)

    good, bad, said = asyncio.run(live())
    assert (good, bad) == (1.0, 0.25)
    assert "the verifier ended by exit (0) and wrote no reward" in said


def test_what_the_pods_cannot_have_is_refused_by_name(
    brokered: Brokered, code: Path, monkeypatch: pytest.MonkeyPatch
):
    given: dict[str, Any] = {"instead": "", "image": containers.WORKER}
    laid(code / "tasks", FOLDER)
    with pytest.raises(
        SpecError, match=rf"{IMAGE} cannot be had here; where the image of the pods"
    ):
        builder(**given)
    large = OWN_IMAGE["task.toml"].replace("memory_mb = 512", "memory_mb = 4096")
    laid(code / "tasks", {**OWN_IMAGE, "task.toml": large})
    built = builder(**given)

    async def live() -> None:
        async with in_pods(brokered, monkeypatch):
            with pytest.raises(DataError, match="asks for 4096 MiB"):
                built.made.build(every_row(built)[0])

    asyncio.run(live())
