"""README and docs do what they say: code blocks are executed, commands are run, links lead somewhere.

Fenced blocks by language, all blocks of a page in order, in one namespace and one temporary folder:

- python: executed; an HTML comment ``given: ...`` before a block is executed too (what the reader has). With a first
  line ``# name.py`` it is saved under that name for the commands that follow.
- pycon: a doctest, so every value shown is real.
- toml: valid TOML; with a first line ``# name.toml`` it is saved under that name for the commands that follow.
- bash, console: ``evenhand`` and ``python examples/...`` lines are run; in console blocks, lines without ``$`` are
  output that must occur. After the comment ``not run: reason`` they are only parsed: command, options, recipe and keys.
  ``make``, ``pip`` and ``torchrun`` lines are checked for the target or program, and never run.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from evenhand import cli
from evenhand.run.choosing import is_data
from evenhand.run.recipe import load_recipe

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
COMMENTS = re.compile(r"((?:^<!--[^\n]*-->\n)*)\Z", re.M)
WITH_RECIPE = ("show", "copy", "check", "train", "reproduce")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    given: str
    not_run: bool


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        before = COMMENTS.search(text[: fence.start()])
        notes = re.findall(r"<!--\s*(.*?)\s*-->", before.group(1) if before else "")
        given = "\n".join(n.removeprefix("given:").strip() for n in notes if n.startswith("given:"))
        not_run = any(n.startswith("not run:") for n in notes)
        found.append(Block(fence[1], fence[2], text[: fence.start()].count("\n") + 1, given, not_run))
    return found


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("COLUMNS", "160")
    torch.set_num_threads(1)
    monkeypatch.setattr("evenhand.data.sets.packages.download", no_network)
    return tmp_path


def no_network(package: Any, *_: Any) -> None:
    pytest.fail(f"a page fetches {package.name}: use 'shapes', or mark the block as not run")


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_page(page: Path, request: pytest.FixtureRequest) -> None:
    if page.name == "detection.md":
        request.getfixturevalue("tv")
    check_page(page)


def check_page(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.language == "python":
            exec(compile(block.given, where, "exec"), namespace)
            exec(compile("\n" * block.line + block.text, where, "exec"), namespace)
            if name := re.match(r"# (\S+\.py)\n", block.text):
                Path(name[1]).write_text(block.text)
        elif block.language == "pycon":
            check_session(block, namespace, where)
        elif block.language == "toml":
            tomllib.loads(block.text)
            if name := re.match(r"# (\S+\.toml)\n", block.text):
                Path(name[1]).write_text(block.text)
        elif block.language in ("bash", "console"):
            for command, shown in commands(block):
                check_command(command, shown, not_run=block.not_run, where=where)
        else:
            assert block.language == "text", f"{where}: a block in '{block.language}' is not checked; call it text"


def check_session(block: Block, namespace: dict[str, Any], where: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(block.text, namespace, where, where, block.line)
    test.globs = namespace
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=said.append, clear_globs=False)
    assert not result.failed, "".join(said)


def commands(block: Block) -> list[tuple[list[str], str]]:
    """Each command's words, and the output shown below it."""
    found: list[tuple[list[str], str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console" and not line.startswith("$ "):
            found[-1] = found[-1][0], f"{found[-1][1]}{line}\n"
        elif words := shlex.split(line.removeprefix("$ "), comments=True):
            found.append((words, ""))
    return found


def check_command(words: list[str], shown: str, *, not_run: bool, where: str) -> None:
    program, *rest = words
    where = f"{where}: {shlex.join(words)}"
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
        assert all(target in targets for target in rest), f"{where}: no such target"
    elif program in ("pip", "torchrun"):
        assert shutil.which(program, path=f"{Path(sys.executable).parent}:/usr/bin"), f"{where}: not installed"
        if "evenhand" in rest and program == "torchrun":
            parse(rest[rest.index("evenhand") + 1 :], where)
    elif program == "python" and rest[0].startswith("examples/"):
        assert (ROOT / rest[0]).is_file(), f"{where}: no such file"
        if not not_run:
            with mock_arguments(rest):
                runpy.run_path(str(ROOT / rest[0]), run_name="__main__")
    elif program == "evenhand":
        if not_run:
            parse(rest, where)
        else:
            code, output = run(rest)
            assert code in ({2} if "evenhand: " in shown else {0}), f"{where} ended with {code}: {output[-2000:]}"
            for line in filter(str.strip, shown.splitlines()):
                assert squeezed(line) in squeezed(output), f"{where} did not say: {line}\nbut: {output[-2000:]}"
    else:
        assert (ROOT / program).exists() or program in ("export", "cd"), f"{where}: not checked; use evenhand or make"


def run(words: list[str]) -> tuple[int, str]:
    output = io.StringIO()
    with mock_arguments(["evenhand", *words]), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), output.getvalue()
    return 0, output.getvalue()


@contextlib.contextmanager
def mock_arguments(words: list[str]) -> Any:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


def squeezed(text: str) -> str:
    return " ".join(text.split())


def parse(words: list[str], where: str) -> None:
    """Command, options and, where it is known, the recipe with its overrides; nothing is run."""
    command: Any = typer.main.get_command(cli.app)
    context = None
    name, rest = "evenhand", words
    while rest and "--help" not in rest:
        try:
            context = command.make_context(name, list(rest), parent=context)
        except BaseException as error:
            pytest.fail(f"{where}: {getattr(error, 'message', error)!r}")
        if not hasattr(command, "commands"):
            break
        name, rest = rest[0], rest[1:]
        command = command.commands[name]
    if context and context.info_name == "train" and is_data(context.params["name"]):
        return
    if context and context.info_name in WITH_RECIPE:
        load_recipe(context.params["name"], context.params.get("set_") or ())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not target.startswith(("http", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(example.read_text().splitlines()) <= 40
    with mock_arguments([example.name]):
        runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


WRONG = {
    "code that fails": "```python\nassert 1 == 2\n```",
    "a value that is not real": "```pycon\n>>> 1 + 1\n3\n```",
    "no such command": "```bash\nevenhand trian fashion-lt\n```",
    "no such option": "<!-- not run: long -->\n```bash\nevenhand train fashion-lt --epochs 3\n```",
    "no such variant": "<!-- not run: long -->\n```bash\nevenhand train fashion-lt:ce-dwr\n```",
    "no such key": "<!-- not run: long -->\n```bash\nevenhand train fashion-lt --set run.epoch=3\n```",
    "no such target": "```bash\nmake coffee\n```",
    "no such example": "```bash\npython examples/none.py\n```",
    "other output": "```console\n$ evenhand show fashion-lt\nno such line\n```",
    "an error it does not show": "```bash\nevenhand measure nowhere\n```",
    "a download": "```bash\nevenhand data get optdigits\n```",
    "a block nobody checks": "```yaml\na: 1\n```",
}


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_page_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n")
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        check_page(page)
