"""Generators in the report: from folders in the schema of ``measure``, and one that is trained here."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from markupsafe import escape
from PIL import Image
from typer.testing import CliRunner

from evenhand import parallel
from evenhand.cli import app
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure.latents import write_plane
from evenhand.measure.sheet import write_sheet
from evenhand.report.cautions import judged_apart, troubles
from evenhand.report.gallery import load_sheet, pictures_section
from evenhand.report.generate import TRACED, _rarest, basis
from evenhand.report.page import render, write_report
from evenhand.report.reading import load_run
from evenhand.report.records import RunRecord, by_task, group_runs
from evenhand.report.tables import per_class_table, summary_table
from evenhand.report.terminal import print_tables
from evenhand.report.verdict import cautions, verdict
from evenhand.run.opening import open_run
from evenhand.run.recipe import validate
from evenhand.run.reproduce import _number
from evenhand.run.training import train
from evenhand.tasks.generate import GENERATE

CLASSES = ["cat", "dog", "<i>lynx"]
COUNTS = [1000, 100, 10]


def make_run(root: Path, name: str, *, seed: int = 0, strength: float = 0.0, fid: float = 10.0, **changes: Any) -> Path:
    """A run of three classes as ``train`` and ``measure`` leave it; ``changes`` overwrite parts of measure.json."""
    folder = root / name
    folder.mkdir(parents=True)
    by_class = [
        {"label": k, "value": fid * (k + 1), "real": 200, "fake": 150, "flag": "reference: 9 samples" * (k == 2)}
        for k in range(3)
    ]
    measure = {
        "task": "generate", "split": "test", "checkpoint": "last.pt", "step": 30, "select": "last", "classes": CLASSES,
        "train_counts": COUNTS, "groups_rule": "1/1/1, by training count", "features": "annotator",
        "dimensions": 64, "resize": "the classifier's own view", "reference": "test, 409 images", "real_count": 409,
        "fake_count": 1200, "fid": fid, "kid_subsets": 100, "kid_subset_size": 409, "kid": fid / 1000, "kid_std": 0.001,
        "k": 5, "precision": 0.5, "recall": 0.25, "density": 0.4, "coverage": 0.3, "manifold_real_count": 409,
        "manifold_fake_count": 1200, "annotator_score": 2.0, "label_kl": 0.125, "annotated_counts": [720, 420, 60],
        "class_fid": by_class, "class_fid_mean": 2 * fid, "class_fid_missing": 0, "class_fid_flagged": 1,
        "group_fid": {"head": fid, "mid": 2 * fid, "tail": 3 * fid}, "diversity": [0.9, 0.8, 0.7],
        "patterns": [0.9, 0.8, 0.6], "annotator_agreement": 0.5, "class_agreement": [0.8, 0.6, 0.1],
        "group_agreement": {"head": 0.8, "mid": 0.6, "tail": 0.1},
        "class_shares": [0.6, 0.35, 0.05], "group_shares": {"head": 0.6, "mid": 0.35, "tail": 0.05}, "samples": 1200,
        "groups": {"head": [0], "mid": [1], "tail": [2]}, "sigma_gain": [[1.0, 1.5, 2.5]], **changes,
    }  # fmt: skip
    log: list[dict[str, Any]] = [{"kind": "train", "step": s, "epoch": s / 9, "loss": 1.0} for s in (10, 20, 30)]
    for step in (10, 20, 30):
        row = {"fid": fid + 30 / step, "label_kl": 0.5, "diversity": 0.8, "diversity_min": 0.2, "collapsed": 1.0}
        traced = {
            "sigma_max": step / 2,
            "sigma:<i>lynx": step / 2,
            "diversity:<i>lynx": 5 / step,
            "patterns:<i>lynx": 0.5,
            "sigma:cat": 1.0,
        }
        log.append({"kind": "val", "step": step, "epoch": step / 9, **row, **traced})
    streams = {"labelled": {"classes": CLASSES, "counts": COUNTS, "digest": "feed02", "samples": 1110}}
    recipe = f'[method]\nname = "gsr-gan"\ngsr.strength = {strength}\noptim_g.lr = 1e-3\n[run]\nseed = {seed}\n'
    (folder / "recipe.toml").write_text(recipe)
    model = {"format": 2, "task": "generate", "facts": {"classes": CLASSES, "counts": COUNTS}}
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "measure.json").write_text(json.dumps(measure))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    (folder / "streams.json").write_text(json.dumps(streams))
    return folder


class Painter:
    """Draws the label as brightness: what a conditional GAN is to a sheet."""

    labelled = True

    def sample(self, count: int, labels: torch.Tensor | None = None, *, chance: torch.Generator) -> torch.Tensor:
        shades = torch.arange(count) % 3 if labels is None else labels
        return (100 + shades).byte().view(-1, 1, 1, 1).expand(count, 1, 8, 8)

    class judge:  # noqa: N801
        annotator = "one"

        @staticmethod
        def label(images: torch.Tensor) -> torch.Tensor:
            return (images[:, 0, 0, 0].long() - 100).clamp(max=1)  # finds no lynx


class Unconditional(Painter):
    labelled = False


@pytest.fixture
def stream() -> Stream:
    """Twelve cats, one dog, no lynx; brightness is the index."""
    images = torch.arange(13, dtype=torch.uint8).view(-1, 1, 1, 1).expand(13, 1, 8, 8)
    return Stream(Memory(images), torch.tensor([0] * 12 + [1]), tuple(CLASSES), "test")


def pixels(png: bytes) -> list[int]:
    """The brightness at the middle of each of the two rows of five 8 x 8 tiles."""
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.size == (40, 16)
        return [picture.getpixel((8 * x + 4, 8 * y + 4)) for y in range(2) for x in range(5)]  # type: ignore[misc]


def loaded(*folders: Path) -> list[RunRecord]:
    return [load_run(folder) for folder in folders]


def test_summary_has_generators_numbers_over_seeds(tmp_path: Path) -> None:
    scores = (10.0, 12.0, 11.5)
    records = loaded(*(make_run(tmp_path, f"gsr-{s}", seed=s, fid=f) for s, f in enumerate(scores)))
    table = summary_table(records)
    assert table.columns == (
        "run", "FID ↓", "KID × 1000 ↓", "precision ↑", "recall ↑", "density ↑", "coverage ↑", "label KL ↓",
        "agreement (%)", "head FID ↓", "mid FID ↓", "tail FID ↓", "repeats", "selected by",
    )  # fmt: skip
    row = dict(zip(table.columns, map(str, table.rows[0]), strict=True))
    assert row["FID ↓"] == f"{fmean(scores):.2f} ± {stdev(scores):.2f}"
    assert row["tail FID ↓"] == f"{3 * fmean(scores):.2f} ± {3 * stdev(scores):.2f}"
    assert row["recall ↑"] == "0.250 ± 0.000"
    assert row["repeats"] == "3 seeds"


def test_lower_fid_wins_and_higher_coverage(tmp_path: Path) -> None:
    runs = loaded(make_run(tmp_path, "a", fid=9), make_run(tmp_path, "b", strength=1, fid=11, coverage=0.6))
    best = {
        name: [row[i].best for row in summary_table(runs).rows] for i, name in enumerate(summary_table(runs).columns)
    }
    assert best["FID ↓"] == [True, False]
    assert best["coverage ↑"] == [False, True]
    said = verdict(group_runs(runs)).striptags()
    assert said.startswith(
        "Best FID: a (9.00, 1 seed), by annotator features against 409 real images, KID × 1000 9.00 and recall 0.250; "
        "tail FID 27.00 against 33.00 for b."
    )


def test_class_table_marks_what_cannot_be_trusted(tmp_path: Path) -> None:
    never = [{"label": k, "value": None, "real": 9, "fake": 0, "flag": "generated: 0 samples"} for k in range(3)]
    runs = loaded(make_run(tmp_path, "a"), make_run(tmp_path, "b", strength=1, class_fid=never))
    table = per_class_table(runs)
    named = ("FID ↓", "drawn (%)", "agreement (%)", "diversity ↑", "patterns ↑")
    assert table.columns[3:] == tuple(f"{run} {name}" for run in "ab" for name in named)
    assert [str(cell) for cell in table.rows[2]] == [
        "<i>lynx", "tail", "10", "30.00*", "5.0", "10.0", "0.70", "0.60", "undefined", "5.0", "10.0", "0.70", "0.60",
    ]  # fmt: skip
    assert "* too few images" in table.caption
    unasked = per_class_table(loaded(make_run(tmp_path, "c", class_agreement=None)))
    assert unasked.columns[3:] == ("c FID ↓", "c drawn (%)", "c diversity ↑", "c patterns ↑")


def test_terminal_says_what_scores_depend_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(loaded(make_run(tmp_path, "a")))
    said = " ".join(capsys.readouterr().out.split())
    for expected in ("annotator, 64 dimensions", "test, 409 images", "1,200 drawn", "the classifier's own view"):
        assert expected in said
    runs = loaded(make_run(tmp_path, "b"), make_run(tmp_path, "c", strength=1, fake_count=50))
    assert [line.split(". ")[0] for line in basis(group_runs(runs))] == ["b", "c"]
    assert "cannot be compared" in cautions(group_runs(runs))


def test_copies_are_told_below_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near = [{"ratio": 0.9, "near": share, "images": 1110.0} for share in (0.06, 0.5, 0.52)]
    runs = [make_run(tmp_path, "a", copying=near[0]), make_run(tmp_path, "none", strength=2)]
    runs += [make_run(tmp_path, f"b-{s}", seed=s, strength=1, copying=near[1 + s]) for s in range(2)]
    said = "Copies: a 6.0 %, b 51.0 ± 1.4 % of what is drawn is nearer to a training image than all but 5\u00a0%"
    print_tables(loaded(*runs))
    assert said in re.sub(r"[ \n]+", " ", capsys.readouterr().out)  # lines may be broken
    assert said in render(loaded(*runs))
    assert not any(line.startswith("Copies") for line in basis(group_runs(loaded(runs[1]))))


def test_collapse_is_named_by_class_and_seed(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "a-0", patterns=[0.9, 0.8, 0.3], class_shares=[0.7, 0.29, 0.01]),
        make_run(tmp_path, "a-1", seed=1, patterns=[0.9, 0.8, None]),
        make_run(tmp_path, "a-2", seed=2, patterns=[0.9, 0.8, 0.2]),
    ]
    (group,) = group_runs(loaded(*runs))
    alike, absent = troubles(group)
    assert "‘<i>lynx’ (0.25, 2 of 3 seeds)" in alike
    assert absent.endswith("hardly draws ‘<i>lynx’ (1.0\u00a0%, 1 of 3 seeds); even shares would be 33\u00a0%.")
    assert "&lt;i&gt;lynx" in cautions([group])
    for run in runs:
        (run / "recipe.toml").write_text((run / "recipe.toml").read_text() + "[method.measure]\nalarm = 0.0\n")
    (group,) = group_runs(loaded(*runs))
    assert not any("alike" in said for said in troubles(group))


def test_collapse_of_most_classes_is_named(tmp_path: Path) -> None:
    """Against its own real images, not against other classes that collapsed along."""
    (group,) = group_runs(loaded(make_run(tmp_path, "a", patterns=[0.3, 0.2, 0.25])))
    (alike,) = troubles(group)
    assert all(f"‘{name}’" in alike for name in CLASSES)


def test_a_spectral_norm_that_explodes_is_named(tmp_path: Path) -> None:
    runs = loaded(make_run(tmp_path, "a", sigma_gain=[[1.0, 1.5, 1.0], [0.5, 1.2, 9.0]]))
    (wild,) = troubles(group_runs(runs)[0])
    assert "‘<i>lynx’ (9.00)" in wild
    assert "cat" not in wild


def test_terminal_turns_the_summary(tmp_path: Path) -> None:
    table = summary_table(loaded(make_run(tmp_path, "a"), make_run(tmp_path, "b", strength=1))).turned()
    assert table.columns == ("run", "a", "b")
    assert [str(cell) for cell in table.rows[0]] == ["FID ↓", "10.00", "10.00"]
    assert [str(cell) for cell in table.rows[-1]] == ["selected by", "last", "last"]


def test_classifier_accuracy_score_is_shown(tmp_path: Path) -> None:
    score = {"recipe": "annotator", "drawn": 10_000, "seed": 0, "accuracy": 0.625, "min_recall": 0.25}
    records = loaded(make_run(tmp_path, "a", classifier_score=score), make_run(tmp_path, "b", strength=1))
    table = summary_table(records)
    at = table.columns.index("CAS (%)")
    assert [str(row[at]) for row in table.rows] == ["62.5", "not run"]
    assert "'annotator' trained on 10,000 drawn images" in basis(group_runs(records))[0]


def test_the_labels_of_a_score_are_named_for_all_seeds(tmp_path: Path) -> None:
    """Each may have an annotator of its own, and older files do not say."""
    score: dict[str, Any] = {"recipe": "annotator", "drawn": 9, "seed": 0, "accuracy": 0.6, "min_recall": 0.2}
    by = [{"labels": "annotator a", "labels_digest": f"{k}" * 16} for k in (1, 2)]
    runs = [make_run(tmp_path, f"cb-{s}", seed=s, classifier_score=score | by[s]) for s in range(2)]
    runs += [make_run(tmp_path, "cb-2", seed=2), make_run(tmp_path, "old", strength=1, classifier_score=score)]
    lack = score | {"labels": None, "labels_digest": None}
    runs += [make_run(tmp_path, "lack", strength=2, classifier_score=lack)]
    runs += [make_run(tmp_path, "gsr", strength=3, classifier_score=score | {"labels": "asked for"})]
    told = dict(line.split(". ", 1) for line in basis(group_runs(loaded(*runs))))
    said = {name: re.findall(r"9 drawn images; labels: ([^.]*)\.", text) for name, text in told.items()}
    assert said == {
        "cb": ["annotator a (weights 11111111, 22222222)"], "old, lack": ["not recorded"], "gsr": ["asked for"],
    }  # fmt: skip
    wrong = make_run(tmp_path, "wrong", classifier_score=score | {"labels": 3})
    with pytest.raises(UserError, match=r"measure\.json classifier_score\.labels: "):
        load_run(wrong)


def test_a_report_says_that_there_is_no_collapse_alarm(tmp_path: Path) -> None:
    def said(name: str, *lost: str, **changes: Any) -> str:
        folder = make_run(tmp_path, name, **changes)
        kept = {k: v for k, v in json.loads((folder / "measure.json").read_text()).items() if k not in lost}
        (folder / "measure.json").write_text(json.dumps(kept))
        (line,) = basis(group_runs(loaded(folder)))
        return line

    assert "alarm" not in said("a")
    assert "alarm" not in said("older", "patterns")
    assert "No collapse alarm: no class has enough images" in said("few", patterns=[None] * 3)
    assert "alarm" not in said("enough", patterns=[None, 0.9, None])
    unnamed = ("patterns", "class_fid", "label_kl", "class_shares", "diversity", "class_agreement")
    told = "No collapse alarm, and nothing of single classes: nobody names what is drawn (needs.annotator). "
    assert told in said("unnamed", *unnamed)
    assert told in render(loaded(tmp_path / "unnamed"))


def test_different_judges_are_said_once_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path, f"a-{s}", seed=s, features_digest=f"{s}" * 16) for s in range(2)]
    records = loaded(*runs)
    (said,) = judged_apart(group_runs(records))
    assert "00000000 a-0; 11111111 a-1" in said
    assert "needs.annotator" in cautions(group_runs(records))
    print_tables(records)
    assert "same network" in capsys.readouterr().out
    result = CliRunner().invoke(app, ["report", *map(str, runs)])
    assert sum("same network" in line for line in result.output.splitlines()) == 1


def test_judges_that_agree_or_do_not_say_are_not_warned_of(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"a-{s}", seed=s, features_digest="d" * 16) for s in range(2)]
    old = make_run(tmp_path, "b", strength=1)
    assert judged_apart(group_runs(loaded(*runs, old))) == []


def test_page_shows_shares_fids_curves_and_traces(tmp_path: Path, stream: Stream) -> None:
    runs = [make_run(tmp_path, name, strength=i, fid=10.0 + i) for i, name in enumerate(("sngan", "gsr"))]
    for run in runs:
        write_sheet(run / "sheet.png", Painter(), stream, COUNTS)
    text = write_report(runs, tmp_path / "report.html").read_text()
    for expected in (
        "Share of each class in what is drawn", "FID of each class", "Hollow: too few", "largest spectral norm",
        "Spectral norm of a class", "Diversity: spread", "Patterns: effective", "1,200 images drawn",
        "even: 33 %", "best FID",
    ):  # fmt: skip
        assert expected.lower() in text.lower(), expected
    assert "Confusions" not in text
    assert "Effective frequency" not in text
    assert "<i>lynx" not in text
    assert set(re.findall(r'<img class="pixels" width="(\d+)" height="(\d+)"', text)) == {("280", "112")}
    addresses = re.findall(r'src="([^"]*)"', text)
    assert len(addresses) == 9
    assert all(a.startswith("data:image/png;base64,") for a in addresses)
    assert pixels(base64.b64decode(addresses[1].partition(",")[2])) == [100] * 10
    assert text == write_report(runs, tmp_path / "again.html").read_text()


def test_the_classes_traced_are_the_tails_or_the_rarest_of_all(tmp_path: Path) -> None:
    (group,) = group_runs(loaded(make_run(tmp_path, "a")))
    assert _rarest(group) == ["<i>lynx"]
    many = {"classes": [f"c{k}" for k in range(12)], "train_counts": list(range(12)), "groups": {}, "class_fid": None}
    lists = ("patterns", "diversity", "class_agreement", "class_shares", "sigma_gain")
    (group,) = group_runs(loaded(make_run(tmp_path, "b", **many, **dict.fromkeys(lists))))
    assert _rarest(group) == [f"c{k}" for k in reversed(range(TRACED))]


def test_page_shows_the_styles_of_those_that_have_some(tmp_path: Path) -> None:
    plain, styled = make_run(tmp_path, "sngan"), make_run(tmp_path, "twins", strength=1, z_sensitivity=[0.9, 0.5, 0.04])
    assert "Styles of" not in render(loaded(plain))
    write_plane(styled / "latents.png", torch.randn(9, 4), torch.arange(9) % 3, ("a", "b", "c"))
    text = render(loaded(plain, styled))
    assert text.count("Styles of twins, seed 0: the mapping network") == 1
    rarest = json.loads((styled / "measure.json").read_text())["classes"][2]
    assert f"matters least to {escape(rarest)}: 0.04 of all" in text
    (picture,) = re.findall(r'alt="latents of twins, seed 0" src="data:image/png;base64,([^"]*)"', text)
    assert Image.open(io.BytesIO(base64.b64decode(picture))).size == (640, 480)
    (styled / "latents.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="measure the run again"):
        render(loaded(styled))


def test_styles_are_shown_without_the_shares_of_z_but_not_with_too_few(tmp_path: Path) -> None:
    older = make_run(tmp_path, "older")
    write_plane(older / "latents.png", torch.randn(9, 4), torch.arange(9) % 3, ("a", "b", "c"))
    text = render(loaded(older))
    assert "Styles of older" in text
    assert "matters least" not in text
    with pytest.raises(UserError, match="z_sensitivity has 2 entries, not 3"):
        loaded(make_run(tmp_path, "short", z_sensitivity=[0.9, 0.5]))


def test_mixed_reports_show_both(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "gan")
    other = make_run(tmp_path, "ce")
    (other / "recipe.toml").write_text('[method]\nname = "classifier"\n[run]\nseed = 0\n')
    measure = json.loads((other / "measure.json").read_text())
    kept = {key: measure[key] for key in ("split", "select", "classes", "train_counts", "groups")}
    scores = {"recall": [0.9, 0.6, 0.3], "mean_recall": 0.6, "group_recall": {"tail": 0.3}}
    (other / "measure.json").write_text(json.dumps({"task": "classify", **kept, **scores}))
    records = loaded(folder, other)
    assert [[r.name for r in runs] for runs in by_task(records).values()] == [["ce"], ["gan"]]
    assert verdict(group_runs(records)).striptags() == (
        "Mean recall of ce: 60.0 %, 1 seed; tail recall 30.0 %. FID of gan: 10.00, 1 seed, by annotator features "
        "against 409 real images, KID × 1000 10.00 and recall 0.250; tail FID 30.00."
    )
    text = render(records)
    for title in ("Classes", "Confusions", "Classes as drawn", "Pictures"):
        assert f"<h2>{title}</h2>" in text
    assert "cannot be compared" not in text


def test_unmeasured_generator_is_not_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "gan")
    for name in ("measure.json", "log.jsonl"):
        (run / name).unlink()
    text = render(loaded(run))
    assert "Nothing to compare yet: FID was not run." in text
    assert "Shares and FID per class: not run." in text
    assert "evenhand measure RUN writes sheet.png" in text


def test_every_process_draws_the_sheet_and_one_writes_it(
    tmp_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joint BatchNorm needs them all: one drawing alone would wait for ever."""
    painter, drawn = Painter(), []
    sample = painter.sample
    monkeypatch.setattr(painter, "sample", lambda *a, **k: drawn.append(a) or sample(*a, **k))
    monkeypatch.setattr(parallel, "is_writer", lambda: False)
    write_sheet(tmp_path / "sheet.png", painter, stream, [10, 1000, 100])
    assert drawn
    assert not list(tmp_path.iterdir())


