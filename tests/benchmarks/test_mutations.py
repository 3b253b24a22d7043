"""The programs that plant faults: which tests run a line, and what a fault is."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

CODE = """
LIMIT = 3

def half(x):
    return x / 2

def double(x):
    if x < LIMIT:
        return (
            2 *
            x
        )
    return x
"""
TESTS = """
import pytest
from evenhand.sums import double, half

@pytest.fixture(scope="module")
def halved():
    return half(4)

def test_small():
    assert double(1) == 2

def test_large():
    assert double(5) == 5

def test_half(halved):
    assert halved == 2
"""


@pytest.fixture(scope="module")
def programs() -> tuple[ModuleType, ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("chart"), importlib.import_module("mutations")


def test_a_chart_names_the_tests_that_run_a_statement(programs: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    source, tests = tmp_path / "src" / "evenhand", tmp_path / "tests"
    for folder in (source, tests, tmp_path / "benchmarks"):
        folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["src"]\n')
    (source / "__init__.py").touch()
    (source / "sums.py").write_text(CODE)
    (tests / "test_sums.py").write_text(TESTS)
    (tmp_path / "benchmarks" / "chart.py").write_text((BENCHMARKS / "chart.py").read_text())
    ran = subprocess.run(
        [sys.executable, "benchmarks/chart.py", "chart.db"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr

    chart, file = programs[0].Chart(tmp_path / "chart.db"), Path("src/evenhand/sums.py")
    small, large, half = (f"tests/test_sums.py::test_{name}" for name in ("small", "large", "half"))
    assert chart.tests(file, 2, CODE) == set()  # on import alone
    assert chart.tests(file, 7, CODE) == {small, large}  # a function's head, with what it takes if nothing is said
    assert chart.tests(file, 5, CODE) == {small, large, half}  # a fixture of the module: every test of it
    assert chart.tests(file, 8, CODE) == {small, large}
    assert chart.tests(file, 11, CODE) == {small}  # within a statement of several lines
    assert chart.tests(file, 13, CODE) == {large}
    assert set(chart.seconds) == {small, large, half}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x < y", {"x >= y"}),
        ("x + y", {"x - y", "x"}),
        ("x and y", {"x or y"}),
        ("True", {"False"}),
        ("3", {"4"}),
        ("x if y else z", {"x", "z"}),
        ("f(x, a=b, c=d)", {"f(x, c=d)", "f(x, a=b)"}),
        ("f(x)", set()),
        ("f(x, a=b, alpha=0.5)", {"f(x, alpha=0.5)"}),
    ],
)
def test_what_an_expression_could_be_by_mistake(
    programs: tuple[ModuleType, ModuleType], before: str, after: set[str]
) -> None:
    node = ast.parse(before, mode="eval").body
    assert {ast.unparse(new) for _, new in programs[1].faults(node)} == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x * y", {"_cut_gradient(x) * y", "x * _cut_gradient(y)"}),
        ("2 * f(x)", {"2 * _cut_gradient(f(x))"}),
        ("f(x, 3, *more, a=b)", {"f(_cut_gradient(x), 3, *more, a=b)"}),
        ("x < y", set()),
    ],
)
def test_where_a_gradient_could_be_cut(programs: tuple[ModuleType, ModuleType], before: str, after: set[str]) -> None:
    node = ast.parse(before, mode="eval").body
    assert {ast.unparse(new) for _, new in programs[1].cuts(node)} == after


def test_a_cut_cuts_gradients_alone(programs: tuple[ModuleType, ModuleType]) -> None:
    cut, plain = programs[1]._cut, torch.ones(2)
    assert (cut(3), cut("a"), cut(None)) == (3, "a", None)
    assert cut(plain) is plain
    learnt = plain.clone().requires_grad_()
    with torch.no_grad():
        assert cut(learnt) is learnt
    first, (second, third) = cut([learnt * 2, (plain, learnt * 3)])
    assert [first.requires_grad, third.requires_grad] == [False, False]
    assert second is plain
    assert torch.equal(third, 3 * plain)


def test_gradients_are_cut_where_one_passes(tmp_path: Path) -> None:
    source, tests = tmp_path / "src" / "evenhand", tmp_path / "tests"
    source.mkdir(parents=True)
    tests.mkdir()
    (source / "__init__.py").touch()
    code = "def loss(x, scale):\n    return scale * x.square() + len(x) * scale\n"
    (source / "losses.py").write_text(code)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["src"]\n')
    (tests / "test_losses.py").write_text(
        "import torch\nfrom evenhand.losses import loss\n\n\n"
        "def test_loss():\n    loss(torch.ones(2, requires_grad=True), 3).sum().backward()\n"
    )
    run = (
        f"import sys, torch; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "from pathlib import Path\nimport mutations\n"
        f"root = Path({str(tmp_path)!r})\nfile = root / 'src/evenhand/losses.py'\n"
        "alive = mutations.passing(root, [file], ['tests/test_losses.py'])\n"
        "key = 'src/evenhand/losses.py:{} {}'.format\n"
        "for at, _, what, new in mutations.places(file, True):\n"
        "    if key(at, what) in alive:\n"
        "        print(mutations.planted(file.read_text(), at, new).splitlines()[1].strip())\n"
    )
    ran = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert sorted(ran.stdout.splitlines()) == [
        "return _cut_gradient(scale * x.square()) + len(x) * scale",
        "return scale * _cut_gradient(x.square()) + len(x) * scale",
    ], ran.stderr
    assert (source / "losses.py").read_text() == code  # as it was


def test_a_fault_is_planted_at_its_place_alone(programs: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    file = tmp_path / "sums.py"
    file.write_text(CODE)
    at, line, what, new = next(one for one in programs[1].places(file) if one[2] == "comparison turned")
    planted = ast.unparse(ast.fix_missing_locations(programs[1].Planted(at, new).visit(ast.parse(CODE))))
    assert (line, what) == (8, "comparison turned")
    file.write_text("plot(x + 1, alpha=0.5, fontsize=2 * size)")  # looks are not planted
    assert {what for _, _, what, _ in programs[1].places(file)} == {
        "operator turned",
        "right operand dropped",
        "number changed",
    }
    assert len(programs[1].places(file)) == 3
    file.write_text(CODE)
    assert planted == ast.unparse(ast.parse(CODE.replace("x < LIMIT", "x >= LIMIT")))


def test_a_recipe_of_a_paper_has_its_numbers_changed_and_nothing_else(
    programs: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    text = """# 3 words
about = "5 steps"
[method]
net = { name = "resnet20", widths-2 = [16, 0.5] }  # 7
flat = true
[smoke]
batch = 4
[variants.a]
expect = { fid = { value = 30.6, source = "authors" } }
lr = 1e-3
"""
    file = tmp_path / "a.toml"
    file.write_text(text)
    found = {programs[1].planted(text, at, new) for at, _, _, new in programs[1].places(file)}
    changes = [("[16,", "[33,"), ("0.5]", "2]"), ("true", "false"), ("1e-3", "1.002")]
    assert found == {text.replace(*change) for change in changes}
    file.write_text(text.replace("authors", "measured"))
    assert programs[1].places(file) == []
