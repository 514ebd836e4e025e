"""The contract's versions: generated from the file that is published, and nothing of them taken away or renumbered."""

import json
import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

from rollout.plugins.sidecar.contract import plugin_pb2
from rollout.plugins.sidecar.manifest import CONTRACT_MAX, CONTRACT_MIN

SOURCES = Path(plugin_pb2.__file__).parents[4]
PROTO = Path(plugin_pb2.__file__).with_name("plugin.proto")
RELEASED = {
    version: json.loads(Path(__file__).with_name(f"contract-{version}.json").read_text())
    for version in range(CONTRACT_MIN, CONTRACT_MAX + 1)
}
"""What each version has besides those before."""


def told() -> dict[str, str]:
    """Every field, value and method with what the wire sees of it."""
    file = descriptor_pb2.FileDescriptorProto()
    plugin_pb2.DESCRIPTOR.CopyToProto(file)
    found: dict[str, str] = {"package": file.package}
    for message in file.message_type:
        for nested in (message, *message.nested_type):
            for field in nested.field:
                name = f"{message.name}.{nested.name}.{field.name}"
                found[name] = f"{field.number} {field.type} {field.label} {field.type_name}"
    for enum in file.enum_type:
        found |= {f"{enum.name}.{one.name}": str(one.number) for one in enum.value}
    for service in file.service:
        for method in service.method:
            found[f"{service.name}.{method.name}"] = f"{method.input_type} {method.output_type}"
    return found


def test_nothing_that_was_released_has_changed():
    released = {name: one for had in RELEASED.values() for name, one in had.items()}

    assert {name: one for name, one in told().items() if name in released} == released


def test_what_is_new_is_released_with_it():
    """Add it to the newest contract-N.json: from then on it is kept."""
    assert told().keys() == {name for had in RELEASED.values() for name in had}
    assert sum(map(len, RELEASED.values())) == len(told())


def test_a_later_version_takes_no_number_that_an_earlier_one_has():
    numbers = {}
    for name, one in told().items():
        message, _, field = name.rpartition(".")
        if not field.isupper() and " " in one and "." in message:
            numbers.setdefault(message, []).append(one.partition(" ")[0])

    assert numbers["Turn.Turn"] == ["1", "2", "3", "4", "5"]
    assert all(len(set(taken)) == len(taken) for taken in numbers.values())


def test_the_python_is_generated_from_the_file_that_is_published(tmp_path):
    name = str(PROTO.relative_to(SOURCES))
    words = ["-m", "grpc_tools.protoc", "-I", SOURCES, f"--python_out={tmp_path}"]
    subprocess.run([sys.executable, *words, f"--pyi_out={tmp_path}", name], check=True)

    for suffix in (".py", ".pyi"):
        made = (tmp_path / name).with_name(f"plugin_pb2{suffix}")
        assert made.read_text() == PROTO.with_name(f"plugin_pb2{suffix}").read_text()
