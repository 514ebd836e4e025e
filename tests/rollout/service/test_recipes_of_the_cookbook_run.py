"""Recipes of ``tinker-cookbook``, as they come from the package index, train against ``rollout serve --train``.

Their data sets and their tokenizer are folders that lie where the hub's names lead to: nothing is downloaded but the cookbook itself,
pinned, into the user's cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pinned_packages import COOKBOOK, installed
from serve_kit import ServedTraining

from rollout.models.resolve import resolve_model

pytestmark = [pytest.mark.slow, pytest.mark.process]
NAME = "Qwen/Qwen3-8B-Base"
"""A name that the cookbook knows a renderer for; what is served by it is tiny."""
URI = "rollout://tiny-qwen2?hidden=512&layers=1&heads=4"
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
SHOWN = (
    "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r 9) r 10) y."
    " We have r's at positions 3, 8, and 9. \\boxed{3}"
)
"""The answer that the RL recipe shows before it asks."""
MINUTES = 10


@pytest.fixture(scope="module")
def cookbook():
    folder, why = installed(COOKBOOK)
    if folder is None:
        pytest.skip(why)
    return folder


@pytest.fixture(scope="module")
def place(cookbook, tmp_path_factory):
    """A working folder with what the hub would give, and a service."""
    home = tmp_path_factory.mktemp("cookbook")
    write_tokenizer(home / NAME)
    write_rows(home / "HuggingFaceH4" / "no_robots", conversations(), test=conversations()[:8])
    write_gsm8k(home / "openai" / "gsm8k")
    write_rows(home / "Anthropic" / "hh-rlhf", comparisons(), test=comparisons()[:8])
    (home / "dialogues.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in conversations())
    )
    served = ServedTraining(home=home, base=f"{NAME}={URI}", more=("--skip-unembed",))
    served.start()
    yield home, served
    served.kill()


def write_tokenizer(folder):
    folder.mkdir(parents=True)
    source = resolve_model(URI).path
    for file in source.iterdir():
        if "tokenizer" in file.name or file.name == "config.json":
            shutil.copy(file, folder / file.name)


def write_rows(folder, rows, **more):
    folder.mkdir(parents=True)
    for split, found in {"train": rows, **more}.items():
        lines = "".join(json.dumps(row) + "\n" for row in found)
        (folder / f"{split}.jsonl").write_text(lines, "utf-8")


def write_gsm8k(folder):
    rows = [{"question": f"Question {i}?", "answer": "It is so. #### 7"} for i in range(64)]
    write_rows(folder, rows, test=rows[:8])
    files = "".join(f"  - split: {one}\n    path: {one}.jsonl\n" for one in ("train", "test"))
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n"
    )


def conversations():
    """Answers in a box, right in one of two, to questions as the RL recipe asks them."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"How many r's are in strawberry?{SUFFIX}"},
                {"role": "assistant", "content": SHOWN},
                {"role": "user", "content": f"Question {i % 64}?{SUFFIX}"},
                {"role": "assistant", "content": f"\\boxed{{{i // 64 % 2 * 4 + 3}}}"},
            ]
        }
        for i in range(512)
    ]


def comparisons():
    begun = [f"\n\nHuman: Question {i}?\n\nAssistant:" for i in range(32)]
    return [{"chosen": f"{one} yes", "rejected": f"{one} no, never"} for one in begun]


def run_recipe(place, cookbook, recipe, **settings):
    """Start a recipe as a person does; what it has logged, step by step."""
    home, served = place
    log = home / "logs" / recipe
    words = [f"{name}={value}" for name, value in settings.items()]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(cookbook), os.environ.get("PYTHONPATH")))),
        "TINKER_BASE_URL": served.url,
        "TINKER_API_KEY": served.key,
        "TINKER_TELEMETRY": "0",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(home / "hf"),
    }
    done = subprocess.run(
        [sys.executable, "-m", f"tinker_cookbook.recipes.{recipe}", f"log_path={log}", *words],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    kept = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
    return rows, kept[-1]


@pytest.fixture(scope="module")
def learned(place, cookbook):
    """The supervised loop: its log, and its last checkpoint."""
    return run_recipe(
        place,
        cookbook,
        "sl_loop",
        model_name=NAME,
        batch_size=8,
        max_steps=40,
        learning_rate=3e-3,
        max_length=1024,
        train_on_what="last_assistant_message",
        lora_rank=32,
    )


def test_the_supervised_loop_learns(learned):
    rows, last = learned
    losses = [row["train_mean_nll"] for row in rows]
    assert len(losses) == 40
    assert losses[-1] < losses[0] / 3
    assert last["state_path"].endswith("/weights/final")


def test_the_reinforcement_loop_goes_on_from_there_and_learns(place, cookbook, learned):
    """Begun as the recipe is resumed: from a checkpoint that stands in its log."""
    log = place[0] / "logs" / "rl_loop"
    log.mkdir(parents=True)
    begun = {**learned[1], "name": "begun", "batch": 0}
    (log / "checkpoints.jsonl").write_text(json.dumps(begun) + "\n")
    rows, last = run_recipe(
        place,
        cookbook,
        "rl_loop",
        model_name=NAME,
        batch_size=4,
        group_size=16,
        max_steps=10,
        learning_rate=1e-3,
        lora_rank=32,
        save_every=4,
        max_tokens=12,
        loss_fn="importance_sampling",
    )
    rewards = [row["reward/total"] for row in rows]
    assert len(rewards) == 10
    assert 0.05 < rewards[0] < 0.9
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.3
    assert Path(last["sampler_path"]).name == "final"


SPARSELY = {"lora_rank": 8, "save_every": 1, "eval_every": 0}
"""Their checkpoints expire in a week, unless they are told otherwise."""
RECIPES = {
    "math_rl.train": {
        **SPARSELY,
        "env": "arithmetic",
        "group_size": 4,
        "groups_per_batch": 4,
        "max_steps": 2,
        "loss_fn": "importance_sampling",
    },
    "chat_sl.train": {
        **SPARSELY,
        "dataset": "no_robots",
        "batch_size": 8,
        "max_length": 1024,
        "max_steps": 4,
    },
    "prompt_distillation.train": {
        **SPARSELY,
        "file_path": "dialogues.jsonl",
        "batch_size": 8,
        "max_length": 1024,
        "max_steps": 4,
    },
    "preference.dpo.train": {
        "dataset": "hhh",
        "batch_size": 4,
        "max_length": 256,
        "max_steps": 2,
    },
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_to_its_end(place, cookbook, recipe):
    rows, last = run_recipe(
        place,
        cookbook,
        recipe,
        model_name=NAME,
        renderer_name="role_colon",
        learning_rate=1e-3,
        behavior_if_log_dir_exists="raise",
        **RECIPES[recipe],
    )
    assert len(rows) >= RECIPES[recipe]["max_steps"]
    assert last["state_path"]
