"""The documentation as a site (``make site``): these pages, and the library's docstrings.

The pages are plain Markdown that reads well in a repository. What stands beside what is told by the lists of README.md: a page
in none of them, a link that leads nowhere or a heading that is not there ends the build.
"""

import re
from pathlib import Path
from shutil import copyfile

project = "rollout"
author = "the rollout developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
exclude_patterns = ["examples"]
html_theme = "furo"
html_title = "rollout"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"

HERE = Path(__file__).parent
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)\s]+)\)")
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE = re.compile(r"^- [^\[]*\[[^\]]+\]\(([^)]+)\.(?:md|rst)\)", re.MULTILINE)


def contents(index: str) -> str:
    """The site's tree: a caption for each section of the index that lists pages."""
    words = SECTION.split(index)[1:]
    trees = []
    for caption, text in zip(words[::2], words[1::2], strict=True):
        if pages := PAGE.findall(text):
            trees += ["```{toctree}", ":hidden:", f":caption: {caption}", *pages, "```", ""]
    return "\n".join(trees)


def without_folders(page: Path, text: str) -> str:
    """The page with links only to what a site can hold: folders and pages of the repository outside of it are named."""

    def kept(found: re.Match[str]) -> str:
        place = (page.parent / found[2].partition("#")[0]).resolve()
        elsewhere = place.suffix == ".md" and HERE not in place.parents
        return found[1] if place.is_dir() or (elsewhere and place.is_file()) else found[0]

    return LINK.sub(kept, text)


def setup(app):
    def make_whole(app, page, source):
        path = Path(app.env.doc2path(page))
        if path.suffix != ".md":
            return
        source[0] = without_folders(path, source[0])
        if page == root_doc:
            source[0] += "\n" + contents(source[0])

    def name_the_first_page(app, failure):
        if failure is None:
            site = Path(app.outdir)
            copyfile(site / f"{root_doc}.html", site / "index.html")

    app.connect("source-read", make_whole)
    app.connect("build-finished", name_the_first_page)
