"""Would the tests notice? Plants small faults one at a time and counts, room by room, how many are noticed.

    python benchmarks/mutations.py --rooms pieces measure --count 20 --seed 0

A fault is one change of the syntax tree: a comparison or operator turned, a number or truth value changed, a keyword
argument left out, a condition fixed, a factor or a summand dropped. It is planted in a copy of the tree; the room's own
tests run first, then wider ones; what nothing notices is listed, to become a test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDER = {
    "pieces": ["tests/pieces", "tests/methods"],
    "measure": ["tests/measure", "tests/run", "tests/report"],
    "methods": ["tests/methods", "tests/contract"],
    "data": ["tests/data", "tests/cli"],
    "nets": ["tests/nets", "tests/methods"],
    "run": ["tests/run", "tests/cli"],
    "report": ["tests/report", "tests/cli"],
    "tasks": ["tests/run", "tests/report", "tests/contract/test_selection.py"],
    "parallel": ["tests/parallel"],
}
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
        for at in range(len(node.keywords)):
            less = copy.deepcopy(node)
            dropped = less.keywords.pop(at)
            yield f"keyword {dropped.arg} left out", less


class Planted(ast.NodeTransformer):
    """The tree with the node at a place replaced."""

    def __init__(self, place: int, new: ast.AST) -> None:
        self.place, self.new, self.seen = place, new, -1

    def visit(self, node: ast.AST) -> ast.AST:
        self.seen += 1
        if self.seen == self.place:
            return ast.copy_location(self.new, node)
        return super().generic_visit(node)


def places(file: Path) -> list[tuple[int, int, str, ast.AST]]:
    """(number of the node in visiting order, line, what, new node) of every fault a file could have."""
    found: list[tuple[int, int, str, ast.AST]] = []

    class Walk(ast.NodeTransformer):
        at = -1

        def visit(self, node: ast.AST) -> ast.AST:
            self.at += 1
            if not isinstance(node, ast.JoinedStr):
                found.extend((self.at, getattr(node, "lineno", 0), what, new) for what, new in faults(node))
            return super().generic_visit(node)

    Walk().visit(ast.parse(file.read_text()))
    text = file.read_text().splitlines()
    spoken = ("raise ", "UserError(", "warnings.warn", "description=", "Field(", '"""', "# ")
    return [one for one in found if one[1] and not any(word in text[one[1] - 1] for word in spoken)]


def noticed(room: str, copied: Path, seconds: int) -> bool:
    here = {**os.environ, "PYTHONPATH": str(copied / "src"), "OMP_NUM_THREADS": "1"}
    for tests in WIDER[room]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not docs", "-p", "no:cacheprovider", tests]
        try:
            done = subprocess.run(command, cwd=copied, env=here, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode not in (0, 5):
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", nargs="+", default=list(WIDER), choices=list(WIDER))
    parser.add_argument("--count", type=int, default=20, help="faults a room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=900, help="of a test run; one that hangs has noticed")
    given = parser.parse_args()
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, seed {given.seed}\n\n    python {' '.join(sys.argv)}\n")
    print("| room | planted | noticed | share |\n|---|--:|--:|--:|", flush=True)
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        copied = Path(place) / "tree"
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__"))
        for room in given.rooms:
            files = sorted((copied / "src" / "evenhand" / room).rglob("*.py"))
            every = [(file, *one) for file in files for one in places(file)]
            chosen = random.Random(given.seed).sample(every, min(given.count, len(every)))
            caught = 0
            for file, at, line, what, new in chosen:
                text = file.read_text()
                tree = Planted(at, new).visit(ast.parse(text))
                file.write_text(ast.unparse(ast.fix_missing_locations(tree)))
                try:
                    found = noticed(room, copied, given.seconds)
                finally:
                    file.write_text(text)
                caught += found
                if not found:
                    survivors.append(
                        f"{file.relative_to(copied)}:{line} {what}: `{text.splitlines()[line - 1].strip()}`"
                    )
            print(f"| {room} | {len(chosen)} | {caught} | {100 * caught / max(1, len(chosen)):.0f} % |", flush=True)
    print("\nNot noticed:\n\n" + "\n".join(f"- {one}" for one in survivors))


if __name__ == "__main__":
    main()
