"""vLLM's side of the batch: one ``LLM.generate`` a turn, of the same token ids, with the numbers of our server.

It has what makes ours slower left out: no seeds, no log-probabilities, no ledger, no file. It is one process, which was
measured as its faster way here. Chunked prefill and what else nobody set is as vLLM has it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from batch_job import TEMPERATURE, WARM_ROWS
from batch_ours import prompts, tree_cpu_seconds
from one_process import plan_config
from turns import Turns

from rollout.engines.registry import build_engine
from rollout.engines.vllm.command import VllmSettings
from rollout.engines.vllm.engine import VllmEngine

os.environ |= {
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def main(job: Path, scratch: Path, turns: Turns) -> None:
    """All rows each turn, some first, until told to end."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    config = plan_config(job / "whole.json", scratch)
    settings = server_settings(build_engine(config, "actor-0"))
    llm = LLM(
        model=str(settings.model_dir),
        dtype=settings.dtype,
        max_model_len=settings.max_model_length,
        max_num_seqs=settings.num_seqs,
        kv_cache_memory_bytes=settings.kv_cache_bytes,
        gpu_memory_utilization=settings.memory_fraction,
        enforce_eager=True,
        distributed_executor_backend="uni",
    )
    rows = [
        (
            TokensPrompt(prompt_token_ids=ids),
            SamplingParams(temperature=TEMPERATURE, max_tokens=num, ignore_eos=True),
        )
        for ids, num in prompts(config)
    ]
    turns.say(
        weights=config.resolved.model_digest, first_tokens=list(rows[0][0]["prompt_token_ids"])
    )
    taken = rows[:WARM_ROWS]
    while True:
        llm.reset_prefix_cache()
        turns.start()
        began, cpu = time.perf_counter(), tree_cpu_seconds()
        found = llm.generate([row[0] for row in taken], [row[1] for row in taken], use_tqdm=False)
        turns.say(
            seconds=time.perf_counter() - began,
            tree_cpu_seconds=tree_cpu_seconds() - cpu,
            rows=len(found),
            tokens=sum(len(one.outputs[0].token_ids) for one in found),
        )
        taken = rows


def server_settings(engine: object) -> VllmSettings:
    """The numbers that our server would be started with."""
    assert isinstance(engine, VllmEngine)
    return engine._settings


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="rb-") as name:
        main(Path(sys.argv[1]), Path(name), Turns())
