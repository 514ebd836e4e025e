"""The coordinator reads data, builds environments and suites, and tracks: without torch."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "vllm", "tensorflow")

CODE = """
import importlib, pkgutil, sys
from pathlib import Path
for package in {packages}:
    root = importlib.import_module(f"rollout.{{package}}")
    for module in pkgutil.walk_packages(root.__path__, f"rollout.{{package}}."):
        if not module.name.endswith(("adder", "warm_start", "__main__")):
            importlib.import_module(module.name)
{then}
loaded = sorted(set(sys.modules) & set({heavy!r}))
print("LOADED", loaded)
"""

DOING = """
import os
os.environ["HF_HUB_OFFLINE"] = "1"
from rollout.data.build import build_source
from rollout.environments.build import build_environment
from rollout.evaluations.build import build_suite
from rollout.models.resolve import resolve_model
from rollout.rendering import build_renderer
from rollout.tracking.build import build_trackers
from rollout.types import Message
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.evaluation import Evaluation
from rollout_api.v1alpha1.operations import Tracking
folder = Path({folder!r})
(folder / "set").mkdir()
(folder / "set" / "train.jsonl").write_text('{{"prompt": "a", "answer": "b"}}')
for data in ({{"jsonl": {{"uri": "set/train.jsonl"}}}}, {{"huggingFace": {{"path": "set"}}}},
             {{"huggingFace": {{"path": "set", "streaming": True}}}}):
    build_source(Data.model_validate(data), base_dir=folder).rows([0])
suite = build_suite(Evaluation.model_validate({{"suite": {{"builtin": {{"name": "arithmetic"}}}}}}))
suite.source().rows([0])
model = resolve_model("rollout://tiny-qwen2", cache_dir=folder)
build_renderer(model.path).render_prompt([Message(role="user", content="a")])
for tracker in build_trackers([Tracking.model_validate({{"tensorboard": {{}}}})], folder, name="a", uid="b"):
    tracker.log(1, {{"a": 1.0}})
"""


def run(packages, then):
    code = CODE.format(packages=packages, then=then, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_importing_them_loads_nothing_heavy():
    packages = ("data", "environments", "evaluations", "tracking", "rewards", "rendering", "models")

    assert "LOADED []" in run(packages, "")


@pytest.mark.process
def test_using_them_loads_nothing_heavy(tmp_path):
    assert "LOADED []" in run((), DOING.format(folder=str(tmp_path)))
