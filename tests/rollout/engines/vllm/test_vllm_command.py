"""The vLLM server's command line: reachable by one socket only, and nothing of the model's own sampling."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.engines.vllm.command import (
    KV_CACHE_MAX_BYTES,
    KV_CACHE_MIN_BYTES,
    AdapterSettings,
    VllmSettings,
    build_command,
    plan_kv_cache_bytes,
)
from rollout.errors import SpecError

PRIVATE = Path("/tmp/rollout-x")
RESERVED = frozenset(
    {
        *("host", "port", "uds", "api-key", "grpc-port", "grpc", "headless", "config", "root-path"),
        *("ssl-keyfile", "ssl-certfile", "middleware", "allowed-origins", "api-server-count"),
        *("data-parallel-supervisor-port", "data-parallel-address", "data-parallel-rpc-port"),
        *("model", "served-model-name", "dtype", "max-model-len", "max-num-seqs", "seed"),
        *(
            "generation-config",
            "override-generation-config",
            "logprobs-mode",
            "worker-extension-cls",
            "weight-transfer-config",
        ),
        *("enable-scale-out", "tokens-only", "skip-tokenizer-init", "tensor-parallel-size"),
        *("enable-lora", "lora-modules", "max-loras", "max-lora-rank", "max-cpu-loras"),
        *("kv-cache-memory-bytes", "gpu-memory-utilization", "logits-processors"),
    }
)


def settings(**changes) -> VllmSettings:
    given = {
        "model_dir": Path("/models/tiny"),
        "log_path": Path("/runs/a/logs/vllm-0.log"),
        "dtype": "float32",
        "max_model_length": 512,
        "vocab_size": 260,
    }
    return VllmSettings(**(given | changes))


def value_of(argv: tuple[str, ...], name: str) -> str:
    assert argv.count(name) == 1
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_no_control_route_is_reachable_over_tcp(exact, device, tensor_parallel):
    argv, env = build_command(
        settings(exact=exact, device=device, tensor_parallel=tensor_parallel), PRIVATE
    )

    assert value_of(argv, "--uds") == "/tmp/rollout-x/api.sock"
    names = {argument.split("=")[0] for argument in argv}
    assert not names & {"--host", "--port", "--grpc-port", "--api-server-count"}
    assert not {"VLLM_HOST_IP", "VLLM_PORT"} & set(env)


def test_temporary_files_and_caches_lie_in_the_servers_private_folder():
    _, env = build_command(settings(), PRIVATE)

    folders = ("TMPDIR", "HF_HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT")
    assert {env[name] for name in folders} == {str(PRIVATE)}


def test_what_vllm_finds_out_about_an_architecture_may_be_kept_and_nothing_else():
    _, env = build_command(settings(cache_dir=Path("/cache/vllm")), PRIVATE)

    assert env["VLLM_CACHE_ROOT"] == "/cache/vllm"
    assert {env[name] for name in ("TMPDIR", "HF_HOME", "VLLM_CONFIG_ROOT")} == {str(PRIVATE)}


def test_sampling_defaults_and_end_tokens_are_not_taken_from_the_models_files():
    argv, _ = build_command(settings(), PRIVATE)

    assert value_of(argv, "--generation-config") == "vllm"
    assert "--skip-tokenizer-init" in argv
    assert value_of(argv, "--logprobs-mode") == "processed_logprobs"


def test_exact_serves_one_sequence_at_a_time_without_a_shared_cache():
    argv, _ = build_command(settings(exact=True, max_num_seqs=64), PRIVATE)

    assert value_of(argv, "--max-num-seqs") == "1"
    assert "--no-enable-prefix-caching" in argv
    assert "--enable-prefix-caching" not in argv


def test_fast_batches_and_shares_prompts():
    argv, _ = build_command(settings(exact=False, max_num_seqs=64), PRIVATE)

    assert value_of(argv, "--max-num-seqs") == "64"
    assert "--enable-prefix-caching" in argv


def test_threads_are_fixed_by_the_settings():
    _, env = build_command(settings(threads=3), PRIVATE)

    assert env["OMP_NUM_THREADS"] == "3"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_a_gpu_server_gets_no_cpu_settings():
    argv, env = build_command(settings(device="cuda", tensor_parallel=2), PRIVATE)

    assert "--enforce-eager" not in argv
    assert value_of(argv, "--tensor-parallel-size") == "2"
    assert not {"TORCH_COMPILE_DISABLE", "VLLM_ENABLE_V1_MULTIPROCESSING"} & set(env)


@pytest.mark.parametrize(("length", "tokens"), [(512, "2048"), (5000, "5000")])
def test_a_server_on_a_cpu_cuts_no_prompt_and_takes_the_longest_in_one_pass(length, tokens):
    argv, _ = build_command(settings(max_model_length=length), PRIVATE)
    assert "--no-enable-chunked-prefill" in argv
    assert value_of(argv, "--max-num-batched-tokens") == tokens

    argv, _ = build_command(settings(max_model_length=length, device="cuda"), PRIVATE)
    assert "--no-enable-chunked-prefill" not in argv
    assert "--max-num-batched-tokens" not in argv


@pytest.mark.parametrize("given", ["--enable-chunked-prefill", "--long-prefill-token-threshold=16"])
def test_arguments_that_cut_prompts_are_refused_on_a_cpu_and_taken_on_a_gpu(given):
    with pytest.raises(SpecError, match=r"extraArguments: .* cuts prompts .* remove it"):
        build_command(settings(extra_arguments=(given,)), PRIVATE)
    argv, _ = build_command(settings(extra_arguments=(given,), device="cuda"), PRIVATE)
    assert argv[-1] == given


def test_a_users_own_arguments_come_last():
    argv, _ = build_command(settings(extra_arguments=("--block-size", "64")), PRIVATE)

    assert argv[-2:] == ("--block-size", "64")


@pytest.mark.parametrize(
    "argument",
    [
        "--host",
        "--port=8000",
        "--uds",
        "--max_num_seqs",
        "--hos",
        "--seed",
        "--",
        "-",
        "--api-key=x",
    ],
)
def test_an_argument_that_is_not_the_users_is_refused(argument):
    with pytest.raises(SpecError, match="extraArguments"):
        build_command(settings(extra_arguments=(argument,)), PRIVATE)


@given(st.sampled_from(sorted(RESERVED)), st.data())
def test_no_spelling_of_a_reserved_argument_gets_through(name, data):
    short = name[: data.draw(st.integers(1, len(name)))]
    spelt = short.replace("-", data.draw(st.sampled_from("-_")))

    with pytest.raises(SpecError):
        build_command(settings(extra_arguments=(f"--{spelt}=1",)), PRIVATE)


def test_a_socket_path_too_long_for_the_kernel_is_refused():
    with pytest.raises(SpecError, match="TMPDIR"):
        build_command(settings(), Path("/tmp") / ("x" * 100))


def test_the_cache_is_sized_for_whole_blocks_of_every_sequence():
    per_token = 8 * 2 * 4 * 64  # layers, keys and values, heads, head size

    # 300 tokens take 3 blocks of 128, and one block is never given out
    size = plan_kv_cache_bytes(per_token, "float32", length=300, num_seqs=10)

    assert size == 10 * 4 * 128 * per_token * 4
    assert plan_kv_cache_bytes(1, "float32", length=1, num_seqs=1) == KV_CACHE_MIN_BYTES


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 512))
def test_the_cache_always_holds_one_sequence_and_is_bounded_otherwise(per_token, length, num_seqs):
    size = plan_kv_cache_bytes(per_token, "bfloat16", length=length, num_seqs=num_seqs)

    assert size >= length * per_token * 2
    assert size <= max(KV_CACHE_MAX_BYTES, (length + 256) * per_token * 2)


def test_adapters_get_room_for_every_version_that_may_be_asked_for():
    adapter = AdapterSettings(rank=12, alpha=24, slots=6)

    argv, env = build_command(settings(adapter=adapter), PRIVATE)

    assert "--enable-lora" in argv
    assert value_of(argv, "--max-lora-rank") == "16"
    assert value_of(argv, "--max-cpu-loras") == "6"
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    argv, env = build_command(settings(), PRIVATE)
    assert "--enable-lora" not in argv
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in env


def test_an_adapter_of_a_rank_that_vllm_has_no_room_for_is_refused():
    adapter = AdapterSettings(rank=513, alpha=24, slots=6)

    with pytest.raises(SpecError, match="ranks up to 512, got 513"):
        build_command(settings(adapter=adapter), PRIVATE)
