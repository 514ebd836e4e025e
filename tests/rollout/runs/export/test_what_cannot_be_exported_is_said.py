"""Which weights of a run may be taken home, and what is said of the others; the command line tells it as a person needs it."""

import json
import shutil
from dataclasses import replace

import msgspec
import pytest
import torch
from export_kit import LORA, VLLM, FakeRun, flip, make_run, moved, train
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import RolloutError, SpecError
from rollout.ledger.views import EvaluationView
from rollout.runs.export.card import render_card
from rollout.runs.export.choose import VersionSelector, choose, list_stored
from rollout.runs.export.describe import describe_run
from rollout.runs.export.export import Export, export_model
from rollout.runs.export.lineage import encode_lineage, parse_lineage
from rollout.weights.digest import digest_tensors, load_weights
from rollout.weights.publisher import Publisher

NEWEST = Export(selector=VersionSelector())


@pytest.fixture(scope="module")
def weights(base_model):
    return train(base_model).weights


def at(step, **more):
    return Export(selector=VersionSelector(step=step), **more)


def exported(run, target, export=NEWEST):
    lineage = export_model(run.folder, target, export).lineage
    return lineage.step, digest_tensors(load_weights(target / "model.safetensors"))


def test_the_newest_a_step_or_the_best_is_exported(tmp_path, base_model, weights):
    all_weights = [moved(weights, by / 10) for by in range(4)]
    run = make_run(tmp_path, base_model, all_weights)
    run.choose_best(run.versions[2])
    digests = [digest_tensors(one) for one in all_weights]

    assert exported(run, tmp_path / "newest") == (3, digests[3])
    assert exported(run, tmp_path / "one", at(1)) == (1, digests[1])
    assert exported(run, tmp_path / "first", at(0)) == (0, digests[0])
    best = Export(selector=VersionSelector(best=True))
    assert exported(run, tmp_path / "best", best) == (2, digests[2])


def test_a_version_that_was_stored_as_what_changed_is_whole_again(tmp_path, base_model, weights):
    run = make_run(tmp_path, base_model)
    publisher = Publisher(run.store, size_bytes_min=0)
    run.begin(weights)
    last = weights
    for step in range(4):
        last = {**last, "model.norm.weight": last["model.norm.weight"] + 0.5}
        stored = publisher.store(last)
        version = replace(run.version(0, weights), step=step + 1, digest=digest_tensors(last))
        run.commit_version(replace(version, object=stored.object, bases=stored.bases))
    assert run.versions[-1].bases, "it was stored as a delta"

    assert exported(run, tmp_path / "out") == (4, digest_tensors(last))


def test_where_the_newest_weights_are_not_stored_those_of_an_anchor_are(
    tmp_path, base_model, weights
):
    run = make_run(tmp_path, base_model, [weights])
    run.commit(moved(weights, 0.1), masters=weights)
    gone = run.commit(moved(weights, 0.2))
    run.store.delete(gone.object)

    found = export_model(run.folder, tmp_path / "out", NEWEST)

    assert (found.lineage.step, found.last_step) == (1, 2)


def test_weights_that_were_collected_are_named_with_those_that_are_kept(
    tmp_path, base_model, weights
):
    run = make_run(tmp_path, base_model, [moved(weights, by / 10) for by in range(4)])
    run.store.delete(run.versions[1].object)

    kept = r"does not keep the weights of step 1 \(it keeps those of steps: 0, 2, 3\)"
    with pytest.raises(SpecError, match=kept):
        export_model(run.folder, tmp_path / "out", at(1))
    assert list_stored(run.folder).steps == (0, 2, 3)


def test_a_run_that_has_nothing_yet_is_told_from_one_that_has_taken_no_step(
    tmp_path, base_model, weights
):
    run = make_run(tmp_path, base_model)
    with pytest.raises(SpecError, match="has no weights yet"):
        export_model(run.folder, tmp_path / "out", NEWEST)
    run.begin(weights)
    with pytest.raises(SpecError, match=r"has taken no step yet.*--step 0"):
        export_model(run.folder, tmp_path / "out", NEWEST)


