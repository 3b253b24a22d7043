"""Would the tests notice? Plants small faults one at a time and counts, room by room, how many are noticed.

    python benchmarks/chart.py runs/chart.db       # once: which tests run which lines
    python benchmarks/mutations.py --rooms pieces measure --count 20 --seed 0

A fault is one change of the syntax tree: a comparison or operator turned, a number or truth value changed, a keyword
argument left out, a condition fixed, a factor or a summand dropped, but for what is said to the reader, looks of a plot
and keywords that only guard (``LOOKS``); in the room ``recipes``, a number or truth value of a recipe with numbers by a
paper's authors. With ``--gradients`` it is an operand or argument whose gradient is cut, of those through which one
passes in the room's tests, which are run once to see.
It is planted in a copy of the tree. A process that has torch in memory
forks for each fault and runs the tests that run its line (the nearest files of tests, where it runs on import), quick
files first and in them quick tests, until one fails or ``--budget`` seconds of processor time are spent; tests of two
processes are left out. Afterwards every test that noticed something must pass on the sound tree, or what it noticed
does not count. What nothing notices is listed, to become a test. Answers are kept in ``--out``: the same command goes
on where it was.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import compileall
import copy
import datetime
import importlib
import json
import os
import py_compile
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chart import Chart

ROOT = Path(__file__).parents[1]
HANGS = 60  # seconds of processor time after which a single test is taken to hang
READY = (
    "torch", "numpy", "scipy.linalg", "hypothesis", "pydantic", "PIL.Image", "rich.table", "typer", "jinja2",
    "matplotlib.figure", "matplotlib.backends.backend_svg", "matplotlib.backends.backend_agg",
)  # fmt: skip
ROOMS = (
    "pieces", "methods", "measure", "run", "report", "data", "nets", "tasks", "parallel", "label", "cli", "recipes",
)  # fmt: skip
LOOKS = {
    "fontsize", "linewidth", "alpha", "markersize", "dpi", "pad", "h_pad", "optimize", "figsize", "strict", "frozen",
    "stacklevel",
}  # fmt: skip
PLAIN = {"len", "isinstance", "float", "int", "bool", "type", "id", "range"}  # pass no gradient on
NEAREST = 12  # files of tests that meet a fault in what runs on import
VALUE = re.compile(r'"[^"]*"|[\w-]*[A-Za-z][\w-]*|\d+(?:\.\d+)?(?:e-?\d+)?')  # strings, words and numbers of a recipe
SWAPS: dict[type, type] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def faults(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What this node could be by mistake, with what was done."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        other = copy.deepcopy(node)
        other.ops[0] = SWAPS[type(node.ops[0])]()
        yield "comparison turned", other
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        turned = copy.deepcopy(node)
        turned.op = SWAPS[type(node.op)]()
        yield "operator turned", turned
        if isinstance(node, ast.BinOp):
            yield "right operand dropped", node.left
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "truth turned", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "number changed", ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield "always the first branch", node.body
        yield "always the second branch", node.orelse
    elif isinstance(node, ast.Call) and node.keywords and node.keywords[0].arg:
        for at, keyword in enumerate(node.keywords):
            if keyword.arg not in LOOKS:
                less = copy.deepcopy(node)
                less.keywords.pop(at)
                yield f"keyword {keyword.arg} left out", less


def spots(node: ast.AST) -> Iterator[tuple[str, str, int | None]]:
    """The operands and arguments of a node through which a gradient could pass, and where they stand in it."""
    for field in ("left", "right") if isinstance(node, ast.BinOp) else ():
        if not isinstance(getattr(node, field), ast.Constant):
            yield f"gradient of the {field} operand cut", field, None
    asks = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PLAIN
    for at, argument in enumerate(node.args if isinstance(node, ast.Call) and not asks else ()):
        if not isinstance(argument, ast.Constant | ast.Starred | ast.Lambda | ast.GeneratorExp):
            yield f"gradient of argument {at + 1} cut", "args", at


def _through(node: ast.AST, field: str, at: int | None, function: str, *more: ast.expr) -> None:
    """Let what stands there pass through a function."""
    old = getattr(node, field) if at is None else getattr(node, field)[at]
    new = ast.Call(ast.Name(function, ast.Load()), [old, *more], [])
    if at is None:
        setattr(node, field, new)
    else:
        getattr(node, field)[at] = new


def cuts(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """This node with no gradient through one of its operands or arguments."""
    for what, field, at in spots(node):
        other = copy.deepcopy(node)
        _through(other, field, at, "_cut_gradient")
        yield what, other


class Listening(ast.NodeTransformer):
    """A file's tree that tells through which of its spots a gradient passes."""

    def __init__(self, file: str) -> None:
        self.file, self.at = file, -1

    def visit(self, node: ast.AST) -> ast.AST:
        self.at += 1
        here, found = self.at, [*spots(node)]
        super().generic_visit(node)
        for what, field, at in found:
            _through(node, field, at, "_pass_gradient", ast.Constant(f"{self.file}:{here} {what}"))
        return node


