import pytest

from rollout.errors import SpecError
from rollout.models.presets import PRESETS, find_preset
from rollout.models.resolve import resolve_model
from rollout.models.shapes import read_shape


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b-instruct", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b-instruct", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-8b", 8_190_735_360),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b-instruct", 3_212_749_824),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
    ],
)
def test_a_preset_counts_the_published_number_of_parameters(name, published):
    assert PRESETS[name].shape.num_parameters == published


def test_a_preset_is_found_by_uri_whatever_its_case():
    found = find_preset("hf://qwen/qwen2.5-0.5b-instruct")

    assert found is not None
    assert found.uri == "hf://Qwen/Qwen2.5-0.5B-Instruct"
    assert find_preset("hf://acme/unknown") is None
    assert find_preset("rollout://tiny-qwen2?seed=1") is None


@pytest.mark.parametrize("uri", ["rollout://tiny-qwen2?tied=1", "rollout://tiny-llama?layers=3"])
def test_a_folder_tells_its_own_sizes(tmp_path, uri):
    from safetensors import safe_open

    path = resolve_model(uri, cache_dir=tmp_path).path

    with safe_open(path / "model.safetensors", framework="numpy") as file:
        stored = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118 - no mapping: it has keys() only
    assert read_shape(path).num_parameters == stored


def test_the_benchmark_model_has_25_million_parameters(tmp_path):
    path = resolve_model("rollout://tiny-qwen2?hidden=512&layers=8", cache_dir=tmp_path).path

    assert read_shape(path).num_parameters == 25_447_936


def test_a_configuration_without_sizes_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(SpecError, match="num_attention_heads"):
        read_shape(tmp_path)
