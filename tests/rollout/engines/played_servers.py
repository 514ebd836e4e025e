"""A vLLM server that tests play: its settings name no model."""

from pathlib import Path

from rollout.engines.vllm.command import VllmSettings

SETTINGS = VllmSettings(
    model_dir=Path(),
    log_path=Path("/dev/null"),
    dtype="float32",
    max_model_length=64,
    vocab_size=100,
    exact=False,
)
