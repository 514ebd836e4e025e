"""A run that is resumed from the image of its learner, one that is resumed from the other layers, and one that nobody disturbed end at one chain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from imaged_runs import ImagedRuns
from process_kit import ROLLOUT

from rollout.errors import NoSpace, SpecError
from rollout.objects.filesystem import FilesystemStore
from rollout.snapshots.processes.contract import Support, Tree
from rollout.snapshots.processes.criu import find_criu

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

CAME_BACK = "the learner came back from its image, with the state that was imaged"
LEFT = "the learner begins from the snapshot's train state instead"
KILLING = """#!/bin/sh
case " $* " in *" restore "*) "{criu}" "$@" & sleep 0.0{part}; kill -9 $!; wait $!; exit 1;; esac
exec "{criu}" "$@"
"""


@pytest.fixture
def runs(criu, tmp_path, monkeypatch):
    with ImagedRuns(criu, tmp_path, monkeypatch) as made:
        yield made


def imaged(runs: ImagedRuns, algorithm: str, **more: Any) -> tuple[str, str]:
    """The snapshot of a run, which was imaged as it went, and the chain that the run ended at."""
    process = runs.begin("imaged", algorithm, **more)
    runs.wait_for("imaged", "step committed step=3 ")
    made = runs.image("imaged")
    return made.id, runs.chain("imaged", process)


def no_process_is_left(runs: ImagedRuns) -> bool:
    found = subprocess.run(
        ["pgrep", "-f", str(runs.folder)], capture_output=True, text=True, check=False
    )
    return not found.stdout.split()


ONE, TWO = {}, {"processesPerNode": 2}


@pytest.mark.parametrize(
    ("algorithm", "learner"),
    [
        pytest.param("sft", ONE, id="sft"),
        pytest.param("grpo", ONE, id="grpo"),
        pytest.param("sft", TWO, id="sft on two ranks"),
    ],
)
def test_bit_for_bit_and_as_from_the_other_layers(runs, algorithm, learner):
    undisturbed = runs.whole("whole", algorithm, include=("TrainState",), learner=learner)
    snapshot, ended = imaged(runs, algorithm, learner=learner)
    assert ended == undisturbed
    place = ("--resume", snapshot)
    assert runs.whole("back", algorithm, *place, learner=learner) == undisturbed
    assert CAME_BACK in runs.said("back")
    assert "anchor restored" not in (runs.dir("back").path / "logs/learner.log").read_text()
    plain: dict[str, Any] = {"include": ("TrainState",), "learner": learner}
    assert runs.whole("plain", algorithm, *place, **plain) == undisturbed
    assert "spec.snapshots.include has no Process" in runs.said("plain")
    assert no_process_is_left(runs)
    shown = subprocess.run(
        [*ROLLOUT, "snapshot", "show", snapshot], capture_output=True, text=True, check=True
    )
    sizes = {one["kind"]: one["size_bytes"] for one in json.loads(shown.stdout)["layers"]}
    assert sizes["process"] > sizes["train_state"] > 0
    refused = subprocess.run(
        [*ROLLOUT, "process", "restore", snapshot], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert f"--resume {snapshot}" in refused.stderr


def test_what_is_wrong_with_an_image_costs_the_image_and_never_the_run(runs, criu, tmp_path):
    """Each is told with its reason, and the run ends at the same chain from the other layers."""
    process = runs.begin("imaged", "sft")
    runs.wait_for("imaged", "step committed step=3 ")
    manifest = runs.image("imaged")
    place = ("--resume", manifest.id)
    process.send_signal(signal.SIGSTOP)  # the supervisor alone: its learner lives in the cell
    try:
        beside = runs.begin("beside", "sft", *place)
        expected = runs.chain("beside", beside)
    finally:
        process.send_signal(signal.SIGCONT)
    assert "runs: wait for that, or end it" in runs.said("beside")
    assert runs.chain("imaged", process) == expected

    def told(name: str, *words: str, **env: str) -> str:
        assert runs.whole(name, "sft", *place, *words, env=env) == expected
        assert LEFT in runs.said(name)
        assert CAME_BACK not in runs.said(name)
        return runs.said(name)

    assert "not supported here" not in told(
        "foreign", "--trust", _signer(manifest), **_stranger(tmp_path)
    )
    assert "does not trust" in runs.said("foreign")
    for part in (1, 4, 9):
        killing = tmp_path / f"killing-{part}"
        killing.write_text(KILLING.format(criu=criu, part=part))
        killing.chmod(0o755)
        told(f"killed-{part}", ROLLOUT_CRIU=str(killing))
    layer = manifest.layer("process")
    assert layer is not None
    packs = [part for part in layer.parts if part.name.startswith("pack/")]
    pack = FilesystemStore(runs.dir("imaged").objects).locate(packs[0].object)
    whole = pack.read_bytes()
    pack.chmod(0o644)
    pack.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    told("flipped")
    pack.unlink()
    told("missing")
    assert no_process_is_left(runs)


class KilledCriu:
    """CRIU that is killed in the middle of a dump."""

    def __init__(self, milliseconds: int, folder: Path) -> None:
        self._real = find_criu(os.environ)
        script = folder / f"killed-in-{milliseconds}"
        script.write_text(
            f'#!/bin/sh\n"{os.environ["ROLLOUT_CRIU"]}" "$@" & sleep 0.{milliseconds:03d}; kill -9 $!; wait $!; exit 1\n'
        )
        script.chmod(0o755)
        self._killed = find_criu({**os.environ, "ROLLOUT_CRIU": str(script)})

    def support(self, *, tried: bool = True) -> Support:
        return self._real.support(tried=tried)

    def dump(self, tree: Tree, folder: Path, *, stop: bool) -> None:
        self._killed.dump(tree, folder, stop=stop)

    def restore_argv(self) -> list[str]:
        return self._real.restore_argv()


@pytest.mark.parametrize(
    "learner", [pytest.param(ONE, id="one process"), pytest.param(TWO, id="two ranks")]
)
def test_a_snapshot_that_cannot_be_made_costs_no_run(runs, tmp_path, monkeypatch, learner):
    """A full disk, and a CRIU that is killed as it dumps: there is no snapshot, and the run ends where it would have."""
    expected = runs.whole("whole", "sft", include=("TrainState",), learner=learner)
    process = runs.begin("imaged", "sft", learner=learner)
    runs.wait_for("imaged", "step committed step=3 ")
    with monkeypatch.context() as full:
        full.setattr(FilesystemStore, "keep", _no_space)
        with pytest.raises(NoSpace):
            runs.image("imaged")
    for milliseconds in (5, 20, 60):
        with pytest.raises(SpecError):  # or the learner is only just being started again
            runs.image("imaged", KilledCriu(milliseconds, tmp_path))
    assert runs.chain("imaged", process) == expected
    assert not list((runs.dir("imaged").objects / "snapshots/manifests").glob("*.json"))
    assert no_process_is_left(runs)


def _no_space(*_: object) -> str:
    raise NoSpace("no space left")


def _signer(manifest) -> str:
    assert manifest.signature is not None
    return manifest.signature.signer


def _stranger(folder: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(folder / "stranger")}
