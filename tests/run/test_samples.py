"""Images from a finished generator: without its data, by any drawer, and a classifier trained on them."""

from __future__ import annotations

import inspect
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from evenhand.cli import app, runs
from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.measure import judging
from evenhand.measure.features import Embedded, Extractor, from_module
from evenhand.measure.judging import Judge
from evenhand.methods.recognise.classifier import LongTailClassifier
from evenhand.report.page import render
from evenhand.report.reading import load_run
from evenhand.run import checkpoint, samples
from evenhand.run.measuring import measure, measure_by
from evenhand.run.opening import open_run
from evenhand.run.recipe import validate
from evenhand.run.samples import classifier_score, contact_sheet, draw, labelled_samples, sample_run
from evenhand.run.training import train
from evenhand.tasks.classify import CLASSIFY
from evenhand.tasks.generate import GENERATE
from helpers import seeded

pytestmark = pytest.mark.filterwarnings("ignore:drawn images of class", "ignore:one training image")

DATA = {"set": "shapes", "n_max": 12, "imbalance": 10, "val_per_class": 2, "augment": []}
RUN = {"steps": 1, "progress": False, "threads": 1}
SMALL = {"batch": 6, "ema_start": 1, "measure": {"judge_samples": 60, "samples": 40}}


def classifier(folder: Path, seed: int = 0, data: dict[str, Any] = DATA) -> Path:
    method = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 2}}
    run = {**RUN, "steps": 3, "seed": seed, "folder": str(folder)}
    return train(validate({"data": data, "method": method, "run": run}, "c"))


