"""Links lead somewhere, manifests are valid, commands exist, Python compiles, the README is short."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
import typer
from docs_kit import (
    GENERATED,
    PAGES,
    ROOT,
    SAMPLES,
    WRITTEN,
    Block,
    blocks,
    commands,
    links,
    named_files,
)

from rollout.cli.main import app
from rollout.runs.manifest import load_documents, load_folder_or_file
from rollout.runs.validation import validate_documents

OTHERS = ("apiVersion: networking.k8s.io/v1\n", "apiVersion: keda.sh/v1alpha1\n", "contract: 1\n")
"""Kinds of Kubernetes itself that a page may show, and a plugin.yaml; no schema of ours knows them."""


def describe(path: Path) -> str:
    return str(path.relative_to(ROOT))


def errors_of(path: Path) -> list[str]:
    found = validate_documents(load_documents(path))
    return [
        f"{one.line}: {one.problem.message}" for one in found if one.problem.severity == "error"
    ]


@pytest.mark.parametrize("page", PAGES, ids=describe)
def test_every_relative_link_leads_to_a_file(page):
    targets = [urlsplit(target) for target in links(page)]
    relative = [target.path for target in targets if not target.scheme and target.path]

    assert [path for path in relative if not (page.parent / path).exists()] == []


def test_the_readme_can_be_read_in_a_few_minutes():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_index_names_every_page():
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / link).resolve() for link in links(index)}
    pages = {page for page in WRITTEN if page != index}

    assert pages - named == set()
    assert {page for page in named if GENERATED in page.parents} == set(GENERATED.iterdir())


@pytest.mark.parametrize("language", ["yaml", "toml"])
def test_every_manifest_shown_is_valid(language, tmp_path):
    for block in blocks(language):
        if "kind:" not in block.text and "kind =" not in block.text:
            continue
        if block.text.startswith(OTHERS):
            continue
        path = tmp_path / f"shown.{language}"
        path.write_text(block.text, encoding="utf-8")
        for name in re.findall(r"path: (\w+\.py)", block.text):
            (tmp_path / name).write_text(shown_code(block.page), encoding="utf-8")
        assert errors_of(path) == [], block


def shown_code(page):
    """The functions that a page shows, as the file that its manifests name."""
    return "\n".join(
        one.text for one in blocks("python") if one.page == page and "def " in one.text
    )


@pytest.mark.parametrize("sample", SAMPLES, ids=describe)
def test_every_sample_is_valid(sample):
    assert errors_of(sample) == []


def test_a_manifest_in_the_tutorial_is_the_file_beside_it():
    page = ROOT / "docs" / "tutorial" / "first-run.md"

    assert named_files(page)["first.yaml"] == page.with_name("first.yaml").read_text("utf-8")


def test_the_readmes_manifest_is_the_sample():
    [shown] = [block for block in blocks("yaml") if block.page.name == "README.md"]

    assert shown.text == (ROOT / "manifests" / "samples" / "arithmetic.yaml").read_text("utf-8")


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda value: str(value)[-60:])
def test_every_command_exists_with_its_options(page, words):
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command, info_name="rollout")
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        context = click.Context(command, info_name=name, parent=context)
    command.make_context(context.info_name, words)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_every_python_block_compiles(block: Block):
    compile(block.text, str(block.page), "exec")


def test_files_of_samples_named_in_commands_exist():
    named = [word for _, words in commands() for word in words if word.startswith("manifests/")]

    assert [word for word in named if not (ROOT / word).exists()] == []
    assert load_folder_or_file(ROOT / "manifests" / "samples" / "gsm8k-grpo")
