"""vLLM's own batch runner as a side: its ``run_batch`` over the same lines, once a turn, on one engine that outlives them.

The lines are those of the job with the model's name and ``ignore_eos``, so that it draws as many tokens; the template writes
a message's text and nothing else, so that it draws behind the same ones, which is checked by its own usage. It reads a
file and writes one, as ours does; it has no ledger, no seeds and no log-probabilities.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from batch_job import TEMPERATURE, WARM_ROWS
from batch_ours import prompts, tree_cpu_seconds
from batch_theirs import server_settings
from one_process import plan_config
from turns import Turns

from rollout.engines.registry import build_engine
from rollout_api.worker import WorkerConfig

NAME = "policy"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


async def main(job: Path, scratch: Path, turns: Turns) -> None:
    """All rows each turn, some first, until told to end."""
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.run_batch import run_batch
    from vllm.usage.usage_lib import UsageContext

    config = plan_config(job / "whole.json", scratch)
    asked = prompts(config)
    args = _arguments(config, scratch)
    context = UsageContext.OPENAI_BATCH_RUNNER
    async with build_async_engine_client(args, usage_context=context) as client:
        facts: dict[str, Any] = {
            "weights": config.resolved.model_digest,
            "first_tokens": asked[0][0],
        }
        number = min(WARM_ROWS, len(asked))
        while True:
            _write_lines(job / "rows.jsonl", Path(args.input_file), number)
            await client.reset_prefix_cache()
            turns.say(**facts)
            await asyncio.to_thread(turns.start)
            began, cpu = time.perf_counter(), tree_cpu_seconds()
            await run_batch(client, args)
            seconds, spent = time.perf_counter() - began, tree_cpu_seconds() - cpu
            rows, prompt_tokens, tokens = _count(Path(args.output_file))
            assert prompt_tokens == sum(len(ids) for ids, _ in asked[:number]), prompt_tokens
            facts = {"seconds": seconds, "tree_cpu_seconds": spent, "rows": rows, "tokens": tokens}
            number = len(asked)


def _arguments(config: WorkerConfig, scratch: Path) -> Any:
    from vllm.entrypoints.launchers.run_batch import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    settings = server_settings(build_engine(config, "actor-0"))
    words = [
        *("-i", str(scratch / "in.jsonl"), "-o", str(scratch / "out.jsonl")),
        *("--model", str(settings.model_dir), "--served-model-name", NAME),
        *("--dtype", settings.dtype, "--max-model-len", str(settings.max_model_length)),
        *("--max-num-seqs", str(settings.num_seqs), "--enforce-eager"),
        *("--kv-cache-memory-bytes", str(settings.kv_cache_bytes)),
        *("--gpu-memory-utilization", str(settings.memory_fraction)),
        *("--chat-template", TEMPLATE, "--generation-config", "vllm"),
    ]
    return make_arg_parser(FlexibleArgumentParser()).parse_args(words)


def _write_lines(rows: Path, place: Path, number: int) -> None:
    lines = []
    for line in map(json.loads, rows.read_text().splitlines()[:number]):
        line["body"] |= {"model": NAME, "ignore_eos": True, "temperature": TEMPERATURE}
        lines.append(json.dumps(line) + "\n")
    place.write_text("".join(lines))


def _count(results: Path) -> tuple[int, int, int]:
    """Rows, tokens of their prompts, and tokens that were drawn."""
    lines = [json.loads(line) for line in results.read_text().splitlines() if line]
    usage = [line["response"]["body"]["usage"] for line in lines]
    kinds = ("prompt_tokens", "completion_tokens")
    prompt, drawn = (sum(one[kind] for one in usage) for kind in kinds)
    return len(lines), prompt, drawn


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    with tempfile.TemporaryDirectory(prefix="rb-") as name:
        asyncio.run(main(Path(sys.argv[1]), Path(name), Turns()))