def generator(
    folder: Path, name: str, needs: dict[str, Path], data: dict[str, Any] = DATA, run: Any = RUN, **method: Any
) -> Path:
    net = {"name": "sndcgan" if name == "class-balancing-gan" else "sngan", "width": 2}
    tree = {
        "data": data, "method": {"name": name, "net": net, **SMALL, **method},
        "needs": {key: str(need) for key, need in needs.items()}, "run": {**run, "folder": str(folder)},
    }  # fmt: skip
    return train(validate(tree, "g"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("samples")


@pytest.fixture(scope="module")
def annotator(root: Path) -> Path:
    return classifier(root / "annotator")


@pytest.fixture(scope="module")
def gsr(root: Path, annotator: Path) -> Path:
    return generator(root / "gsr", "gsr-gan", {"annotator": annotator}, run={**RUN, "select": "val:fid"})


@pytest.fixture(scope="module")
def balancing(root: Path, annotator: Path) -> Path:
    other = classifier(root / "long-tailed", seed=7)
    return generator(root / "cb", "class-balancing-gan", {"annotator": annotator, "classifier": other})


class Painter:
    """Draws the label as brightness: all that sampling asks of a method."""

    task = GENERATE
    labelled = True

    def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
        assert labels is not None
        return labels.byte().view(-1, 1, 1, 1).expand(count, 1, 8, 8)


def test_any_drawer_draws(annotator: Path) -> None:
    assert (draw(Painter(), 3, 5) == 3).all()  # type: ignore[arg-type]
    with pytest.raises(UserError, match="draws no images"):
        draw(open_run(annotator).method, 0, 3)
    with pytest.raises(UserError, match="draws no images"):
        sample_run(annotator, count=1)


def test_a_run_is_sampled_to_a_folder(gsr: Path, tmp_path: Path) -> None:
    out = sample_run(gsr, "ring", 3, tmp_path / "out")
    assert sorted(p.name for p in out.iterdir()) == ["contact-sheet.png", "ring"]
    assert len(list((out / "ring").glob("*.png"))) == 3
    with pytest.raises(UserError, match=r"ring has 1 older images .* such as 00002\.png"):
        sample_run(gsr, "ring", 2, out)
    everything = sample_run(gsr, count=2)
    assert len(list(everything.glob("*/*.png"))) == 20
    with pytest.raises(UserError, match="did you mean 'ring'"):
        sample_run(gsr, "rng", 3)
    again = prepare_data(DataSettings(set=str(everything), size=32))  # images by class: a data set
    assert set(again.classes) == {p.name for p in everything.iterdir() if p.is_dir()}


def test_an_unconditional_generator_selects(balancing: Path) -> None:
    method: Any = open_run(balancing).method
    images = method.sample(64, chance=seeded())
    common = int(method.judge.label(images).bincount(minlength=10).argmax())
    found = draw(method, common, 5)
    assert len(found) == 5
    assert (method.judge.label(found) == common).all()


def test_contact_sheet() -> None:
    images = torch.stack([torch.full((1, 28, 28), value, dtype=torch.uint8) for value in (0, 100, 200)])
    sheet = contact_sheet(images, 2)
    assert sheet.size == (2 * 58 + 2, 2 * 58 + 2)
    assert [sheet.getpixel(at) for at in ((0, 0), (10, 10), (70, 10), (10, 70), (70, 70))] == [255, 0, 100, 200, 255]


@pytest.mark.parametrize("name", ["class-balancing-gan", "gsr-gan"])
def test_a_run_samples_without_its_data_and_needs(name: str, gsr: Path, tmp_path: Path) -> None:
    """Its folder is a model: networks it needed, classes and frame are in it."""
    photos = sample_run(gsr, count=6, out=tmp_path / "photos")
    data = {"set": str(photos), "size": 32, "augment": []}
    needs = {"annotator": classifier(tmp_path / "a", data=data)}
    if name == "class-balancing-gan":
        needs["classifier"] = classifier(tmp_path / "c", 1, data)
    made = generator(tmp_path / "g", name, needs, data)
    before = labelled_samples(open_run(made).method, 12)
    for gone in (photos, *needs.values()):
        shutil.rmtree(gone)
    moved = made.rename(tmp_path / "elsewhere")
    method = open_run(moved).method
    for was, found in zip(before, labelled_samples(method, 12), strict=True):
        assert torch.equal(was, found)
    if name == "gsr-gan":
        assert len(list((sample_run(moved, "ring", 2) / "ring").glob("*.png"))) == 2
    assert method.details().keys() == ({"frequency"} if len(needs) == 2 else {"sigma_gain", "sigma_bias"})
    with pytest.raises(UserError):
        measure(moved)


# a classifier trained on what was drawn


def test_the_score_is_kept_with_the_measurement(gsr: Path, annotator: Path) -> None:
    score = classifier_score(gsr, count=40, epochs=1)
    assert 0 <= score["min_recall"] <= score["mean_recall"] <= 1
    kept = json.loads((gsr / "measure.json").read_text())
    assert kept["classifier_score"] == score
    assert measure(gsr)["classifier_score"] == score  # the same checkpoint, measured again
    with pytest.raises(UserError, match="does not train a classifier"):
        classifier_score(gsr, recipe="gsr-fashion")
    with pytest.raises(UserError, match="draws no images"):
        classifier_score(annotator, count=40)
    text = (gsr / "measure.json").read_text()
    (gsr / "measure.json").unlink()
    with pytest.raises(UserError, match="not measured yet"):
        classifier_score(gsr, count=40)
    (gsr / "measure.json").write_text(text)


def test_it_learns_from_drawn_images_and_is_tested_on_the_real_test_split(
    gsr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, score = Mock(wraps=samples.fit), Mock(wraps=CLASSIFY.score)
    monkeypatch.setattr(samples, "fit", fit)
    monkeypatch.setattr(CLASSIFY, "score", score)
    classifier_score(gsr, count=25, epochs=1)
    run = open_run(gsr)
    real = run.data().streams
    method, streams, _ = fit.call_args.args
    assert streams.keys() == {"labelled"}
    images, labels = labelled_samples(run.method, 25)
    drawn = streams["labelled"]
    assert torch.equal(drawn.fetch(torch.arange(25)), images)
    assert torch.equal(drawn.labels, labels)
    assert method.data.counts == labels.bincount(minlength=10).tolist() != run.model.facts.counts
    score.assert_called_once()
    assert score.call_args.args[1].digest() == real["test"].digest() != real["labelled"].digest()


def test_drawn_images_have_the_labels_asked_for_or_the_annotators(gsr: Path, balancing: Path) -> None:
    """Never those of the classifier in the loop, which other runs do not have: their scores would not compare."""
    images, labels = labelled_samples(open_run(gsr).method, 20)
    assert images.shape == (20, 3, 32, 32)
    assert labels.bincount().tolist() == [2] * 10
    method: Any = open_run(balancing).method
    images, labels = labelled_samples(method, 200)
    annotator: Any = open_run(balancing / "needs" / "annotator").method
    assert torch.equal(labels, annotator.predict(images).argmax(1))
    own = method.terms["balance"].classify(images.float() / 127.5 - 1).argmax(1)
    assert not torch.equal(labels, own)


class Texts(HTMLParser):
    """What a page says, without its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_score_says_whose_labels_it_learned(gsr: Path, balancing: Path, annotator: Path) -> None:
    """A conditional generator's are those asked for, an unconditional one's the annotator's; in file, print, page."""
    digest = judging.annotated(open_run(annotator).method).digest()
    assert digest != judging.annotated(open_run(balancing / "needs" / "classifier").method).digest()
    cas = f"CAS: accuracy on the real test split of '{annotator}' trained on 30 drawn images; labels: "
    told = {gsr: {"labels": "asked for"}, balancing: {"labels": f"annotator {annotator}", "labels_digest": digest}}
    said = {gsr: f"{cas}asked for. ", balancing: f"{cas}annotator {annotator} (weights {digest[:8]}). "}
    page = Texts()
    for folder, expected in told.items():
        result = CliRunner().invoke(app, ["measure", str(folder), "--cas", str(annotator), "--cas-images", "30"])
        assert said[folder].strip().replace(" ", "") in re.sub(r"\s", "", result.output)
        score = json.loads((folder / "measure.json").read_text())["classifier_score"]
        assert {key: value for key, value in score.items() if key.startswith("labels")} == expected
    page.feed(render([load_run(gsr), load_run(balancing)]))
    for folder, expected_text in said.items():
        (line,) = [text for text in page.texts if text.startswith(f"{folder.name}. Features")]
        assert expected_text in line


# what is logged, and which checkpoint is kept


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [
        row for line in (folder / "log.jsonl").read_text().splitlines() if (row := json.loads(line))["kind"] == kind
    ]


def test_without_validation_a_generator_is_watched_all_the_same(root: Path, annotator: Path) -> None:
    """Spectral norms, frequencies and shares need no stream."""
    data = {**DATA, "val_per_class": 0}
    needs = {"annotator": annotator, "classifier": annotator}
    balance = {"trade_off": 0.5, "cycle": 2}
    folder = generator(root / "blind", "gsr-gan", needs, data, {**RUN, "steps": 4, "eval_every": 0.25}, balance=balance)
    assert not rows(folder, "val")
    traces = rows(folder, "traces")
    assert [row["step"] for row in traces] == [2, 4]
    method: Any = open_run(folder).method
    for key, value in method.traces().items():
        assert traces[-1][key] == pytest.approx(value), key
    images, _ = method.exhibit(60, "judge")
    found = method.judge.label(images).bincount(minlength=10).double() / 60
    kl = sum(float(q) * math.log(10 * float(q)) for q in found if q)
    assert traces[-1]["label_kl"] == pytest.approx(kl)
    shares = {name: traces[-1][f"share:{name}"] for name in method.data.classes}
    assert list(shares.values()) == pytest.approx(found.tolist())
    page = render([load_run(folder)])
    for said in ("label KL", "largest spectral norm", "Effective frequency", "Share of a class", "No validation split"):
        assert said in page
    assert "fid" not in traces[-1]


def test_with_validation_the_traces_stand_beside_the_scores(gsr: Path) -> None:
    assert not rows(gsr, "traces")
    (row,) = rows(gsr, "val")
    assert {"fid", "sigma_max", "label_kl", "share:disc", "sigma:disc"} <= row.keys()


def test_traces_of_any_method_are_logged_without_validation(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongTailClassifier, "traces", lambda _: {"radius": 2.5})
    folder = classifier(root / "traced", data={**DATA, "val_per_class": 0})
    assert [row["radius"] for row in rows(folder, "traces")] == [2.5] * 2


def test_the_lowest_fid_is_the_best(root: Path, annotator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([7.0, 3.0, 5.0, 9.0])
    monkeypatch.setattr(Judge, "scalars", lambda *_, **__: {"fid": next(found)})
    run = {**RUN, "steps": 8, "eval_every": 0.25, "select": "val:fid"}
    folder = generator(root / "chosen", "gsr-gan", {"annotator": annotator}, run=run)
    assert [row["fid"] for row in rows(folder, "val")] == [7.0, 3.0, 5.0, 9.0]
    assert checkpoint.load(folder / "best.pt")["step"] == rows(folder, "val")[1]["step"]
    assert open_run(folder).step == rows(folder, "val")[1]["step"]


def test_the_annotator_learns_from_every_class_alike_and_the_classifier_from_the_tail(tmp_path: Path) -> None:
    """Whoever judges must know the rare classes: it sees all images there are, not the 12 to 1 of the long tail."""
    text = '[method]\nname = "classifier"\nbatch = 16\nnet = { name = "small-cnn", width = 2 }\n[run]\nsteps = 1\n'
    (tmp_path / "judge.toml").write_text(text)
    needs = dict.fromkeys(("annotator", "classifier"), tmp_path / "judge.toml")
    folder = generator(tmp_path / "g", "class-balancing-gan", needs)
    told = {name: open_run(folder / "needs" / name).model.facts.counts for name in needs}
    assert len(set(told["annotator"])) == 1
    assert told["annotator"][0] > 12
    assert told["classifier"] == open_run(folder).model.facts.counts
    assert max(told["classifier"]) == 12
    assert min(told["classifier"]) == 1


def test_another_seed_draws_other_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones for the same seed; nothing is trained here."""

    class Noise(Painter):
        def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
            return torch.randint(256, (count, 1, 8, 8), generator=chance, dtype=torch.uint8)

    facts = SimpleNamespace(classes=("a", "b"))
    run = SimpleNamespace(method=Noise(), model=SimpleNamespace(facts=facts), folder=tmp_path)
    monkeypatch.setattr(samples, "open_run", lambda _: run)
    first, again, other = (
        (sample_run("run", "b", 2, tmp_path / name, seed=seed) / "b" / "00001.png").read_bytes()
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    assert first == again != other


def test_truncation_is_passed_on_or_refused(gsr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^--truncation is StyleGAN2's, a GroupSpectral has none: leave it out$"):
        sample_run(gsr, "ring", 1, tmp_path / "none", truncation=0.5)
    assert not (tmp_path / "none").exists()

    class Styled(Painter):
        truncation = 1.0

        def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
            return torch.full((count, 1, 8, 8), round(100 * self.truncation), dtype=torch.uint8)

    facts = SimpleNamespace(classes=("a",))
    run = SimpleNamespace(method=Styled(), model=SimpleNamespace(facts=facts), folder=tmp_path)
    monkeypatch.setattr(samples, "open_run", lambda _: run)
    for options, shade in (([], 100), (["--truncation", "0.7"], 70), (["--truncation", "0"], 0)):
        assert CliRunner().invoke(app, ["sample", "run", "--count", "1", *options]).exit_code == 0
        assert Image.open(tmp_path / "samples" / "a" / "00000.png").getpixel((0, 0)) == shade
    assert CliRunner().invoke(app, ["sample", "run", "--truncation", "2"]).exit_code == 2


def test_other_features_are_measured_beside_and_change_nothing_else(
    gsr: Path, annotator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blurred(**_: Any) -> Extractor:
        return from_module(torch.nn.Flatten(), "blurred pixels", size=2)

    before = {path: path.read_bytes() for path in gsr.iterdir() if path.is_file()}
    monkeypatch.setattr(judging, "mobilenet", blurred)
    found = measure_by(gsr, "mobilenet_v2")
    assert json.loads((gsr / "measure-mobilenet_v2.json").read_text())["fid"] == found["fid"]
    assert {path: path.read_bytes() for path in before} == before
    assert found["features"] == "blurred pixels"
    own = json.loads((gsr / "measure.json").read_text())
    assert found["fid"] != own["fid"]
    assert {key: found[key] for key in ("checkpoint", "step", "split", "class_shares", "real_count")} == {
        key: own[key] for key in ("checkpoint", "step", "split", "class_shares", "real_count")
    }
    assert get_args(runs.Features) == get_args(judging.Features)  # the command line offers them all
    again = measure_by(gsr, "annotator")
    assert again["fid"] == own["fid"]
    with pytest.raises(UserError, match="draws none: leave it out"):
        measure_by(annotator, "mobilenet_v2")


def test_an_extractor_of_ones_own_judges_a_finished_run(gsr: Path) -> None:
    """Such as a CLIP tower; what it calls classes are no Inception score."""

    def run(x: Tensor) -> Embedded:
        small = x.float().mean((2, 3)) / 255
        return Embedded(small, 5 * small)

    found = measure_by(gsr, Extractor("mean colours / CLIP", "none", torch.nn.Flatten(), run))
    assert (found["features"], found["dimensions"]) == ("mean colours / CLIP", 3)
    assert json.loads((gsr / "measure-mean-colours-CLIP.json").read_text())["fid"] == found["fid"]
    assert "inception_score" not in found
    assert "annotator_score" in found


def test_a_generator_without_an_annotator_is_judged_by_a_network_of_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "mobilenet", lambda **_: from_module(torch.nn.Flatten(), "pixels", size=2))
    measured = {**SMALL["measure"], "features": "mobilenet_v2"}
    folder = generator(tmp_path / "g", "gsr-gan", {}, measure=measured)
    assert json.loads((folder / "measure.json").read_text())["features"] == "pixels"
    with pytest.raises(UserError, match="has no annotator: choose other --features"):
        measure_by(folder, "annotator")


def test_a_sheet_has_a_frame_around_each_image_pixel_by_pixel() -> None:
    images = torch.arange(3 * 3 * 20 * 30, dtype=torch.int64).remainder(200).byte().view(3, 3, 20, 30)
    sheet = np.asarray(contact_sheet(images, 2, gap=3))
    expected = np.full((2 * 23 + 3, 2 * 33 + 3, 3), 255, np.uint8)
    for number, (top, left) in enumerate(((3, 3), (3, 36), (26, 3))):
        expected[top : top + 20, left : left + 30] = images[number].permute(1, 2, 0)
    assert np.array_equal(sheet, expected)
    assert contact_sheet(images[:1], 1).size == (34, 24)
    for side, zoom in ((28, 2), (29, 1), (18, 3), (100, 1)):
        assert contact_sheet(torch.zeros(1, 1, side, 7, dtype=torch.uint8), 1).size == (7 * zoom + 4, side * zoom + 4)
    enlarged = np.asarray(contact_sheet(torch.tensor([[[[1, 2], [3, 4]]]]).byte(), 1, gap=0))
    assert np.array_equal(enlarged, np.kron([[1, 2], [3, 4]], np.ones((28, 28))))


@pytest.mark.parametrize(("name", "rows"), [(None, 32), ("b", 17)])
def test_a_sheet_shows_sixteen_of_every_class_or_all_of_one(
    name: str | None, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = SimpleNamespace(classes=("a b", "b"))
    opened = SimpleNamespace(method="m", folder=tmp_path, model=SimpleNamespace(facts=facts))
    monkeypatch.setattr(samples, "open_run", lambda _: opened)
    drawn: list[Any] = []

    def draw(method: Any, label: int, count: int, *, seed: int) -> Tensor:
        drawn.append((method, label, count, seed))
        return torch.full((count, 1, 2, 2), 100 * label + seed, dtype=torch.uint8)

    monkeypatch.setattr(samples, "draw", draw)
    sheets: list[Any] = []
    inner = contact_sheet

    def sheet(images: Tensor, columns: int) -> Image.Image:
        sheets.append((len(images), columns))
        return inner(images, columns)

    monkeypatch.setattr(samples, "contact_sheet", sheet)
    assert sample_run(tmp_path, name, 17, seed=3) == tmp_path / "samples"
    assert drawn == [("m", label, 17, 3) for label in ((0, 1) if name is None else (1,))]
    assert sheets == [(rows, 16)]
    assert len(list((tmp_path / "samples" / "b").glob("*.png"))) == 17
    assert (tmp_path / "samples" / "a-b" / "00016.png").exists() == (name is None)
    with Image.open(tmp_path / "samples" / "b" / "00000.png") as image:
        assert (image.mode, image.getpixel((0, 0))) == ("L", 103)
    with pytest.raises(UserError, match=r"has 1 older images .* such as 00016\.png"):
        sample_run(tmp_path, name, 16)


class Rare:
    """An unconditional generator, of whose images one in a hundred is of class 1."""

    task, labelled = GENERATE, False

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.judge = SimpleNamespace(label=lambda images: images[:, 0])
        self.data = SimpleNamespace(classes=("often", "rare", "never"))

    def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
        assert chance is not None
        self.asked.append(count)
        return (torch.arange(count) % 100 == 0).long()[:, None]


def test_an_unconditional_generator_draws_until_it_has_enough_or_two_hundred_times_as_many() -> None:
    drawer: Any = Rare()
    assert draw(drawer, 1, 4).tolist() == [[1]] * 4
    assert drawer.asked == [256, 256]
    with pytest.raises(UserError, match="among 512 images the annotator found 0 of class 'never'; ask for fewer"):
        draw(drawer, 2, 2)
    assert len(draw(drawer, 0, 300)) == 300
    assert drawer.asked[-2:] == [300, 300]
    assert [inspect.signature(one).parameters["seed"].default for one in (draw, labelled_samples, sample_run)] == [
        0
    ] * 3
    assert inspect.signature(sample_run).parameters["count"].default == 64
    known = inspect.signature(classifier_score).parameters
    assert (known["count"].default, known["seed"].default, known["recipe"].default) == (10_000, 0, "annotator")
