"""What every command takes: names, defaults and bounds; and that all of it reaches what does the work."""

from __future__ import annotations

import importlib
import inspect
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

from evenhand.cli import (
    _whole,
    app,
    attention,
    common,
    data,
    exporting,
    label_page,
    labelling,
    listing,
    predicting,
    recipes,
    runs,
    training,
)
from evenhand.data.sets.packages import Package
from evenhand.run.findings import Findings
from evenhand.run.picking import How
from evenhand.run.predicting import Ranking

Cli = Callable[..., Any]
COMMANDS = {
    "list": listing.list_, "look": data.look, "show": recipes.show, "copy": recipes.copy, "check": recipes.check,
    "train": training.train, "measure": runs.measure, "predict": predicting.predict, "export": exporting.export,
    "sample": runs.sample, "synthetic": runs.synthetic, "reproduce": training.reproduce, "select": labelling.select,
    "label": label_page.label, "cycles": labelling.cycles, "report": runs.report, "hessian": runs.hessian,
    "attention": attention.attention, "demo": training.demo, "data list": data.list_, "data get": data.get,
    "data look": data.look, "labels export": labelling.export, "labels import": labelling.import_,
    "labels data": labelling.data,
}  # fmt: skip
# Of every command the options with a default of their own or with bounds: default, least, most.
OPTIONS: dict[str, dict[str, tuple[Any, float | None, float | None]]] = {
    "list": {"what": ("", None, None), "all_": (False, None, None)},
    "train": {"resume": (False, None, None), "fine_tune": (False, None, None)},
    "measure": {"split": ("test", None, None), "cas_images": (10_000, 1, None)},
    "predict": {"top": (None, 1, None), "min_score": (None, 0, 1), "batch": (None, 1, None)},
    "export": {"format_": ("onnx", None, None)},
    "sample": {"count": (64, 1, None), "seed": (0, None, None), "truncation": (None, 0, 1)},
    "synthetic": {
        "recipe": ("synthetic", None, None), "seeds": (3, 1, None), "first_seed": (0, 0, None),
        "labels": ("asked", None, None), "per_class": (None, 1, None), "out": (Path("runs/synthetic"), None, None),
        "jobs": (1, 1, None),
    },
    "reproduce": {"seeds": (3, 1, None), "first_seed": (0, 0, None), "jobs": (1, 1, None)},
    "select": {
        "budget": (100, 1, None), "by": ("", None, None), "why": ("learn", None, None),
        "out": (Path("picks.csv"), None, None), "seed": (0, 0, None), "embed": ("", None, None),
        "skip_unreadable": (False, None, None),
    },
    "label": {
        "port": (0, 0, 65535), "answers": (1, 1, None), "new_classes": (False, None, None),
        "browser": (True, None, None),
    },
    "hessian": {
        "whole": (False, None, None), "checkpoints": (False, None, None), "steps": (64, 1, None),
        "probes": (1, 1, None), "max_samples": (512, 1, None),
    },
    "attention": {
        "checkpoints": (False, None, None), "max_samples": (256, 2, None), "pictures": (6, 0, None),
        "thesis_centring": (False, None, None),
    },
    "demo": {"out": (Path("runs/demo"), None, None)},
    "labels export": {"prefix": ("", None, None)},
    "labels import": {"out": (Path("labels.csv"), None, None)},
    "labels data": {"out": (Path("labelled.csv"), None, None)},
}  # fmt: skip


