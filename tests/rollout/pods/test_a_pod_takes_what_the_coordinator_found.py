"""Workers' pods ask the coordinator what it has found, and trust their own copy of a model by its digest only."""

from __future__ import annotations

import pytest
from pod_kit import Cluster, build_config

from rollout.entrypoints import prepare
from rollout.entrypoints.models import place
from rollout.errors import CoordinatorError, SpecError
from rollout.models.files import ModelFiles
from rollout.pods.orders import read_order
from rollout.protocol.client import CoordinatorClient
from rollout_api.v1alpha1.common import ModelSource


def here(monkeypatch, tmp_path, digest):
    files = ModelFiles(uri="rollout://tiny-qwen2", path=tmp_path / "copy", digest=digest)
    monkeypatch.setattr(prepare, "resolve_model", lambda *_, **__: files)


def test_it_keeps_its_own_places_and_takes_the_rest(monkeypatch, tmp_path):
    found = build_config(tmp_path)
    order = read_order(Cluster(tmp_path).order("arithmetic-learner-0", "learner"))
    monkeypatch.setattr(
        CoordinatorClient, "config", lambda _: found.model_dump_json(exclude_none=True).encode()
    )
    here(monkeypatch, tmp_path, found.resolved.model_digest)
    config = prepare.ask(order, "learner")
    assert config.resolved.model_path == str(tmp_path / "copy")
    assert config.spec_digest == found.spec_digest
    assert config.layout == order.layout


def test_another_model_under_the_same_name_is_refused(monkeypatch, tmp_path):
    here(monkeypatch, tmp_path, "blake3:" + "1" * 64)
    with pytest.raises(
        SpecError, match=r"spec.model rollout://tiny-qwen2 is blake3:1111.*in this pod"
    ):
        prepare.find_here(
            "spec.model", ModelSource(uri="rollout://tiny-qwen2"), "blake3:" + "0" * 64
        )


def test_what_the_container_that_places_models_refuses_is_said_by_the_one_beside_it(
    monkeypatch, tmp_path
):
    found = build_config(tmp_path)
    order = read_order(Cluster(tmp_path).order("arithmetic-learner-0", "learner"))
    monkeypatch.setattr(
        CoordinatorClient, "config", lambda _: found.model_dump_json(exclude_none=True).encode()
    )
    here(monkeypatch, tmp_path, "blake3:" + "1" * 64)
    place(order, "learner")
    here(monkeypatch, tmp_path, found.resolved.model_digest)
    with pytest.raises(SpecError, match=r"spec.model rollout://tiny-qwen2 is blake3:1111"):
        prepare.ask(order, "learner")
    place(order, "learner")
    assert prepare.ask(order, "learner").resolved.model_path == str(tmp_path / "copy")


def test_a_source_that_the_operator_left_open_is_named():
    with pytest.raises(SpecError, match=r"spec.train.reference: names no uri"):
        prepare.find_here(
            "spec.train.reference", ModelSource.model_validate({"fromRun": {"name": "sft"}}), "d"
        )


def test_an_order_that_is_none_is_named(tmp_path):
    path = tmp_path / "order.json"
    with pytest.raises(SpecError, match=r"order.json is not a worker's order"):
        read_order(path)
    path.write_text("{}")
    with pytest.raises(SpecError, match=r"run\n"):
        read_order(path)


def test_a_coordinator_that_never_comes_is_waited_for_with_a_bound(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare, "COORDINATOR_SECONDS_MAX", 0.3)
    order = read_order(Cluster(tmp_path).order("arithmetic-learner-0", "learner"))
    with pytest.raises(CoordinatorError, match="no answer from the coordinator to /v1/config"):
        prepare.ask(order, "learner")