def test_sheet_holds_real_and_drawn(tmp_path: Path, stream: Stream) -> None:
    write_sheet(tmp_path / "sheet.png", Painter(), stream, [10, 1000, 100])
    sheet = load_sheet(tmp_path)
    assert sheet is not None
    assert sheet.labels == [1, 2, 0]
    assert pixels(sheet.cut(0, 0)) == list(range(10))
    assert pixels(sheet.cut(1, 0)) == [12] + [255] * 9
    assert pixels(sheet.cut(2, 0)) == [255] * 10
    assert pixels(sheet.cut(2, 1)) == [102] * 10


def test_sheet_of_an_unconditional_generator_has_what_is_found(tmp_path: Path, stream: Stream) -> None:
    run = make_run(tmp_path, "gan")
    write_sheet(run / "sheet.png", Unconditional(), stream, COUNTS)
    sheet = load_sheet(run)
    assert sheet is not None
    assert sheet.drawn == [10, 10, 0]
    assert pictures_section(group_runs(loaded(run)), {}).count("none found") == 1


def test_a_sheet_of_no_class_is_not_some_of_the_classes(tmp_path: Path, stream: Stream) -> None:
    """Without an annotator there is one row, of any class."""
    run, painter = make_run(tmp_path, "gan"), Unconditional()
    painter.judge = SimpleNamespace(annotator=None)  # type: ignore[attr-defined]
    write_sheet(run / "sheet.png", painter, stream, COUNTS)
    section = str(pictures_section(group_runs(loaded(run)), {}))
    assert "any class" in section
    assert "none picked; click" in section


