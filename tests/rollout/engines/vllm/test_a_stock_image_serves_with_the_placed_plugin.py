"""A vLLM that has never heard of rollout serves a run: the plugin lies in a folder on its PYTHONPATH.

The engine container of a pod is played by an interpreter without site packages' path files, so that nothing
of this repository but the placed folder is importable in it.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rollout_vllm
from rollout.engines.vllm.attached import ask_for_server
from rollout.engines.vllm.engine import VllmEngine
from rollout.engines.vllm.plugin import place_plugin
from rollout.engines.vllm.server import GuardedProcess
from rollout_vllm.launch import START_FILE, read_start
from rollout_vllm.supported import UnsupportedVllmError, require_supported

from .conftest import Policies, ask, settings_for

PACKAGES = Path(torch.__file__).parents[1]


@pytest.fixture
def folder():
    """What actor and engine share: a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as name:
        yield Path(name)


def environment(plugin: Path) -> dict[str, str]:
    """What the pod gives the engine container; packages are the image's own."""
    return {
        "PYTHONPATH": os.pathsep.join((str(plugin), str(PACKAGES))),
        "PATH": os.environ["PATH"],
        "HOME": str(plugin),
        "OMP_NUM_THREADS": "1",
    }


def run_stock(code: str, plugin: Path) -> str:
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(
        command, env=environment(plugin), check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_the_placed_folder_is_all_that_is_found(tmp_path):
    place_plugin(tmp_path)
    code = (
        "import importlib.util as u, importlib.metadata as m, rollout_vllm;"
        "print(rollout_vllm.__file__, u.find_spec('rollout'), u.find_spec('rollout_api'),"
        "*[e.value for e in m.entry_points(group='vllm.general_plugins') if e.name == 'rollout'])"
    )

    said = run_stock(code, tmp_path)

    assert said.split() == [
        str(tmp_path / "rollout_vllm" / "__init__.py"),
        *("None", "None", "rollout_vllm.register:register"),
    ]


def test_placing_again_leaves_one_plugin_and_nothing_of_the_old_one(tmp_path):
    place_plugin(tmp_path)
    (tmp_path / "rollout_vllm" / "old.py").write_text("")
    (tmp_path / "rollout_vllm-0.0.1.dist-info").mkdir()
    place_plugin(tmp_path)

    assert len(list(tmp_path.glob("*.dist-info"))) == 1
    assert not (tmp_path / "rollout_vllm" / "old.py").exists()


def test_the_plugin_imports_nothing_but_what_every_image_has():
    images = {"torch", "blake3", "safetensors", "tokenizers", "vllm"}  # vLLM imports all of them
    allowed = {*sys.stdlib_module_names, *images, "rollout_vllm"}
    for file in Path(rollout_vllm.__file__).parent.glob("*.py"):
        lines = [line.split() for line in file.read_text().splitlines()]
        named = [words[1] for words in lines if words[:1] in (["import"], ["from"])]
        assert {name.split(".")[0] for name in named} <= allowed, file


@pytest.mark.parametrize("version", ["0.32.0", "0.32.4+cpu"])
def test_a_known_vllm_is_taken(version):
    require_supported(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.320.1", "1.32.0", "dev"])
def test_another_vllm_is_refused_with_what_to_do(version):
    with pytest.raises(UnsupportedVllmError, match=r"supports 0\.32\.x: use an image"):
        require_supported(version)


def test_an_actor_that_comes_back_asks_for_the_server_that_runs(folder):
    settings = stub_settings(folder)

    first = ask_for_server(settings, folder, fresh=False)
    again = ask_for_server(settings, folder, fresh=False)
    after_a_crash = ask_for_server(settings, folder, fresh=True)

    assert first == again
    assert after_a_crash != first
    assert not first.exists()
    assert read_start(folder).incarnation == 2
    assert (
        str(after_a_crash / "api.sock")
        in json.loads((folder / START_FILE).read_text())["arguments"]
    )


def stub_settings(folder: Path):
    from rollout.engines.vllm.command import VllmSettings

    return VllmSettings(
        model_dir=folder,
        log_path=folder / "log",
        dtype="float32",
        max_model_length=64,
        vocab_size=64,
        engine_dir=folder,
    )


@pytest.mark.vllm
@pytest.mark.process
@pytest.mark.asyncio(loop_scope="session")
async def test_a_stock_server_serves_and_an_actor_that_comes_back_goes_on_with_it(
    policies: Policies, folder, tmp_path
):
    place_plugin(folder / "plugin")
    container = GuardedProcess(
        [sys.executable, "-S", "-m", "rollout_vllm.launch", str(folder)],
        environment(folder / "plugin"),
        log_path=tmp_path / "container.log",
        work_dir=tmp_path,
        grace_seconds=20.0,
    )
    settings = replace(settings_for(policies, tmp_path, exact=False), engine_dir=folder)
    engine = VllmEngine(settings)
    try:
        first = policies.first
        assert await engine.load(first.version, first.weights) == first.version.digest
        ((completion, *_),) = await engine.generate([ask(6)])
        assert {(span.step, span.end) for span in completion.spans} == {(0, 24)}
        same = VllmEngine(settings)
        assert await same.load(policies.other.version, policies.other.weights)
        assert read_start(folder).incarnation == 1
        check = [sys.executable, "-m", "rollout_vllm.launch", "--check", str(folder)]
        assert subprocess.run(check, check=False, timeout=60).returncode == 0
        await same.stop()
        assert container.exit_code is None
    finally:
        await engine.stop()
        container.stop()
