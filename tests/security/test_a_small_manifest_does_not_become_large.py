"""The attacker's wish: a manifest of a kilobyte that fills the memory of whoever looks at it."""

import resource
import subprocess
import sys

import pytest

from rollout.errors import SpecError
from rollout.runs import yaml_reading
from rollout.runs.formatting import format_manifest
from rollout.runs.manifest import FILE_BYTES_MAX, load_documents
from rollout.runs.validation import parse_scalar

HEAD = "apiVersion: rollout.dev/v1alpha1\nkind: RolloutRun\nmetadata: {name: x}\nspec:\n"


def bomb():
    lines = ["  a: &a ['x','x','x','x','x','x','x','x','x','x']"]
    lines += [
        f"  {now}: &{now} [{','.join([f'*{before}'] * 10)}]"
        for before, now in zip("abcdef", "bcdefg", strict=True)
    ]
    return HEAD + "\n".join(lines) + "\n  env: *g\n"


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("read", [load_documents, lambda p: format_manifest(str(p), p.read_text())])
def test_aliases_multiply(tmp_path, read):
    path = write(tmp_path, bomb())
    with pytest.raises(SpecError, match=r"run\.yaml:6: \*a is an alias; write what it stands for"):
        read(path)


def test_aliases_multiply_on_the_command_line():
    with pytest.raises(SpecError, match="is an alias"):
        parse_scalar("[&a [x, x], &b [*a, *a], *b]")


@pytest.mark.process
def test_the_command_answers_within_little_memory(tmp_path):
    bound = 2 << 30

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))

    command = [sys.executable, "-c", "from rollout.cli.main import main; main()", "validate", "-f"]
    done = subprocess.run(
        [*command, write(tmp_path, bomb())], preexec_fn=limit, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "run.yaml:6: *a is an alias" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("spec: " + "[" * 500 + "]" * 500, "run.yaml:5: more than 64 levels"),
        ("spec:\n" + "- 1\n" * 3000, r"run\.yaml:\d+: more than 2000 values"),
        ("a: 1\nb: " + "9" * 5000, "run.yaml:6: a number of more than 64 digits"),
        ("a: 0x" + "f" * 5000, "run.yaml:5: a number of more than 64 digits"),
        ("a: 1\nb: 2001-13-45", "run.yaml:6: not valid YAML: .*month"),
        ("a: !!float x", "run.yaml:5: not valid YAML"),
        ("a: !!omap x", "run.yaml:5: not valid YAML"),
        ("---\n" * 1100, r"run\.yaml:\d+: more than 1000 documents"),
        ("<<: 1", "run.yaml:5: not valid YAML"),
    ],
)
def test_every_other_excess_is_refused_with_its_line(tmp_path, monkeypatch, text, says):
    monkeypatch.setattr(yaml_reading, "NODES_MAX", 2000)
    with pytest.raises(SpecError, match=says):
        load_documents(write(tmp_path, "#\n" * 4 + text))


@pytest.mark.parametrize("ending", ["yaml", "toml"])
def test_a_file_is_larger_than_any_manifest(tmp_path, ending):
    path = tmp_path / f"run.{ending}"
    path.write_bytes(b"a" * (FILE_BYTES_MAX + 1))
    with pytest.raises(SpecError, match="is it a manifest"):
        load_documents(path)


def test_standard_input_is_not_cut_but_refused(monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("#" * (FILE_BYTES_MAX + 1)))
    with pytest.raises(SpecError, match="is it a manifest"):
        load_documents("-")


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000, "{a=" * 3000])
@pytest.mark.parametrize("read", [load_documents, lambda p: format_manifest(str(p), p.read_text())])
def test_toml_has_its_bounds_too(tmp_path, value, read):
    path = tmp_path / "run.toml"
    path.write_text(f"a = {value}\n")
    with pytest.raises(SpecError, match=r"run\.toml.*not valid TOML"):
        read(path)


@pytest.mark.parametrize("read", [load_documents, lambda p: format_manifest(str(p), p.read_text())])
def test_a_file_without_a_manifest_is_named(tmp_path, read):
    with pytest.raises(SpecError, match=r"run\.yaml: no manifest in it"):
        read(write(tmp_path, "# nothing\n"))
