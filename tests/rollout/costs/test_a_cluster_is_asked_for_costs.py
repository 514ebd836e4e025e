"""Costs of a cluster's runs come from their statuses: a right to list runs is enough, and who has none is told so."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from cost_kit import TABLE, spans, stay, table, used
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "cluster"))
from answering_api_server import api_server, refusal, said

from rollout.cli.main import main
from rollout.coordinator.rules.usage import sum_days
from rollout.costs.billing import bill, sum_up, total_of
from rollout.costs.statuses import usage_of
from rollout.ledger.views import LifeView

HOURS = 3_600_000
USED = {
    "day": "2026-03-01",
    "role": "Actor",
    "milliseconds": 30 * HOURS,
    "pods": 1,
    "requests": {"nvidia.com/gpu": "1"},
}


def run(name="a", namespace="team", labels=None, usage=(USED,)):
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels or {}},
        "status": {"progress": {"usage": list(usage), "dispositions": {"consumed": 1000}}},
    }


@settings(max_examples=25)
@given(st.lists(st.tuples(spans(), st.sampled_from(["actor-0", "actor-1"])), max_size=6))
def test_a_status_costs_what_its_ledger_costs(lives):
    stays = [stay(*span, worker=worker) for span, worker in lives]
    noted = [
        LifeView(
            worker=one.worker,
            incarnation=1,
            role="actor",
            began_ms=one.span[0],
            heard_ms=one.span[1],
            place=dict(one.place),
        )
        for one in stays
    ]
    told = [one.model_dump(mode="json", exclude_none=True) for one in sum_days(noted)]

    by_ledger = sum_up(bill([used(*stays)], table()), "month")
    by_status = sum_up(bill([usage_of(run("r", usage=told), qualified=False)], table()), "month")
    assert by_status == by_ledger


def test_the_day_on_which_a_price_changes_has_the_new_one():
    whole = total_of("", bill([usage_of(run(), qualified=False)], table()))
    assert whole.cost == 30 * Fraction("1.99")


@pytest.mark.parametrize(
    "usage", [[{**USED, "milliseconds": -1}], [{**USED, "day": "2026-02-31"}], [{"day": 1}], ["x"]]
)
def test_a_status_that_is_none_is_unknown_by_name(usage):
    found = usage_of(run(usage=usage), qualified=False)
    assert (found.stays, found.why.startswith("its status cannot be read")) == (None, True)


@pytest.fixture
def rollout(monkeypatch, capsys, tmp_path):
    """`rollout cost` against a server that answers, with the table of the kit."""
    (tmp_path / "prices.yaml").write_text(TABLE + "team: {label: squad}\n")
    monkeypatch.setenv("COLUMNS", "200")

    def call(answer, *words):
        with api_server(tmp_path, lambda *_: answer) as (kubeconfig, asked):
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            argv = ["rollout", "cost", *words, "--prices", str(tmp_path / "prices.yaml")]
            monkeypatch.setattr(sys, "argv", argv)
            with pytest.raises(SystemExit) as ended:
                main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err, asked.requests

    return call


def test_runs_of_all_namespaces_are_counted_for_their_teams(rollout):
    listed = {"items": [run(), run("b", "other", {"squad": "search"}), run("c", usage=())]}
    code, out, _, asked = rollout(said(200, listed), "-A", "--by", "team", "--output", "json")

    told = json.loads(out)
    assert code == 0
    assert [path for _, path, _, _ in asked] == ["/apis/rollout.dev/v1alpha1/rolloutruns"]
    assert [(one["key"], one["cost"]) for one in told["rows"]] == [
        ("search", "59.700000"),
        ("team", "59.700000"),
    ]
    assert list(told["unknown"]) == ["team/c"]


def test_one_run_is_told_with_what_a_thousand_samples_cost(rollout):
    code, out, _, _ = rollout(said(200, run()), "a", "--cluster")
    assert code == 0
    assert "59.70 EUR per 1,000 samples" in out.replace("59.700000", "59.70")


def test_who_may_not_list_runs_is_told_which_right_is_missing(rollout):
    code, out, err, _ = rollout(refusal(403, "rolloutruns is forbidden"), "--cluster")
    assert (code, out) == (4, "")
    assert "you may not list rolloutruns in team in namespace team" in err


def test_names_and_all_namespaces_do_not_go_together(rollout):
    code, _, err, _ = rollout(said(200, run()), "a", "-A")
    assert code == 2
    assert "--all-namespaces" in err