def _learns(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_learns, value))
    return bool(getattr(value, "requires_grad", False)) and sys.modules["torch"].is_grad_enabled()


def _cut(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_cut, value))
    return value.detach() if _learns(value) else value


builtins._cut_gradient = _cut  # type: ignore[attr-defined]


def passing(copied: Path, files: list[Path], tests: list[str]) -> set[str]:
    """The spots of these files through which a gradient passes in these tests."""
    texts = {file: file.read_text() for file in files}
    reading, writing = os.pipe()
    try:
        for file, text in texts.items():
            tree = Listening(str(file.relative_to(copied))).visit(ast.parse(text))
            file.write_text(ast.unparse(ast.fix_missing_locations(tree)))
        child = os.fork()
        if not child:
            heard: set[str] = set()

            def hear(value: Any, spot: str) -> Any:
                if spot not in heard and _learns(value):
                    heard.add(spot)
                return value

            builtins._pass_gradient = hear  # type: ignore[attr-defined]
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1), os.dup2(quiet, 2)
            os.chdir(copied)
            os.environ |= {"PYTHONPATH": str(copied / "src")}
            pytest.main(["-q", "-m", "not docs", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
            with os.fdopen(writing, "w") as pipe:
                pipe.write("\n".join(heard))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            found = set(pipe.read().splitlines())
        os.waitpid(child, 0)
        return found
    finally:
        for file, text in texts.items():
            file.write_text(text)


class Planted(ast.NodeTransformer):
    """The tree with the node at a place replaced."""

    def __init__(self, place: int, new: ast.AST) -> None:
        self.place, self.new, self.seen = place, new, -1

    def visit(self, node: ast.AST) -> ast.AST:
        self.seen += 1
        if self.seen == self.place:
            return ast.copy_location(self.new, node)
        return super().generic_visit(node)


Place = tuple[int, int, str, ast.AST | str]  # of a fault: number of the node in visiting order, line, what, new node


def values(file: Path) -> Iterator[Place]:
    """Of a recipe at paper scale, what could be changed; a place is counted in characters."""
    text, table = file.read_text(), ""
    if 'source = "authors"' not in text:
        return
    start = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        table = line.strip(" []\n") if line.startswith("[") else table
        quiet = table == "smoke" or line.startswith("#") or "expect" in line.partition("=")[0]
        for found in () if quiet else VALUE.finditer(line.partition(" #")[0]):
            if new := {"true": "false", "false": "true"}.get(found[0]):
                yield start + found.start(), number, "truth turned", new
            elif found[0][0].isdigit():
                yield start + found.start(), number, "number changed", f"{2 * float(found[0]) + 1:g}"
        start += len(line)


def planted(text: str, at: int, new: ast.AST | str) -> str:
    """A file's text with the fault."""
    if isinstance(new, ast.AST):
        return ast.unparse(ast.fix_missing_locations(Planted(at, new).visit(ast.parse(text))))
    old = VALUE.match(text, at)
    assert old is not None
    return text[:at] + new + text[old.end() :]


def places(file: Path, gradients: bool = False) -> list[Place]:
    """Every fault a file could have, or every gradient that could be cut there."""
    found: list[Place] = []
    if file.suffix == ".toml":
        return [*values(file)]

    class Walk(ast.NodeTransformer):
        at, looks = -1, 0

        def visit(self, node: ast.AST) -> ast.AST:
            self.at += 1
            look = isinstance(node, ast.keyword) and node.arg in LOOKS
            self.looks += look
            if not self.looks and not isinstance(node, ast.JoinedStr):
                found.extend(
                    (self.at, getattr(node, "lineno", 0), what, new)
                    for what, new in (cuts if gradients else faults)(node)
                )
            super().generic_visit(node)
            self.looks -= look
            return node

    Walk().visit(ast.parse(file.read_text()))
    text = file.read_text().splitlines()
    spoken = ("raise ", "UserError(", "warnings.warn", "description=", "Field(", '"""', "# ")
    return [one for one in found if one[1] and not any(word in text[one[1] - 1] for word in spoken)]


def imported(file: Path, modules: set[str]) -> set[str]:
    """The modules of ours that a file names in its imports, wherever they stand."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & modules


def tests_near(copied: Path, room: str) -> dict[Path, list[str]]:
    """For every file of a room the tests of it, nearest first: by imports between them, then by likeness of names."""
    source = copied / "src"
    names = {file: ".".join(file.relative_to(source).with_suffix("").parts) for file in source.rglob("*.py")}
    known = set(names.values())
    reaches = {name: imported(file, known) for file, name in names.items()}
    tests = [file for file in (copied / "tests").rglob("test_*.py") if "two_processes" not in file.name]
    first = {test: imported(test, known) for test in tests}

    def distance(test: Path, goal: str) -> int:
        seen, rim, far = set(first[test]), first[test], 1
        while rim and goal not in rim:
            rim = {n for name in rim for n in reaches[name]} - seen
            seen, far = seen | rim, far + 1
        return far if goal in rim else 99

    def order(test: Path, file: Path) -> Any:
        return distance(test, names[file]), file.stem not in test.stem, test.parent.name != room, test.stat().st_size

    if room == "recipes":
        pinned = [str(test.relative_to(copied)) for test in tests if room in str(test.relative_to(copied))]
        pinned.sort(key=lambda test: "paper" not in test and "generate" not in test)  # tables of values first
        return dict.fromkeys((source / "evenhand" / room).glob("*.toml"), pinned)
    return {
        file: [str(test.relative_to(copied)) for test in sorted(tests, key=lambda test: order(test, file))]
        for file in (source / "evenhand" / room).rglob("*.py")
    }


class Watch:
    """Tells the parent which test failed or hangs, and stops between tests once the budget is spent."""

    def __init__(self, pipe: int, budget: float, only: set[str], seconds: dict[str, float]) -> None:
        self.pipe, self.budget, self.now, self.only, self.seconds = pipe, budget, "collecting", only, seconds
        signal.signal(signal.SIGPROF, lambda *_: self.tell(f"hang {self.now}"))
        signal.setitimer(signal.ITIMER_PROF, HANGS)

    def tell(self, text: str) -> None:
        os.write(self.pipe, text.encode())
        os._exit(0)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not self.only or item.nodeid in self.only]
        place = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
        items.sort(key=lambda item: (place[item.path], self.seconds.get(item.nodeid, 0.0)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if time.process_time() > self.budget:
            self.tell("")
        self.now = nodeid
        signal.setitimer(signal.ITIMER_PROF, HANGS)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.tell(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell("collecting")


def noticed(copied: Path, tests: list[str], only: set[str], seconds: dict[str, float], budget: float) -> str:
    """The test that fails first, of those in these files, in a fork of this process; empty if none does."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setpgrp()
        os.close(reading)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        os.chdir(copied)
        os.environ |= {"PYTHONPATH": str(copied / "src")}
        plain = ["-x", "-q", "-m", "not docs", "-p", "no:cacheprovider", "-p", "no:xdist"]
        try:
            watch = Watch(writing, time.process_time() + budget, only, seconds)
            for some in (tests[:1], tests[1:3], tests[3:7], tests[7:]):  # all are read before the first one runs
                if some:
                    pytest.main([*plain, *some], [watch])
            watch.tell("")
        finally:
            os._exit(1)  # lest an exception end the parent's ``with`` here, and the copied tree with it
    os.close(writing)
    end, said = time.monotonic() + max(HANGS, 30 * budget), ""
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            said = "hang"
            break
        time.sleep(0.05)
    said = said or os.read(reading, 10_000).decode()
    os.close(reading)
    return said


Fault = tuple[str, Path, Place]  # its room, file and place


def drawn(copied: Path, given: argparse.Namespace) -> list[Fault]:
    """Every room's faults in an order of chance, taken in turns, so that a run cut short has a sample of each."""
    turns: list[tuple[int, Fault]] = []
    for room in given.rooms:
        files = sorted((copied / "src" / "evenhand" / room).rglob("*.toml" if room == "recipes" else "*.py"))
        every = [(room, file, one) for file in files for one in places(file, given.gradients)]
        if given.gradients:
            tests = [str(t.relative_to(copied)) for t in (copied / "tests" / room).rglob("test_*.py")]
            alive = passing(copied, files, [test for test in tests if "two_processes" not in test])
            every = [one for one in every if f"{one[1].relative_to(copied)}:{one[2][0]} {one[2][2]}" in alive]
            print(f"{room}: a gradient passes {len(every)} spots", file=sys.stderr, flush=True)
        random.Random(given.seed).shuffle(every)
        turns += enumerate(every[: given.count])
    return [fault for _, fault in sorted(turns, key=lambda turn: turn[0])]


def examine(fault: Fault, copied: Path, tests: list[str], chart: Chart, budget: float) -> dict[str, Any]:
    room, file, (at, line, what, new) = fault
    text, began = file.read_text(), time.monotonic()
    only = chart.tests(file.relative_to(copied), line, text) if file.suffix == ".py" else set()
    costs: dict[str, float] = defaultdict(float)  # of each file of tests that runs the line
    for name in only:
        costs[name.partition("::")[0]] += chart.seconds.get(name, 0.0)
    asked = sorted((test for test in tests if test in costs), key=costs.__getitem__) or tests[:NEAREST]
    try:
        file.write_text(planted(text, at, new))
        killer = noticed(copied, asked, only, chart.seconds, budget)
    finally:
        file.write_text(text)
    shown, seconds = text.splitlines()[line - 1].strip(), round(time.monotonic() - began, 1)
    return {"room": room, "what": what, "line": shown, "tests": len(only), "killer": killer, "seconds": seconds}


def unsound(copied: Path, killers: set[str]) -> set[str]:
    """Those that fail without any fault."""
    found: set[str] = set()
    while left := {test.removeprefix("hang ") for test in killers} - found:
        failed = noticed(copied, sorted({test.partition("::")[0] for test in left}), left, {}, 3600)
        if not failed:
            break
        found.add(failed.removeprefix("hang "))
    return {test for test in killers if test.removeprefix("hang ") in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), choices=list(ROOMS))
    parser.add_argument("--count", type=int, default=20, help="faults a room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", action="store_true", help="cut gradients, and nothing else")
    parser.add_argument("--budget", type=float, default=20, help="seconds of processor time for each fault")
    parser.add_argument("--chart", type=Path, default=Path("runs/chart.db"), help="made by chart.py")
    parser.add_argument("--out", type=Path, default=Path("runs/mutations.jsonl"))
    given = parser.parse_args()
    if not given.chart.exists():
        parser.error(f"no chart {given.chart}: make one by python benchmarks/chart.py {given.chart}")
    chart = Chart(given.chart)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in READY:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    kept: dict[str, dict[str, Any]] = {}
    if given.out.exists():
        kept = {one["key"]: one for one in map(json.loads, given.out.read_text().splitlines())}
    with tempfile.TemporaryDirectory() as place:
        copied = Path(place) / "tree"
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__"))
        by_hash = py_compile.PycInvalidationMode.CHECKED_HASH  # no fault stays behind as bytecode
        compileall.compile_dir(copied / "src", quiet=2, invalidation_mode=by_hash)
        near = {file: tests for room in given.rooms for file, tests in tests_near(copied, room).items()}
        for fault in drawn(copied, given):
            _, file, (at, line, what, _) = fault
            key = f"{file.relative_to(copied)}:{line}:{at} {what}"
            if key not in kept:
                kept[key] = examine(fault, copied, near[file], chart, given.budget)
                with given.out.open("a") as out:
                    out.write(json.dumps({"key": key, **kept[key]}) + "\n")
        void = unsound(copied, {one["killer"] for one in kept.values()} - {"", "hang", "collecting"})
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, seed {given.seed}\n\n    python {shlex.join(sys.argv)}\n")
    print("| room | planted | noticed | share |\n|---|--:|--:|--:|")
    for room in given.rooms:
        mine = [one for one in kept.values() if one["room"] == room]
        caught = sum(bool(one["killer"]) and one["killer"] not in void for one in mine)
        print(f"| {room} | {len(mine)} | {caught} | {100 * caught / max(1, len(mine)):.0f} % |")
    missed = [(k, one) for k, one in kept.items() if not one["killer"] or one["killer"] in void]
    print("\nNot noticed:\n\n" + "\n".join(f"- {key}: `{one['line']}`" for key, one in missed))
    if void:
        print(f"\nFail on the sound tree too: {', '.join(sorted(void))}")


if __name__ == "__main__":
    main()