def test_sheets_stay_small(tmp_path: Path) -> None:
    counts = list(range(300, 0, -1))
    images = torch.zeros(300, 3, 128, 128, dtype=torch.uint8)

    class Large(Painter):
        def sample(self, count: int, labels: Any = None, **_: Any) -> torch.Tensor:
            return torch.zeros(count, 3, 128, 128, dtype=torch.uint8)

    write_sheet(tmp_path / "sheet.png", Large(), Stream(Memory(images), torch.arange(300), ("x",) * 300), counts)
    sheet = load_sheet(tmp_path)
    assert sheet is not None
    assert (sheet.labels[0], sheet.labels[-1], len(sheet.labels), sheet.tile) == (0, 299, 12, 64)


@pytest.mark.parametrize("key", ["real_count", "fake_count", "kid_subset_size", "class_fid", "copying"])
def test_numbers_of_the_wrong_type_are_one_line(tmp_path: Path, key: str) -> None:
    run = make_run(tmp_path, "gan")
    table = json.loads((run / "measure.json").read_text())
    (run / "measure.json").write_text(json.dumps({**table, key: "x"}))
    with pytest.raises(UserError, match=rf"measure\.json {key}: ") as caught:
        load_run(run)
    assert len(str(caught.value).splitlines()) == 1


