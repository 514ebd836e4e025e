"""An embedded engine made from a model folder: decoder with its weights, renderer, and the thread that decodes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from rollout.common.stacks import run_loop
from rollout.engines.embedded.batch import Decoder
from rollout.engines.embedded.config import read_config
from rollout.engines.embedded.decoder import CompactDecoder
from rollout.errors import EngineError
from rollout.inference.embedded_server.decoding import DecodeThread
from rollout.inference.embedded_server.orders import OrderFacts
from rollout.inference.embedded_server.server import serve_embedded
from rollout.inference.embedded_server.settings import EmbeddedSettings
from rollout.rendering.build import build_renderer
from rollout.weights.digest import load_weights


def run_embedded(settings: EmbeddedSettings) -> None:
    """Load the model, then serve it until SIGTERM. Raises EngineError, SpecError."""
    folder = Path(settings.model)
    Path(settings.socket).unlink(missing_ok=True)
    torch.set_num_threads(settings.threads)
    decoder = _load(folder)
    renderer = build_renderer(folder)
    facts = OrderFacts(
        renderer=renderer,
        tokenizer=renderer.tokenizer,
        vocab_size=decoder.vocab_size,
        positions_max=decoder.positions_max,
    )
    thread = DecodeThread(
        decoder,
        samples_max=settings.samples_max,
        orders_max=settings.orders_max,
        num_threads=settings.threads,
    )
    run_loop(serve_embedded(settings, facts, thread))


def _load(folder: Path) -> Decoder:
    config = read_config(folder)
    if config is not None:
        decoder: Decoder = CompactDecoder(config, torch.float32)
    else:
        from rollout.engines.embedded.module import ModuleDecoder

        decoder = ModuleDecoder(folder, torch.float32)
    try:
        tensors = load_weights(folder)
    except FileNotFoundError as error:
        raise EngineError(str(error)) from error
    decoder.load({name: one.to(torch.float32) for name, one in tensors.items()})
    return decoder


def read_embedded_settings(path: Path) -> EmbeddedSettings:
    """The settings in a file. Raises EngineError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EmbeddedSettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise EngineError(f"{path} holds no settings of an engine: {error}") from error
