"""A server of vectors or scores made from a model folder: the module with its weights, its tokenizer, and the thread that computes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from rollout.common.stacks import run_loop
from rollout.engines.pooled.module import PooledModule
from rollout.inference.embedded_server.settings import EmbeddedSettings
from rollout.inference.pooled_server.computing import ComputingThread
from rollout.inference.pooled_server.orders import PooledFacts
from rollout.inference.pooled_server.server import serve_pooled
from rollout.models.pooled import read_pooled
from rollout.rendering.build import build_renderer
from rollout.rendering.pairs import pair_template
from rollout.rendering.template import compile_template
from rollout.rendering.tokenizer import load_tokenizer
from rollout.rendering.vocabulary import require_own_tokenizer


def run_pooled(settings: EmbeddedSettings, task: Literal["embed", "score"]) -> None:
    """Load the model, then serve it until SIGTERM. Raises EngineError, SpecError."""
    Path(settings.socket).unlink(missing_ok=True)
    torch.set_num_threads(settings.threads)
    facts, module = load_pooled(Path(settings.model), task)
    computing = ComputingThread(
        module,
        sequences_max=settings.samples_max,
        orders_max=settings.orders_max,
        num_threads=settings.threads,
    )
    run_loop(serve_pooled(settings, facts, computing))


def load_pooled(folder: Path, task: Literal["embed", "score"]) -> tuple[PooledFacts, PooledModule]:
    """The model and what its orders are checked against. Raises EngineError, SpecError."""
    model = read_pooled(folder, task)
    module = PooledModule(folder, model)
    tokenizer = load_tokenizer(folder)
    require_own_tokenizer(tokenizer, folder)
    template = pair_template(tokenizer.chat_template)
    pairs = None if template is None else compile_template(template)
    facts = PooledFacts(
        model=model,
        tokenizer=tokenizer,
        vocab_size=module.vocab_size,
        hidden_size=module.hidden_size,
        chat=None if pairs or task == "embed" or model.looks_ahead else build_renderer(folder),
        pairs=pairs,
    )
    return facts, module