def test_damaged_sheet_is_named(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "sheet.png")
    with pytest.raises(UserError, match=r"sheet\.png"):
        load_sheet(tmp_path)


def test_expected_numbers_of_a_generator(tmp_path: Path) -> None:
    measured = json.loads((make_run(tmp_path, "gan") / "measure.json").read_text())
    names = ("fid", "tail", "label_kl", "recall", "tail_agreement")
    assert [_number(measured, name) for name in names] == [10.0, 30.0, 0.125, 0.25, 0.1]
    with pytest.raises(UserError, match="did you mean 'label_kl'"):
        _number(measured, "labl_kl")


@pytest.mark.filterwarnings("ignore:drawn images of class")
def test_a_trained_generator_is_reported(tmp_path: Path) -> None:
    """The fabricated folders above have the schema of real ones."""
    data = {"set": "shapes", "n_max": 12, "imbalance": 10, "val_per_class": 2, "augment": []}
    run = {"steps": 1, "progress": False, "threads": 1}
    net = {"name": "small-cnn", "width": 2}
    tree: dict[str, Any] = {"data": data, "method": {"name": "classifier", "batch": 16, "net": net}}
    judge = train(validate({**tree, "run": {**run, "folder": str(tmp_path / "a")}}, "a"))
    method = {"name": "gsr-gan", "net": {"name": "sngan", "width": 2}, "batch": 4,
              "measure": {"judge_samples": 20, "samples": 40}}  # fmt: skip
    tree = {"data": data, "method": method, "needs": {"annotator": str(judge)}}
    folder = train(validate({**tree, "run": {**run, "folder": str(tmp_path / "g")}}, "g"))
    opened = open_run(folder)
    whole = opened.data()
    write_sheet(folder / "sheet.png", opened.method, whole.streams["test"], whole.counts)
    record, made = load_run(folder), load_run(make_run(tmp_path, "made"))
    assert record.measure is not None
    assert made.measure is not None
    assert made.measure.keys() - record.measure.keys() == set()
    text = render([record, load_run(judge)])
    assert text.count("data:image/png;base64,") >= 20
    said = CliRunner().invoke(app, ["measure", str(folder), "--cas", str(judge), "--cas-images", "30"])
    assert said.exit_code == 0
    assert "CAS" in said.output
    assert "CAS" in render([load_run(folder)])
    assert f"{record.measure['fid']:.2f}" in text
    drawn = CliRunner().invoke(app, ["sample", str(folder), "--class", "ring", "--count", "2"])
    assert drawn.exit_code == 0, drawn.output
    assert len(list((folder / "samples" / "ring").glob("*.png"))) == 2
    measured = CliRunner().invoke(app, ["measure", str(folder), "--split", "val"])
    assert measured.exit_code == 0, measured.output
    assert "tail FID" in measured.output
    assert "20 images; 40 drawn" in " ".join(measured.output.split())