def test_a_step_that_was_not_taken_and_a_best_that_was_not_chosen_are_refused(
    tmp_path, base_model, weights
):
    run = make_run(tmp_path, base_model, [weights, weights])
    with pytest.raises(SpecError, match="step 7: run tiny-1 has committed steps 1 to 1"):
        export_model(run.folder, tmp_path / "out", at(7))
    with pytest.raises(SpecError, match="no snapshot 'Best'"):
        export_model(run.folder, tmp_path / "out", Export(selector=VersionSelector(best=True)))


def test_merging_needs_an_adapter_and_an_adapter_alone_an_anchor(tmp_path, base_model, weights):
    run = make_run(tmp_path, base_model, [weights, weights])
    with pytest.raises(SpecError, match="--merge: run tiny trains all weights"):
        export_model(run.folder, tmp_path / "out", Export(selector=VersionSelector(), merge=True))
    spec = {**run.spec, "model": {"lora": LORA}}
    adapted = FakeRun(tmp_path / "runs" / "adapted-1", base_model, spec=spec)
    adapted.begin(weights)
    adapted.commit(moved(weights, 0.1))
    with pytest.raises(
        SpecError, match="of step 1 the merged weights only; name another step, or --merge"
    ):
        export_model(adapted.folder, tmp_path / "out", NEWEST)
    assert (
        exported(adapted, tmp_path / "out", Export(selector=VersionSelector(), merge=True))[0] == 1
    )


def test_an_adapter_of_another_model_is_not_merged(tmp_path, base_model, weights):
    spec = {**make_run(tmp_path, base_model).spec, "model": {"lora": LORA}, "actors": VLLM}
    run = FakeRun(tmp_path / "runs" / "adapted-1", base_model, spec=spec)
    run.begin(weights)
    name = "base_model.model.model.layers.9.mlp.up_proj"
    run.commit(
        {f"{name}.lora_A.weight": torch.ones(4, 32), f"{name}.lora_B.weight": torch.ones(8, 4)}
    )

    with pytest.raises(RolloutError, match=r"changes model\.layers\.9\.mlp\.up_proj\.weight"):
        export_model(run.folder, tmp_path / "out", Export(selector=VersionSelector(), merge=True))


def test_a_run_that_was_moved_with_its_model_is_exported(tmp_path, base_model, weights):
    home = tmp_path / "runs" / "tiny-1"
    own = tmp_path / "made"
    shutil.copytree(base_model, own)
    run = FakeRun(home, own)
    config = run.config.model_copy(
        update={
            "resolved": run.config.resolved.model_copy(update={"model_path": str(home / "model")})
        }
    )
    (home / "worker.json").write_text(config.model_dump_json(exclude_none=True))
    own.rename(home / "model")
    run.begin(weights)
    run.commit(weights)
    run.close()
    home.rename(tmp_path / "elsewhere")

    assert export_model(tmp_path / "elsewhere", tmp_path / "out", NEWEST).lineage.step == 1


