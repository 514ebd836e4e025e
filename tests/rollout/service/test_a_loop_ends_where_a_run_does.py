"""The same supervised fine-tuning twice: as a RolloutRun, and as a loop of one's own against the service. One adapter, or one model.

Rows, order, seed, schedule, clipping and AdamW's numbers are the same; the mean over the step's tokens stands in the weights.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from service_kit import TINY

import rollout
from rollout.client import AdamParams, Datum, ModelInput
from rollout.data.rows.mapping import FieldMapping, map_record, training_messages
from rollout.learner.config.optimizer import ScheduleSettings
from rollout.learner.model.optim import learning_rate
from rollout.models.resolve import resolve_model
from rollout.rendering.build import build_renderer
from rollout.service.kept.tensors import Keeper
from rollout.service.registry import SavedState, SavedVersion

pytestmark = pytest.mark.process
RECORDS = [
    {"prompt": f"What is {i}?", "answer": f"It is {i * 7}, as said{'.' * (i % 5)}"}
    for i in range(24)
]
BATCH, STEPS, PEAK, SEED = 8, 6, 0.01, 11
URI = TINY.partition("=")[2]


def run_it(folder, loss, *, adapter=True):
    """The manifest's way; the run's folder."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    train = {
        "algorithm": {"sft": {"batchSize": BATCH, "loss": loss}},
        "data": {"jsonl": {"uri": "rows.jsonl"}, "shuffle": False},
        "optimizer": {"adamw": {"learningRate": str(PEAK), "weightDecay": "0.01"}},
        "schedule": {"linear": {"warmupSteps": 2}},
        "maxGradNorm": "0.5",
        "maxSteps": STEPS,
    }
    lora = {"lora": {"rank": 4, "alpha": 32, "targets": ["Attention", "Mlp"]}}
    manifest = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "same"},
        "spec": {"seed": SEED, "model": {"uri": URI} | (lora if adapter else {}), "train": train},
    }
    run = rollout.run(manifest)
    assert run.exit_code == 0
    return run.path


def sequences(rows, renderer, loss):
    """Ids and what is learned of each row, as a run renders them."""
    for row in rows:
        ids, mask = renderer.render_training(training_messages(row))
        yield ids, np.asarray(mask[1:] if loss == "CompletionOnly" else [1] * (len(ids) - 1), "<f4")


def loop_it(url, key, loss):
    """A loop of one's own; the paths of its last state and weights."""
    client = rollout.connect(url, key)
    model = client.create_lora_training_client("tiny", 4, SEED, train_unembed=False)
    renderer = build_renderer(resolve_model(URI).path)
    rows = [map_record(FieldMapping(), one) for one in RECORDS]
    schedule = ScheduleSettings(kind="linear", warmup_steps=2, horizon_steps=STEPS)
    for step in range(1, STEPS + 1):
        first = (step - 1) * BATCH % len(rows)
        batch = list(sequences(rows[first : first + BATCH], renderer, loss))
        whole = np.float32(sum(mask.sum() for _, mask in batch))
        data = [
            Datum(
                ModelInput.from_ints(ids[:-1]), {"target_tokens": ids[1:], "weights": mask / whole}
            )
            for ids, mask in batch
        ]
        model.forward_backward(data, "cross_entropy")
        model.optim_step(
            AdamParams(
                learning_rate=learning_rate(schedule, PEAK, step),
                beta2=0.999,
                eps=1e-8,
                weight_decay=0.01,
                grad_clip_norm=0.5,
            )
        )
    paths = [
        save("last").result().path for save in (model.save_state, model.save_weights_for_sampler)
    ]
    client.close()
    return paths


@pytest.mark.parametrize("loss", ["Full", pytest.param("CompletionOnly", marks=pytest.mark.slow)])
async def test_a_loop_ends_at_the_adapter_of_a_run(service, tmp_path, monkeypatch, loss):
    monkeypatch.chdir(tmp_path)
    one = await service()
    client = one.client()
    url = str(one.http.make_url("")).rstrip("/")
    path, _ = await asyncio.to_thread(loop_it, url, client.key, loss)
    saved = one.desk.registry.require(SavedState, path, "one")
    kept = Keeper.under(tmp_path).states.read(saved.digest)
    ours = {name: found for name, found in kept.items() if name.startswith("weight/")}
    done = await asyncio.to_thread(run_it, tmp_path, loss)
    theirs = load_file(done / "adapter" / "adapter_model.safetensors")
    pairs = {name: match(ours, name) for name in theirs}
    assert len(pairs) == len(ours) == 28
    furthest = max(float((theirs[name] - found).abs().max()) for name, found in pairs.items())
    if loss == "Full":
        assert all(torch.equal(theirs[name], found) for name, found in pairs.items())
    else:  # prompts are scored too, for their logprobs: products of other shapes, whose sums round otherwise
        assert furthest < 1e-6


async def test_a_loop_over_all_weights_ends_at_the_version_of_a_run(service, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = await service(full_weights=("tiny",))
    client = one.client()
    url = str(one.http.make_url("")).rstrip("/")
    _, path = await asyncio.to_thread(loop_it, url, client.key, "Full")
    saved = one.desk.registry.require(SavedVersion, path, "one")
    done = await asyncio.to_thread(partial(run_it, tmp_path, "Full", adapter=False))
    latest = json.loads((done / "snapshots" / "Latest.json").read_text())
    assert saved.digest == latest["version"]["digest"]


def match(ours, name):
    """The tensor of PEFT's name among the service's."""
    plain = name.replace(".weight", "").partition("base_model.model.")[2]
    (found,) = (value for key, value in ours.items() if plain in key.replace(".default", ""))
    return found
