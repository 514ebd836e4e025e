"""``make site`` draws every page; what leads nowhere ends it, by name."""

import subprocess
import sys
from shutil import copyfile

import pytest
from docs_kit import ROOT, WRITTEN

pytestmark = pytest.mark.process
INDEX = "# Documentation\n\n## Begin\n\n- [First](first.md)\n"


def draw(source, target):
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    return subprocess.run([*words, source, target], capture_output=True, text=True, timeout=600)


def test_every_page_is_drawn_and_can_be_searched(tmp_path):
    done = draw(ROOT / "docs", tmp_path)

    assert done.returncode == 0, done.stderr
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in WRITTEN]
    assert [str(page) for page in pages if not (tmp_path / page).is_file()] == []
    assert (tmp_path / "index.html").read_bytes() == (tmp_path / "README.html").read_bytes()
    assert "rollout.library.run" in (tmp_path / "reference" / "python.html").read_text("utf-8")
    searched = (tmp_path / "searchindex.js").read_text("utf-8")
    assert '"how-to/take-snapshots"' in searched
    assert '"reference/python"' in searched


def draw_small(folder, pages):
    """A site of an index and these pages, drawn as ours is; below ``folder`` / ``site``."""
    docs = folder / "docs"
    docs.mkdir()
    copyfile(ROOT / "docs" / "conf.py", docs / "conf.py")
    for name, text in {"README.md": INDEX, **pages}.items():
        (docs / name).write_text(text, encoding="utf-8")
    return draw(docs, folder / "site")


@pytest.mark.parametrize(
    ("pages", "says"),
    [
        ({"first.md": "# First\n\n[there](second.md)\n"}, "second.md"),
        ({"first.md": "# First\n\n[there](#no-such-heading)\n"}, "no-such-heading"),
        ({"first.md": "# First\n", "forgotten.md": "# Forgotten\n"}, "forgotten.md"),
    ],
    ids=["no such page", "no such heading", "in no list of the index"],
)
def test_what_leads_nowhere_ends_the_build_by_name(pages, says, tmp_path):
    done = draw_small(tmp_path, pages)

    assert done.returncode != 0
    assert says in done.stderr


def test_folders_and_pages_outside_of_the_site_are_named_without_a_link(tmp_path):
    (tmp_path / "OUTSIDE.md").write_text("# Outside\n", encoding="utf-8")
    text = (
        "# First\n\n[this page](../OUTSIDE.md), [this folder](..), [the web](https://a.example)\n"
    )

    done = draw_small(tmp_path, {"first.md": text})

    assert done.returncode == 0, done.stderr
    html = (tmp_path / "site" / "first.html").read_text("utf-8")
    assert "<p>this page, this folder, <a" in html