def options(command: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Each argument's default, and what typer is told of it."""
    hints = get_type_hints(command, include_extras=True)
    return {
        name: (parameter.default, hints[name].__metadata__[0])
        for name, parameter in inspect.signature(command).parameters.items()
    }


def test_every_command_has_its_name() -> None:
    groups = {"": app, "data ": data.app, "labels ": labelling.labels_app}
    found = {
        f"{group}{one.name or one.callback.__name__}": one.callback
        for group, some in groups.items()
        for one in some.registered_commands
        if one.callback is not None
    }
    assert found == COMMANDS
    assert {one.name: one.typer_instance for one in app.registered_groups} == {
        "data": data.app, "labels": labelling.labels_app,
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_and_bounds_are_those_that_are_documented(name: str) -> None:
    found = {
        key: (default, info.min, info.max)
        for key, (default, info) in options(COMMANDS[name]).items()
        if default not in (None, inspect.Parameter.empty) or info.min is not None or info.max is not None
    }
    assert found == OPTIONS.get(name, {})


@pytest.mark.parametrize("command", [*COMMANDS.values(), _whole])
def test_every_argument_has_its_line_of_help(command: Callable[..., Any]) -> None:
    for name, (_, info) in options(command).items():
        assert info.help, name
        if name == "set_":
            assert info.metavar == "KEY=VALUE"


def test_a_choice_of_words_is_shown_in_the_place_of_a_type() -> None:
    assert options(listing.list_)["what"][1].metavar == "[methods|recipes|nets|data]"
    assert options(runs.measure)["cas"][1].metavar == "RECIPE"


def test_the_version_is_said_before_anything_else_is_asked() -> None:
    default, info = options(_whole)["version"]
    assert (default, info.is_eager) == (False, True)


@pytest.mark.parametrize(
    ("words", "about"),
    [
        ((), "Even-handed models from uneven data"),
        (("data",), "List, fetch and look at data sets."),
        (("labels",), "Picks to other labelling tools, and answers back."),
    ],
)
def test_a_command_without_its_word_is_answered_by_help_in_plain_text(
    cli: Cli, words: tuple[str, ...], about: str
) -> None:
    said = cli(*words)
    text = said.out + said.err
    assert about in text
    assert "Commands:" in text  # rich would draw a box
    assert "--install-completion" not in text


def test_an_exception_of_ours_is_pythons_own_traceback() -> None:
    assert not app.pretty_exceptions_enable


# handing on


def heard(monkeypatch: pytest.MonkeyPatch, place: str, answer: Any = None) -> list[Any]:
    """What the function at a place is called with from now on."""
    told: list[Any] = []

    def listen(*given: Any, **named: Any) -> Any:
        told.append((*given, named))
        return answer

    monkeypatch.setattr(place, listen)
    return told


HANDED: list[tuple[str, str, Any, tuple[Any, ...]]] = [
    (
        "attention r --class a --class b --checkpoints --max-samples 9 --pictures 3 --thesis-centring",
        "evenhand.run.attention.study",
        None,
        (Path("r"), {"classes": ["a", "b"], "every_checkpoint": True, "max_samples": 9, "pictures": 3,
                     "centre_both": False}),
    ),
    (
        "attention r",
        "evenhand.run.attention.study",
        None,
        (Path("r"), {"classes": None, "every_checkpoint": False, "max_samples": 256, "pictures": 6,
                     "centre_both": True}),
    ),
    (
        "hessian r --class a --whole --checkpoints --steps 9 --probes 3 --max-samples 5",
        "evenhand.run.curvature.study",
        None,
        (Path("r"), {"classes": ["a"], "whole": True, "every_checkpoint": True, "steps": 9, "probes": 3,
                     "max_samples": 5}),
    ),
    (
        "sample r --class a --count 3 --out o --seed 4 --truncation 0.5",
        "evenhand.run.samples.sample_run",
        Path("o"),
        (Path("r"), "a", 3, Path("o"), {"seed": 4, "truncation": 0.5}),
    ),
    (
        "label p/picks.csv --out o.csv --pool d --port 80 --answers 2 --class a --new-classes --no-browser",
        "evenhand.label.serving.serve",
        None,
        (Path("p/picks.csv"), Path("o.csv"), {"pool": Path("d"), "port": 80, "needed": 2, "classes": ["a"],
                                              "new_classes": True, "browser": False}),
    ),
    (
        "label p/picks.csv",
        "evenhand.label.serving.serve",
        None,
        (Path("p/picks.csv"), Path("p/labels.csv"), {"pool": None, "port": 0, "needed": 1, "classes": (),
                                                     "new_classes": False, "browser": True}),
    ),
    (
        "export r --format torch --out o",
        "evenhand.run.exporting.export",
        Path("o/model.pt2"),
        (Path("r"), {"format": "torch", "out": Path("o")}),
    ),
    (
        "reproduce name --seeds 2 --first-seed 1 --variant a --variant b --set x=1 --out o --jobs 3 --splits",
        "evenhand.run.reproduce.reproduce",
        None,
        ("name", {"seeds": 2, "first_seed": 1, "variants": ["a", "b"], "overrides": ["x=1"], "out": Path("o"),
                  "jobs": 3, "splits": True}),
    ),
    (
        "reproduce name",
        "evenhand.run.reproduce.reproduce",
        None,
        ("name", {"seeds": 3, "first_seed": 0, "variants": None, "overrides": (), "out": None, "jobs": 1,
                  "splits": None}),
    ),
    ("demo --out o --set x=1", "evenhand.run.reproduce.demo", None, (Path("o"), ["x=1"], {})),
    ("demo", "evenhand.run.reproduce.demo", None, (Path("runs/demo"), (), {})),
    (
        "synthetic g",
        "evenhand.run.synthetic.synthetic",
        None,
        ([Path("g")], {"recipe": "synthetic", "seeds": 3, "first_seed": 0, "labels": "asked", "annotator": None,
                       "per_class": None, "overrides": (), "out": Path("runs/synthetic"), "jobs": 1}),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "place", "answer", "told"), HANDED, ids=[row[0].partition(" -")[0] for row in HANDED]
)
def test_all_that_is_typed_is_handed_on(
    typed: str, place: str, answer: Any, told: tuple[Any, ...], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = heard(monkeypatch, place, answer)
    cli(*typed.split()).fine()
    assert found == [told]


def test_select_hands_on_all_it_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    found = heard(monkeypatch, "evenhand.run.selecting.select", [])
    monkeypatch.setattr("evenhand.data.picks.read_facts", lambda _: {"part": "target", "pool_size": 7})
    words = "--pool p --budget 3 --by vap --why rare --labels l.csv --out o.csv --seed 4 --epsilon 2 --embed pixels"
    said = cli("select", "r", *words.split(), "--skip-unreadable").fine()
    assert said.splitlines() == [
        "only 0 of 3: no other label is doubtful",
        "o.csv: nothing to label in the run's target",
    ]
    cli("select", "--pool", "p", "--alpha", "0", "--beta", "0").fine()
    assert found == [
        (
            Path("r"), Path("p"), 3, Path("o.csv"),
            {"by": "vap", "why": "rare", "labels": Path("l.csv"), "embed": "pixels", "skip_unreadable": True,
             "how": How(seed=4, epsilon=2), "told": ("epsilon",)},
        ),
        (
            None, Path("p"), 100, Path("picks.csv"),
            {"by": "", "why": "learn", "labels": None, "embed": "", "skip_unreadable": False,
             "how": How(alpha=0, beta=0), "told": ("alpha", "beta")},
        ),
    ]  # fmt: skip


def test_cycles_go_on_with_the_seed_that_is_given(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = heard(monkeypatch, "evenhand.run.cycles.run_cycles", Path("runs/c"))
    assert cli("cycles", tiny, "--seed", 0, "--set", "run.epochs=2").fine() == (
        "cycles: runs/c   report: evenhand report runs/c\n"
    )
    (recipe, _) = found[0]
    assert (recipe.run.seed, recipe.run.resume, recipe.run.epochs) == (0, True, 2)
    cli("cycles", tiny, "--seed", 3).fine()
    assert found[1][0].run.seed == 3


def test_data_are_chosen_for_with_all_that_is_typed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = heard(monkeypatch, "evenhand.run.choosing.choose")
    monkeypatch.setattr("evenhand.run.train", lambda _: tmp_path / "run", raising=False)
    said = cli("train", tmp_path, "--set", "x=1", "--seed", 3, "--budget", "10m", "--fine-tune").fine()
    assert said.startswith(f"paused: {tmp_path / 'run'}   continue: ")
    cli("train", tmp_path).fine()
    assert found == [
        (str(tmp_path), ["x=1"], {"budget": 600.0, "fine_tune": True, "seed": 3}),
        (str(tmp_path), (), {"budget": None, "fine_tune": False, "seed": 0}),
    ]
    assert "--resume continues a run" in cli("train", tmp_path, "--resume").mistake()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--cas annotator --split val", "leave out --split val"),
        ("--features inception --split val", "leave out --split and --cas"),
        ("--features inception --cas annotator", "leave out --split and --cas"),
    ],
)
def test_measures_that_need_the_test_split_refuse_another(cli: Cli, words: str, told: str) -> None:
    assert told in cli("measure", "r", *words.split()).mistake()


def test_a_page_of_cycles_takes_no_single_runs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("evenhand.report.cycles.is_experiment", lambda path: path.name in ("a", "b"))
    found = heard(monkeypatch, "evenhand.report.cycles.write_cycles_report", "page")
    a, b, c = (tmp_path / name for name in ("a", "b", "c"))
    assert cli("report", a, b).fine() == "page\n"
    cli("report", tmp_path, "--out", "o.html").fine()
    assert found == [([a, b], a / "report.html", {}), ([a, b], Path("o.html"), {})]
    assert "do not go on one page" in cli("report", a, c).mistake()


def test_a_seed_of_nought_is_one_that_was_given(tiny: Path) -> None:
    recipe = common.load(str(tiny), ["run.seed=5"], seed=0, resume=True)
    assert (recipe.run.seed, recipe.run.resume) == (0, True)
    recipe = common.load(str(tiny), None, seed=None, resume=False)
    assert (recipe.run.seed, recipe.run.resume) == (0, False)


def test_an_interruption_is_told_and_ends_with_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stop, common.stoppable():
        raise KeyboardInterrupt("go on by --resume")
    assert stop.value.exit_code == 130
    assert capsys.readouterr() == ("", "evenhand: stopped. go on by --resume\n")


def test_interfaces_for_label_studio_follow_what_is_labelled(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"classes": ["a"], "kind": "texts"}
    monkeypatch.setattr("evenhand.data.picks.read_facts", lambda _: facts)
    monkeypatch.setattr("evenhand.data.picks.read_picks", lambda _: ["row", "row"])
    found = heard(monkeypatch, "evenhand.data.exchange.export_picks")
    texts = cli("labels", "export", "picks.csv", "t.json", "--prefix", "d/").fine().splitlines()
    assert texts[0] == "t.json: 2 samples"
    assert 'toName="text"' in texts[1]
    facts["kind"] = "images"
    assert 'toName="image"' in cli("labels", "export", "picks.csv", "t.json").fine()
    assert cli("labels", "export", "picks.csv", "t.csv").fine() == "t.csv: 2 samples\n"
    facts["classes"] = []
    assert cli("labels", "export", "picks.csv", "t.json").fine() == "t.json: 2 samples\n"
    assert found[0] == (["row", "row"], Path("t.json"), {"classes": ["a"], "prefix": "d/"})


def test_ten_packages_of_one_scope_are_counted_and_fewer_are_named() -> None:
    def packages(count: int) -> list[Package]:
        return [Package("npm", f"@fonts/f{i}", "1", "f", 1, "", ()) for i in range(count)]

    assert data._from([*packages(2), Package("pip", "resvg", "1", "f", 1, "", ())]) == "npm @fonts/f0, f1; pip resvg"
    assert data._from(packages(9)).endswith("f7, f8")
    assert data._from(packages(10)) == "npm @fonts/* (10)"


def test_weights_are_fetched_as_a_file(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.data.sets.catalogue.obtain_weights", lambda name: f"{name}.pth")
    assert cli("data", "get", "mobilenet_v2").fine() == "mobilenet_v2.pth\n"


@pytest.mark.parametrize(
    ("top", "count", "heads"),
    [
        (1, 1, ["predicted", "confidence"]),
        (2, 2, ["predicted", "confidence", "second", "second_confidence"]),
        (
            5, 5, ["predicted", "confidence", "second", "second_confidence", "third", "third_confidence",
                   "rank4", "rank4_confidence", "rank5", "rank5_confidence"],
        ),
        (9, 2, ["predicted", "confidence", "second", "second_confidence"]),
    ],
)  # fmt: skip
def test_a_table_of_predictions_has_two_columns_for_each_class_told(top: int, count: int, heads: list[str]) -> None:
    file = io.StringIO()
    labels = tuple("abcdefghi"[:count])
    rows = [Ranking(name, labels, tuple(0.5**k for k in range(count))) for name in ("x", "y", "z")]
    assert predicting._write(file, rows, top) == 3
    assert "\r" not in file.getvalue()
    lines = [line.split(",") for line in file.getvalue().splitlines()]
    assert lines[0] == ["name", *heads]
    assert [line[0] for line in lines[1:]] == ["x", "y", "z"]
    assert lines[1][1:3] == ["a", "1.0000"]


def test_a_look_at_data_takes_settings_of_data_alone(cli: Cli, tmp_path: Path) -> None:
    rows = "".join(f"a fine day in town number {i},{'ab'[i % 2]}\n" for i in range(8))
    (tmp_path / "t.csv").write_text("review,stars\n" + rows)
    named = ["--set", "data.text_column=review", "--set", "data.label_column=stars"]
    said = cli("look", tmp_path / "t.csv", *named)
    assert said.code == 0, said
    assert "--set data.text_column=review --set data.label_column=stars" in said.out
    assert (
        "--set takes keys of [data], not run.seed=1" in cli("look", tmp_path / "t.csv", "--set", "run.seed=1").mistake()
    )
    assert cli("look", tmp_path / "t.csv").code == 2


def test_a_variant_is_copied_as_a_recipe_of_its_own(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("copy", "fashion-lt:ce-drw").fine().startswith("fashion-lt-ce-drw.toml: edit it")
    assert (tmp_path / "fashion-lt-ce-drw.toml").read_text().startswith('base = "fashion-lt"\n')
    cli("copy", "fashion-lt", "mine.toml").fine()
    assert not (tmp_path / "mine.toml").read_text().startswith("base")
    assert "exists already" in cli("copy", "fashion-lt", "mine.toml").mistake()


def test_a_look_tells_the_page_three_pieces_of_advice_for_the_domains_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = Findings("p", kind="images", classes=("a", "b"), domains=("x", "y", "z"))
    monkeypatch.setattr("evenhand.run.findings.find", lambda *_: findings)
    pages = heard(monkeypatch, "evenhand.report.look.write_look", "page.html")
    inner = importlib.import_module("evenhand.run.advice").advise
    monkeypatch.setattr("evenhand.run.advice.advise", lambda *given, **named: 2 * inner(*given, **named))
    said = cli("look", tmp_path, "--html", "page.html", "--set", "data.target=x", "--set", "data.source=['z']").fine()
    assert said.splitlines()[-1] == "page.html"
    ((page, _, _, lines, _),) = pages
    assert page == Path("page.html")
    assert len(lines) == 3
    assert "learn from z, work on x" in lines[0]


def test_a_score_by_a_classifier_is_of_as_many_images_as_typed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.run.measuring.measure", lambda run, split: {"run": run, "split": split})
    scored = heard(monkeypatch, "evenhand.run.samples.classifier_score", 0.5)
    record = object()
    monkeypatch.setattr("evenhand.report.reading.load_run", lambda _: record)
    told: list[Any] = []
    monkeypatch.setattr("dataclasses.replace", lambda old, **new: told.append((old, new)) or old)
    monkeypatch.setattr("evenhand.report.tables.headline", lambda _: "headline")
    tables = heard(monkeypatch, "evenhand.report.terminal.print_tables")
    assert cli("measure", "r", "--cas", "annotator", "--cas-images", "7").fine() == "test: headline\n"
    assert scored == [(Path("r"), {"recipe": "annotator", "count": 7})]
    measured = {"run": Path("r"), "split": "test", "classifier_score": 0.5}
    assert told == [(record, {"measure": measured})]
    assert tables == [([record], {})]