class Cells(HTMLParser):
    """The page's tables, as rows of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tables[-1][-1][-1] += str(data).replace("\xa0", " ").strip()


def test_every_class_has_its_own_numbers_on_the_page(tmp_path: Path) -> None:
    """Classes in an order that is not that of their counts: a number under the wrong name shows."""
    names, counts = ["lynx", "cat", "dog"], [10, 1000, 100]
    fids, shares = [70.0, 20.0, 30.0], [0.05, 0.15, 0.8]
    run = make_run(
        tmp_path, "gsr", classes=names, train_counts=counts, class_shares=shares, diversity=[0.31, 0.32, 0.33],
        class_agreement=[0.2, 0.9, None],
        patterns=[0.91, 0.92, 0.93], groups={"head": [1], "mid": [2], "tail": [0]},
        class_fid=[{"label": k, "value": v, "real": 9, "fake": 9, "flag": ""} for k, v in enumerate(fids)],
        sigma_gain=[[9.0, 1.0, 1.5]],
    )  # fmt: skip
    streams = {"labelled": {"classes": names, "counts": counts, "digest": "feed02", "samples": 1110}}
    (run / "streams.json").write_text(json.dumps(streams))
    page = render(loaded(run))
    read = Cells()
    read.feed(page)
    (table,) = (t for t in read.tables if t[0][0] == "class")
    assert table[0] == ["class", "group", "training samples", "gsr FID ↓", "gsr drawn (%)", "gsr agreement (%)",
                        "gsr diversity ↑", "gsr patterns ↑"]  # fmt: skip
    assert table[1:] == [
        ["cat", "head", "1,000", "20.00", "15.0", "90.0", "0.32", "0.92"],
        ["dog", "mid", "100", "30.00", "80.0", "undefined", "0.33", "0.93"],
        ["lynx", "tail", "10", "70.00", "5.0", "20.0", "0.31", "0.91"],
    ]
    tips = re.findall(r"<title>([^<]*)</title>", page)
    for name, count, value, share in zip(names, counts, fids, shares, strict=True):
        assert f"{name}: {count:,} training samples" in tips
        assert any(tip.startswith(f"{name}, gsr: FID {value:.2f}") for tip in tips)
        assert any(tip.startswith(f"{name}, gsr: {100 * share:.1f} % of what is drawn") for tip in tips)
    (wild,) = troubles(group_runs(loaded(run))[0])
    assert "‘lynx’ (9.00)" in wild


def test_pictures_stand_beside_their_class(tmp_path: Path, stream: Stream) -> None:
    """The sheet's rows go by count, its labels by index."""
    run = make_run(tmp_path, "gan", train_counts=[10, 1000, 100], classes=["cat", "dog", "lynx"])
    write_sheet(run / "sheet.png", Painter(), stream, [10, 1000, 100])
    section = str(pictures_section(group_runs(loaded(run)), {}))
    shown = dict(re.findall(r'<img[^>]*alt="(\w+) as drawn by gan"[^>]*src="data:image/png;base64,([^"]*)"', section))
    assert list(shown) == ["dog", "lynx", "cat"]
    shades = {name: set(pixels(base64.b64decode(data))) for name, data in shown.items()}
    assert shades == {"cat": {100}, "dog": {101}, "lynx": {102}}
    text = " ".join(re.sub("<[^>]*>", " ", section).split())
    assert re.search(r"dog 1,000 training images.*lynx 100 training images.*cat 10 training images", text)


