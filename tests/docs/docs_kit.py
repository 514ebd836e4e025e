"""Reads Markdown as a person follows it: named files, fenced blocks, commands, links."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from warm import run_rollout, start_rollout

from rollout.common.child_processes import Process

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "reference"
WRITTEN = [path for path in (ROOT / "docs").rglob("*.md") if "node_modules" not in path.parts]
"""Every page below docs; packages that somebody built an example with are not ours."""
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *WRITTEN] if GENERATED not in path.parents)
SAMPLES = sorted((ROOT / "manifests" / "samples").rglob("*.yaml"))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"^`([\w.-]+)`:\n\n```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0][:60]}"


def blocks(language: str) -> list[Block]:
    """Every fenced block in this language, of every page that a person wrote."""
    return [
        Block(page=page, language=found[0], text=found[1])
        for page in PAGES
        for found in _FENCE.findall(page.read_text(encoding="utf-8"))
        if found[0] == language
    ]


def named_files(page: Path) -> dict[str, str]:
    """Files that a page shows in full: a line with the name in backticks and a colon, then a block."""
    return dict(_NAMED.findall(page.read_text(encoding="utf-8")))


def commands() -> list[tuple[Path, list[str]]]:
    """Every command line that begins with ``rollout``, split into words."""
    found = []
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["rollout"]:
                found.append((block.page, words[1:]))
    return found


def links(page: Path) -> list[str]:
    """Targets of a page's links, outside of code."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", text))


def start(*words: str, folder: Path) -> Process:
    """``rollout WORDS`` in ``folder``, where its runs are kept; standard error is a file beside it."""
    with (folder / "said.txt").open("w") as said, (folder / "out.txt").open("w") as out:
        return start_rollout(
            *words,
            folder=folder,
            out=out.fileno(),
            err=said.fileno(),
            environment=_environment(folder),
        )


def say(*words: str, folder: Path) -> str:
    """Standard output of ``rollout WORDS`` in ``folder``; fails with what it said when it fails."""
    done = run_rollout(*words, folder=folder, environment=_environment(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    return {"ROLLOUT_HOME": str(folder / "runs")}


def write_files(page: Path, folder: Path) -> Path:
    """A page's named files, in a folder of their own; returns the folder."""
    for name, text in named_files(page).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
