"""Tools that run what the policy writes: Python, shell commands, and files of the sandbox they share.

One sandbox an episode, made at the first call. What the code does is data: its output, its exit code, or which bound
it met. Where its memory or files were past their bound the sandbox is thrown away and the next call gets a fresh one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import PurePosixPath

from rollout.tools.contract import Tool, ToolAnswer, ToolMistake, ToolTraits
from rollout.tools.functions import FunctionTool
from rollout.tools.sandbox.contract import CommandResult, Sandbox, SandboxLimits, SandboxMaker
from rollout.tools.text import stream_text
from rollout.turns import ToolSpec
from rollout.types import Row

KINDS = ("python_exec", "shell", "file")
PYTHON = "/usr/bin/env"
FILE_BYTES_MAX = 64 << 10
SECONDS_MARGIN = 265.0
"""For a sandbox to come up (a pod may have to be scheduled) and to answer, beside the command's own limit: each has its own bound below this one."""

_WHY = {
    "time": "ended: it ran for more than {seconds:g} s",
    "memory": "ended: it used more than {memory} MiB of memory; files and variables are lost",
    "files": "ended: it made more than {files} files; all files are lost",
}

_FILE_PROGRAM = """
import json, os, sys
asked = json.load(sys.stdin)
path = os.path.join("/box", asked["path"])
if asked["action"] == "write":
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(asked["content"])
    print("written")
elif os.path.isdir(path):
    for name in sorted(os.listdir(path)):
        print(name + ("/" if os.path.isdir(os.path.join(path, name)) else ""))
elif not os.path.isfile(path):
    sys.exit("no such file")
else:
    with open(path, encoding="utf-8", errors="replace") as file:
        sys.stdout.write(file.read(asked["most"]))
"""


class CodeSource:
    """Those of ``KINDS`` that a run names."""

    def __init__(
        self,
        kinds: tuple[str, ...],
        maker: Callable[[], SandboxMaker],
        *,
        limits: SandboxLimits | None = None,
    ) -> None:
        self._kinds = kinds
        self._maker = maker
        self._limits = limits or SandboxLimits()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the policy will see."""
        return tuple(tool.spec for tool in self.open({}))

    def open(self, row: Row) -> tuple[Tool, ...]:
        """Tools that share one sandbox."""
        del row
        box = CodeBox(self._maker, self._limits)
        made = {"python_exec": box.python_exec, "shell": box.shell, "file": box.file}
        traits = ToolTraits(seconds=self._limits.seconds + SECONDS_MARGIN)
        return tuple(
            FunctionTool(made[kind], name=kind, traits=traits, close=box.close)
            for kind in self._kinds
        )


class CodeBox:
    """The sandbox of one episode, made when it is needed."""

    def __init__(self, maker: Callable[[], SandboxMaker], limits: SandboxLimits) -> None:
        self._maker = maker
        self._limits = limits
        self._sandbox: Sandbox | None = None

    async def python_exec(self, code: str) -> ToolAnswer:
        """Run a Python program in a sandbox without network and see what it prints. Files stay, variables do not."""
        return self._told(await self.run((PYTHON, "python3", "-I", "-c", code)))

    async def shell(self, command: str) -> ToolAnswer:
        """Run a shell command in a sandbox without network and see what it prints."""
        return self._told(await self.run(("/bin/sh", "-c", command)))

    async def file(self, action: str, path: str, content: str = "") -> ToolAnswer:
        """Work with files of the sandbox: action "read" shows a file or lists a folder, "write" writes content."""
        if action not in {"read", "write"}:
            raise ToolMistake(f'action: expected "read" or "write", got {action[:40]!r}')
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path:
            raise ToolMistake("path: expected one below the working folder, without ..")
        if len(content.encode("utf-8", "replace")) > FILE_BYTES_MAX:
            raise ToolMistake(f"content: expected at most {FILE_BYTES_MAX} bytes")
        asked = {"action": action, "path": path, "content": content, "most": FILE_BYTES_MAX}
        program = (PYTHON, "python3", "-I", "-S", "-c", _FILE_PROGRAM)
        result = await self.run(program, stdin=json.dumps(asked).encode())
        said = stream_text(result.stdout)
        if result.cause == "exit" and result.code == 0:
            return ToolAnswer(text=said)
        lines = stream_text(result.stderr).strip().splitlines()
        why = lines[-1] if lines and result.cause == "exit" else self._why(result)
        return ToolAnswer(text=f"error: {why}", is_error=True)

    async def run(self, argv: tuple[str, ...], *, stdin: bytes = b"") -> CommandResult:
        """Run a command. Raises ToolMistake for one that is too large, InfrastructureError where the sandbox is lost."""
        if self._sandbox is None:
            self._sandbox = await self._maker().open(self._limits)
        try:
            result = await self._sandbox.run(argv, stdin=stdin)
        except ValueError as error:
            raise ToolMistake(str(error)) from error
        if result.cause in {"memory", "files"}:
            await self.close()
        return result

    def _told(self, result: CommandResult) -> ToolAnswer:
        said = [text for text in (stream_text(result.stdout), stream_text(result.stderr)) if text]
        failed = result.cause != "exit" or result.code != 0
        if failed:
            said.append(f"[{self._why(result)}]")
        if result.num_left:
            said.append(f"[{result.num_left} processes that it left running were ended]")
        return ToolAnswer(
            text="\n".join(text.rstrip("\n") for text in said) or "[no output]",
            is_error=failed,
            signals={"tool_timeouts": 1} if result.cause == "time" else {},
        )

    def _why(self, result: CommandResult) -> str:
        if result.cause in _WHY:
            return _WHY[result.cause].format(
                seconds=self._limits.seconds,
                memory=self._limits.memory_bytes >> 20,
                files=self._limits.files,
            )
        return f"ended by signal {-result.code}" if result.code < 0 else f"exit code {result.code}"

    async def close(self) -> None:
        """End the sandbox; the next call makes a fresh one."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()
