"""Which tests run which lines: the whole suite once under ``coverage``, kept as one file for ``mutations.py``.

    python benchmarks/chart.py runs/chart.db
    python benchmarks/chart.py runs/chart.db tests/run/test_new.py      # adds these tests to it

What a fixture shared by a module does is every test's of that module. What other processes do is not seen.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest


class Charting:
    """Names to coverage the test that runs, or the module whose fixture is made; and takes the tests' times."""

    def __init__(self, watched: coverage.Coverage) -> None:
        self.watched, self.now, self.seconds = watched, "", dict[str, float]()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.now = item.nodeid
        self.watched.switch_context(self.now)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        shared = fixturedef.scope != "function"
        if shared:
            self.watched.switch_context(self.now.partition("::")[0])
        try:
            return (yield)
        finally:
            if shared:
                self.watched.switch_context(self.now)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def chart(tree: Path, out: Path, tests: list[str]) -> None:
    """Run the tests of a tree, or some of them, and keep who runs what."""
    os.chdir(tree)
    kept = json.loads(out.with_suffix(".json").read_text()) if tests and out.exists() else {"seconds": {}}
    watched = coverage.Coverage(data_file=str(out), source=[str(tree / "src")], config_file=False)
    charting = Charting(watched)
    if kept["seconds"]:
        watched.load()
    watched.start()
    pytest.main(["-q", "-m", "not docs", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], [charting])
    watched.stop()
    watched.save()
    out.with_suffix(".json").write_text(json.dumps({"tree": str(tree), "seconds": kept["seconds"] | charting.seconds}))


class Chart:
    """A chart, asked by place."""

    def __init__(self, file: Path) -> None:
        kept = json.loads(file.with_suffix(".json").read_text())
        self.tree, self.seconds = Path(kept["tree"]), dict[str, float](kept["seconds"])
        self.data = coverage.CoverageData(str(file))
        self.data.read()
        self.known: dict[Path, dict[int, list[str]]] = {}

    def tests(self, file: Path, line: int, text: str) -> set[str]:
        """The tests that run the statement which has this line; none where it runs on import alone.

        :param file: relative to the tree
        """
        if file not in self.known:
            self.known[file] = self.data.contexts_by_lineno(str(self.tree / file))
        lines = self.known[file]
        names = {name for at in _statement(text, line) for name in lines.get(at, ()) if name}
        modules = tuple(f"{name}::" for name in names if "::" not in name)
        return {name for name in names if "::" in name} | {name for name in self.seconds if name.startswith(modules)}


def _statement(text: str, line: int) -> range:
    """The lines of the innermost statement at a line; of one with a body, its head's; of a function's head, all."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):  # outer ones come first
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            if line <= end:
                whole = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                found = range(node.lineno, ((node.end_lineno if whole else end) or end) + 1)
    return found


if __name__ == "__main__":
    chart(Path(__file__).parents[1], Path(sys.argv[1]).resolve(), sys.argv[2:])