def say(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if code == 0:
        assert done.exit_code == 0, done.output
        return done.output
    assert isinstance(done.exception, RolloutError), done.output
    assert done.exception.exit_code == code
    return str(done.exception)


def test_the_command_line_finds_a_run_as_other_commands_do(tmp_path, base_model, weights):
    make_run(tmp_path, base_model, [weights, weights])

    assert "no run 'nobody'" in say("model", "export", "nobody", "--to", tmp_path / "out", code=2)
    told = say("model", "export", "tiny", "--to", tmp_path / "out")
    assert "full, " in told
    assert "tiny, step 1 of GRPO" in told
    stored = json.loads(say("model", "show", "tiny-1", "--output", "json"))
    assert (stored["steps_stored"], stored["form"], stored["best"]) == ([0, 1], "full", None)
    assert "no run 'nobody'" in say("model", "show", "nobody", code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--to", "az://bucket/model"),
            "expected a folder on this machine, s3://bucket/prefix or gs://",
        ),
        (("--to", "out", "--region", "eu-west-1"), "are of a bucket, and --to out is a folder"),
        (("--to", "out", "--best", "--step", "1"), "give one of them"),
        (("--to", "out", "--max-shard-size", "0"), "expected a positive size"),
        (("--to", "out", "--max-shard-size", "big"), "not a quantity"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(tmp_path, base_model, weights, words, said):
    make_run(tmp_path, base_model, [weights, weights])
    assert said in say("model", "export", "tiny", *words, code=2)


def test_a_model_says_what_it_is_and_whether_it_is_whole(tmp_path, base_model, weights):
    run = make_run(tmp_path, base_model, [weights, weights])
    say("model", "export", "tiny", "--to", tmp_path / "out")

    shown = json.loads(say("model", "show", tmp_path / "out", "--output", "json"))

    assert shown["architecture"] == "Qwen2ForCausalLM"
    assert shown["num_parameters"] == sum(one.numel() for one in weights.values())
    assert (shown["dtypes"], shown["files"]) == (["F32"], ["model.safetensors"])
    assert shown["verified"] is True
    assert shown["lineage"]["uid"] == run.config.run.uid
    flip(tmp_path / "out" / "model.safetensors", -1)
    told = say("model", "show", tmp_path / "out", code=1)
    assert "model.safetensors is not what was exported: tensor model.norm.weight changed" in told
    flip(tmp_path / "out" / "model.safetensors", -1)
    (tmp_path / "out" / "adapter_config.json").write_text("{}")
    assert "adapter_config.json was not exported" in say("model", "show", tmp_path / "out", code=1)


def test_a_model_of_others_is_shown_and_not_called_verified(base_model):
    shown = json.loads(say("model", "show", base_model, "--output", "json"))

    assert (shown["verified"], shown["lineage"], shown["damage"]) == (False, None, [])
    assert "not exported by rollout" in say("model", "show", base_model)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rollout_lineage.json", "{}", "rollout_lineage.json cannot be read"),
        ("rollout_lineage.json", "[" * 100_000, "rollout_lineage.json cannot be read"),
        ("config.json", "[]x", "config.json cannot be read"),
        ("config.json", '{"architectures": 3}', "architectures: expected a list, got 3"),
        ("model.safetensors", "no weights", "not a whole safetensors file"),
    ],
)
def test_a_file_that_anybody_may_have_written_is_read_with_care(
    tmp_path, base_model, name, text, said
):
    shutil.copytree(base_model, tmp_path / "theirs")
    (tmp_path / "theirs" / name).write_text(text)

    done = CliRunner().invoke(app, ["model", "show", str(tmp_path / "theirs")])

    assert isinstance(done.exception, RolloutError), done.output
    assert said in str(done.exception)


def test_what_was_measured_of_these_weights_goes_with_them(tmp_path, base_model, weights):
    chosen = choose(
        (run := make_run(tmp_path, base_model, [weights, weights])).config,
        run.folder,
        run.store,
        VersionSelector(),
    )
    numbers = {"value": 0.5, "low": 0.25, "high": 0.75}
    summary = {"accuracy": numbers, "length": {"value": float("nan")}, "dropped": False}
    view = EvaluationView(
        name="sums",
        split="report",
        lineage=0,
        step=1,
        num_prompts=8,
        summary=summary,
        scheduled_at=0.0,
        finished_at=1.0,
    )
    chosen = replace(chosen, evaluations=(view,))

    lineage = describe_run(run.config, chosen, form="full", dtype="Float32")

    assert [one.metric for one in lineage.evaluations] == ["accuracy"]
    assert "| sums | report | accuracy | 0.5 | [0.25, 0.75] | 8 |" in render_card(lineage)
    assert parse_lineage(encode_lineage(lineage), "here") == lineage


def test_a_lineage_goes_with_no_other_model(tmp_path, base_model, weights):
    from rollout.runs.pipeline import materialise_model

    make_run(tmp_path, base_model, [weights, weights])
    say("model", "export", "tiny", "--to", tmp_path / "out")

    made = materialise_model(
        config_path=tmp_path / "out",
        weights=tmp_path / "out" / "model.safetensors",
        target=tmp_path / "next",
    )

    assert not (made / "rollout_lineage.json").exists()


def test_a_name_opens_no_markup_in_the_card(tmp_path, base_model, weights):
    run = make_run(tmp_path, base_model, [weights, weights])
    lineage = export_model(run.folder, tmp_path / "out", NEWEST).lineage
    evil = msgspec.structs.replace(lineage, source="a | b\n# [x](y) `<script>`")

    text = render_card(evil)

    assert "| trained on | a  b# x(y) script |" in text
    assert (tmp_path / "out" / "README.md").read_text() == render_card(lineage)
