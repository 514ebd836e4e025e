"""Lengths by how samples ended, and what the report warns of."""

import pytest
from report_kit import make_report

from rollout.report.data import summarise
from rollout.report.lengths import describe_lengths, length_warnings
from rollout.report.page import render_page


def test_lengths_are_told_by_how_samples_ended():
    found = describe_lengths({"consumed": {10: 3, 20: 1}, "surplus": {None: 2, 40: 1}})
    assert found["consumed"] == {
        "samples": 4,
        "unfinished": 0,
        "tokens_mean": 12.5,
        "tokens_p50": 10,
        "tokens_p95": 20,
        "tokens_max": 20,
    }
    assert (found["surplus"]["samples"], found["surplus"]["unfinished"]) == (3, 2)


def test_nothing_sampled_has_no_lengths():
    assert describe_lengths({"excluded": {None: 4}})["excluded"]["tokens_mean"] is None
    assert list(length_warnings(describe_lengths({"excluded": {None: 4}}))) == []


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"consumed": {10: 100}, "filtered": {20: 50}}, ["ended as filtered have 20 tokens"]),
        ({"consumed": {10: 100}, "filtered": {10: 50}}, []),
        ({"consumed": {10: 100}, "filtered": {20: 5}}, []),
        ({"consumed": {10: 100}, "surplus": {None: 50}}, ["50 samples were given up before"]),
        ({"consumed": {10: 10000}, "expired": {None: 5}}, []),
        (
            {"consumed": {10: 100}, "surplus": {None: 50, 30: 40}},
            ["ended as surplus have 30 tokens", "50 samples were given up"],
        ),
    ],
)
def test_a_reader_is_warned_when_long_samples_are_missing(counts, said):
    told = summarise(make_report(lengths=counts))["warnings"]
    assert len(told) == len(said)
    assert all(part in one for part, one in zip(said, told, strict=True))


def test_the_page_shows_the_lengths():
    report = make_report(lengths={"consumed": {10: 3}, "surplus": {None: 2, 4321: 1}})
    page = render_page(report, summarise(report))
    assert "never ended" in page
    assert "4,321" in page
    assert "never ended" not in render_page(make_report(), summarise(make_report()))
