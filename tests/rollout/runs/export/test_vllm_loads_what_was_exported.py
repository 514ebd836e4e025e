"""vLLM as it comes, without any of ours, loads an exported model and an exported adapter over it, and gives their logprobs."""

import json
import os
import subprocess
import sys

import pytest
import torch
from export_kit import GRPO, LORA, FakeRun, make_run, moved, train

from rollout.models.files import default_cache_dir
from rollout.models.resolve import resolve_model
from rollout.runs.export.choose import VersionSelector
from rollout.runs.export.export import Export, export_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("vllm"),
]

PROMPT = [5, 6, 7, 8, 9, 10]
GAP_MAX = 1e-4
ASK = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

def main():
    model, adapter, prompt = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    llm = LLM(model, dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, max_num_seqs=2,
              enable_lora=True, max_lora_rank=8, kv_cache_memory_bytes=64 << 20)
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    found = []
    for lora in (None, LoRARequest("exported", 1, adapter)):
        [said] = llm.generate([{"prompt_token_ids": prompt}], sampling, lora_request=lora, use_tqdm=False)
        found.append([next(iter(one.values())).logprob for one in said.prompt_logprobs[1:]])
    print("FOUND", json.dumps(found))

if __name__ == "__main__":
    main()
"""


def logprobs(model) -> list[float]:
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        rows = torch.log_softmax(model(input_ids=ids).logits[0].float(), dim=-1)
    return [float(rows[place, token]) for place, token in enumerate(PROMPT[1:])]


def test_vllm_gives_the_logprobs_of_the_model_and_of_the_adapter(tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base_model = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path / "models").path
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    weights = {name: 3 * tensor for name, tensor in train(base_model).weights.items()}
    full = make_run(tmp_path, base_model, [moved(weights, 0.1), weights])
    sharded = Export(selector=VersionSelector(), shard_bytes=200_000)
    export_model(full.folder, model, sharded)
    spec = {"train": GRPO, "model": {"lora": LORA}}
    adapted, learned = FakeRun(tmp_path / "runs" / "b-1", model, spec=spec), train(model, lora=True)
    adapted.begin(weights)
    adapted.commit(learned.weights, masters=learned.masters)
    export_model(adapted.folder, adapter, Export(selector=VersionSelector()))

    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    own = {"VLLM_CACHE_ROOT": str(default_cache_dir() / "vllm"), "TORCH_COMPILE_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(model), str(adapter), json.dumps(PROMPT)],
        env={**os.environ, **quiet, **own, "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    [line] = [one for one in done.stdout.splitlines() if one.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    base = AutoModelForCausalLM.from_pretrained(model)
    assert found[0] == pytest.approx(logprobs(base), abs=GAP_MAX)
    with_adapter = logprobs(PeftModel.from_pretrained(base, str(adapter)))
    assert found[1] == pytest.approx(with_adapter, abs=GAP_MAX)
    assert max(abs(a - b) for a, b in zip(*found, strict=True)) > 100 * GAP_MAX