def test_an_older_file_calls_the_annotators_score_inceptions(tmp_path: Path) -> None:
    old = {"inception_score": 3.25, "annotator_score": None}
    runs = [make_run(tmp_path, name, strength=i) for i, name in enumerate(("old", "words", "new"))]
    for run, changes in zip(
        runs,
        (old, {"inception_score": "needs its weights"}, {"inception_score": 7.5, "features": "Inception-v3 pool3"}),
        strict=True,
    ):
        measure = json.loads((run / "measure.json").read_text()) | changes
        kept = {key: value for key, value in measure.items() if value is not None}
        (run / "measure.json").write_text(json.dumps(kept))
    records = loaded(*runs)
    inception, annotator = (GENERATE.metric(key) for key in ("inception_score", "annotator_score"))
    assert [r.value(inception) for r in records] == [None, None, 7.5]
    assert [r.value(annotator) for r in records] == [3.25, 2.0, 2.0]
    said = basis(group_runs(records[:1]))[0]
    assert "Inception score" not in said
    assert "Inception score: of the Inception network's own classes" in basis(group_runs(records[2:]))[0]


def test_small_images_are_enlarged_and_more_on_request(tmp_path: Path, stream: Stream) -> None:
    run = make_run(tmp_path, "gan")
    write_sheet(run / "sheet.png", Painter(), stream, COUNTS)
    section = str(pictures_section(group_runs(loaded(run)), {}))
    (size,) = set(re.findall(r'width="(\d+)" height="(\d+)"', section))
    assert (int(size[0]) / 5, int(size[1]) / 2) == (88, 88)  # of 8 pixels: the row's room allows eleven times
    assert section.count('<input type="checkbox"') == section.count("<img ") == 6
