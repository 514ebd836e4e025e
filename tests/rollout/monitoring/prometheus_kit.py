"""Debian's Prometheus and promtool, as processes of a test: what is scraped, asked and checked by the program that users have."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from cluster import packages
from cluster.control.ports import find_free_port

WAIT_SECONDS = 120.0
PACKAGE = {"prometheus": "prometheus", "promtool": "prometheus"}


def tool(name: str) -> str:
    """Its path, installed where this process may; skips the test where it is not to be had."""
    packages.ensure(PACKAGE)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"cannot run here: there is no {name} (Debian's package prometheus has it)")
    return found


@dataclass(frozen=True)
class Target:
    """A page of metrics at a port of loopback, and what a cluster's Prometheus knows of its pod."""

    port: int
    pod: str

    @property
    def labels(self) -> dict[str, str]:
        return {"namespace": "team", "pod": self.pod}


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    url: str

    def get(self, path: str, **query: str) -> dict:
        asked = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)["data"]

    def ask(self, expression: str, at: float) -> list[tuple[Mapping[str, str], float]]:
        """What an expression is at a time: labels and value of each series."""
        found = self.get("query", query=expression, time=str(at))["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def wait_for(self, expression: str) -> float:
        """The first time at which an expression has a series."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            now = time.time()
            if self.ask(expression, now):
                return now
            time.sleep(0.2)
        targets = [
            (one["scrapeUrl"], one["lastError"]) for one in self.get("targets")["activeTargets"]
        ]
        raise AssertionError(f"never there: {expression}; {targets}")


@contextmanager
def scraping(folder: Path, targets: list[Target], rules: Path) -> Iterator[Prometheus]:
    """Scrape these each second, with these rules."""
    port = find_free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": "ours",
                "static_configs": [
                    {"targets": [f"127.0.0.1:{one.port}"], "labels": one.labels} for one in targets
                ],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    where = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    log = folder / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [tool("prometheus"), *where, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=out,
            stderr=out,
        )
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        _wait_until_ready(found, process, log)
        yield found
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_ready(found: Prometheus, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(found.url + "/-/ready", timeout=30):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())
