"""Runs, checkpoints and sessions as the unmodified REST client lists them, a key's own only."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tinker
from serve_kit import ServedTraining
from service_kit import sequence_datum

pytestmark = pytest.mark.process


def test_what_was_made_is_listed_newest_first(no_telemetry):
    with tempfile.TemporaryDirectory() as home:
        served = ServedTraining(home=Path(home))
        served.start()
        try:
            client = tinker.ServiceClient(base_url=served.url, api_key=served.key)
            model = client.create_lora_training_client("tiny", rank=4, train_unembed=False).result(
                60
            )
            saved = [model.save_state("a").result(60).path]
            saved.append(model.save_weights_for_sampler("b").result(60).path)
            saved.append(model.save_state("c").result(60).path)
            other = client.create_lora_training_client("tiny", rank=2, train_unembed=False).result(
                60
            )
            rest = tinker.RestClient(base_url=served.url, api_key=served.key)
            run = model.get_info().model_id
            found = rest.list_checkpoints(run).result(60).checkpoints
            assert [one.tinker_path for one in found] == saved[::-1]
            assert [one.checkpoint_id for one in found] == [
                "weights/c",
                "sampler_weights/b",
                "weights/a",
            ]
            assert [one.checkpoint_type for one in found] == ["training", "sampler", "training"]
            some = rest.list_user_checkpoints(limit=1, offset=1).result(60)
            assert [one.tinker_path for one in some.checkpoints] == [saved[1]]
            assert some.cursor.total_count == 3
            runs = rest.list_training_runs().result(60).training_runs
            assert [one.training_run_id for one in runs] == [other.get_info().model_id, run]
            told = rest.get_training_run_by_tinker_path(saved[0]).result(60)
            assert (told.base_model, told.is_lora, told.lora_rank) == ("tiny", True, 4)
            assert told.last_checkpoint.tinker_path == saved[2]
            assert told.last_sampler_checkpoint.tinker_path == saved[1]
            (session,) = rest.list_sessions().result(60).sessions
            assert rest.get_session(session).result(60).training_run_ids == [
                run,
                told.training_run_id.replace(":0", ":1"),
            ]
            client.close("success").result(60)
        finally:
            served.kill()


async def test_what_another_key_made_is_not_told(service):
    running = await service()
    one, two = running.client("one"), running.client("two")
    model = await one.begin()
    await one.answer(await one.backward([sequence_datum()]))
    await one.answer(await one.save_state("mine"))
    await two.post("create_session", {"sdk_version": "0"})
    assert (await two.get("training_runs"))[1]["training_runs"] == []
    assert (await two.get("checkpoints"))[1]["checkpoints"] == []
    assert len((await two.get("sessions"))[1]["sessions"]) == 1
    for path in (
        f"training_runs/{model}",
        f"training_runs/{model}/checkpoints",
        f"sessions/{one.session}",
    ):
        assert (await two.get(path))[0] == 404
    for query, words in (
        ("limit=0", "limit: expected 1 to 1000, got '0'"),
        ("offset=x", "offset: expected 0"),
        ("access_scope=accessible", "other keys' things is not offered"),
        ("project_id=p", "project_id: projects is not offered"),
    ):
        status, said = await one.get(f"training_runs?{query}")
        assert (status in (400, 422), words in said["detail"]) == (True, True), said
