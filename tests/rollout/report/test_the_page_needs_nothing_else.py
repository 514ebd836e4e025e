"""The page is one file: nothing is fetched, no script runs, and nothing of a run is taken for markup."""

import re
from html.parser import HTMLParser

import pytest
from report_kit import make_report, make_sample

from rollout.report.data import summarise
from rollout.report.page import render_page

FETCHING = {"src", "srcset", "data", "poster", "action", "formaction", "background", "manifest"}


class Reader(HTMLParser):
    """Collects what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.unclosed: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            link = name in {"href", "xlink:href"} and not str(value).startswith("#")
            if name in FETCHING or link or name.startswith("on"):
                self.fetched.append(f"{tag} {name}={value}")


def render(**changes) -> str:
    data = make_report(**changes)
    return render_page(data, summarise(data))


@pytest.fixture(scope="module")
def page() -> str:
    return render()


def test_nothing_is_fetched_and_nothing_runs(page):
    reader = Reader()
    reader.feed(page)

    assert reader.fetched == []
    assert not reader.tags & {"script", "link", "iframe", "object", "embed", "img", "base"}
    assert "@import" not in page
    assert [url for url in re.findall(r"url\(([^)]*)\)", page) if not url.startswith("#")] == []


def test_the_page_says_how_it_ended_and_what_may_be_claimed(page):
    assert "30.0 % &rarr; 80.0 %" in page
    assert "Policy of step 20" in page
    assert "blake3:abc" in page
    assert "ends with the same hash chain" in page


def test_a_lower_grade_claims_no_equality():
    assert "No equality with another run is claimed" in render(grade="Logical")


def test_what_a_policy_wrote_is_text_and_never_markup():
    page = render(after=[make_sample("<script>alert(1)</script>", 0.0, 20)], reason="<b>odd</b>")

    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<b>odd" not in page


def test_a_run_that_has_not_begun_has_a_page():
    page = render(steps=[], evaluations=[], before=[], after=[], chain="", outcome="Running")

    assert "none: no step was committed" in page
    assert "<svg" not in page


def test_the_same_run_gives_the_same_page(page):
    assert render() == page
