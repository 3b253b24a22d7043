"""A run in use: ``evenhand.load``."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import evenhand
from evenhand.cli.predicting import SAMPLES, SCENES
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.nets import build_net
from evenhand.run import predicting
from evenhand.run.predicting import Locator, Model
from evenhand.run.recipe import validate
from evenhand.run.training import train
from evenhand.tasks.classify import CLASSIFY
from helpers import save_picture, toy_data, tree

NAMES = [f"{split}/{k}/{i}.png" for split in ("train", "test") for k in ("ant", "bee", "cat") for i in range(6)]


def trained(folder: Path, data: dict[str, Any], **method: Any) -> Path:
    table = {"name": "classifier", "batch": 8, "net": {"name": "small-cnn", "width": 2}, **method}
    run = {"folder": str(folder), "steps": 3, "progress": False}
    return train(validate({"data": data, "method": table, "run": run}, "test"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("photos"), *NAMES, side=20)


@pytest.fixture(scope="module")
def model(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Its folder moved after training, its photographs elsewhere, so that only the folder can serve it."""
    place = tmp_path_factory.mktemp("model")
    copied = shutil.copytree(photos, place / "photos")
    folder = trained(place / "run", {"set": str(copied)})
    shutil.rmtree(copied)
    return evenhand.load(shutil.move(folder, place / "moved"))


def test_paths_folders_and_arrays_are_told_alike(model: Any, photos: Path) -> None:
    paths = sorted(photos.rglob("*.png"))
    rows = model.predict(paths)
    assert [row.name for row in rows] == [str(path) for path in paths]
    assert {row.label for row in rows} <= set(model.classes) == {"ant", "bee", "cat"}
    assert all(1 / 3 <= row.confidence <= 1 for row in rows)
    name, label, confidence = rows[0]
    assert (name, label, confidence) == rows[0]
    inside = model.predict(photos)
    assert sorted(row.name for row in inside) == sorted(p.relative_to(photos).as_posix() for p in paths)
    by_name = {str(photos / row.name): row[1:] for row in inside}
    assert [by_name[row.name] for row in rows] == [row[1:] for row in rows]
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    kinds = (pixels, torch.from_numpy(pixels).permute(0, 3, 1, 2), [*pixels], [Image.open(path) for path in paths])
    for given in kinds:
        assert [row[1:] for row in model.predict(given)] == [pytest.approx(row[1:]) for row in rows]
    assert [row[1:] for row in model.predict(pixels[0])] == [pytest.approx(rows[0][1:])]  # one picture, not a stack
    assert model.predict(str(paths[0]))[0] == rows[0]
    assert model.predict([]) == []


def test_predictions_are_those_of_the_run_whatever_the_batch(model: Any, photos: Path) -> None:
    raw = model.source(photos).fetch(torch.arange(36))
    expected = model.method.predict(raw).softmax(1)
    torch.testing.assert_close(model.probabilities(photos, batch=5), expected)
    assert model.predict(photos)[7].confidence == pytest.approx(float(expected[7].max()))


def test_what_cannot_be_read_is_told_in_words_of_python(model: Any, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(next(photos.rglob("*.png")).read_bytes()[:60])
    with pytest.raises(UserError, match=r"bad\.png") as caught:
        model.predict([tmp_path / "bad.png"])
    assert "skip_unreadable" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (5, "cannot predict of 5: give paths, arrays"),
        (None, "cannot predict of None"),
        ([1, 2], "cannot predict of 1"),
        (np.zeros((28, 28), np.uint8), r"inputs are \(28, 28\); this model takes images"),
    ],
)
def test_what_is_no_input_is_named(model: Any, given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        model.predict(given)


def test_other_sizes_and_modes_are_framed_as_in_training(model: Any, tmp_path: Path) -> None:
    wide = save_picture(tmp_path / "wide.png", 90, 40)
    Image.open(wide).convert("LA").save(tmp_path / "grey.png")
    assert model.source([wide, tmp_path / "grey.png"]).fetch(torch.arange(2)).shape == (2, 3, 20, 20)
    assert len(model.predict([wide, tmp_path / "grey.png"])) == 2
    assert len(model.predict(np.zeros((2, 50, 50), np.uint8))) == 2


def test_texts(tmp_path: Path) -> None:
    net = {"name": "text-mean", "width": 8}
    folder = trained(tmp_path / "run", {"set": "phrases", "text": {"length": 8}}, net=net)
    rows = evenhand.load(folder).predict(["The lynx and the otter.", "Thunder and hail"])
    assert [row.name for row in rows] == ["0", "1"]
    assert evenhand.load(folder).predict("the flute")[0].label in evenhand.load(folder).classes


def test_vectors(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    np.savez(tmp_path / "v.npz", x=x, y=np.arange(40) % 2)
    folder = trained(
        tmp_path / "run", {"set": str(tmp_path / "v.npz"), "groups": "1/1"}, net={"name": "mlp", "width": 4}
    )
    assert len(evenhand.load(folder).predict(x[:3])) == 3
    with pytest.raises(UserError, match=r"inputs are \(3, 4\); this model takes vectors \(N, 5\)"):
        evenhand.load(folder).predict(x[:3, :4])


def test_a_model_on_frozen_features_predicts_from_images(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(build_net("small-cnn", num_classes=2).state_dict(), tmp_path / "net.pt")
    for i, path in enumerate(sorted((tmp_path / "p" / name) for name in NAMES)):
        save_picture(path, 30 + i, 24, seed=i)
    photos = tmp_path / "p"
    data = {"set": str(photos), "embed": f"small-cnn:{tmp_path / 'net.pt'}", "embed_size": 32}
    model = evenhand.load(trained(tmp_path / "run", data, net={"name": "mlp", "width": 4}))
    test = model.run.data().streams["test"]
    rows = model.predict(photos / "test")
    expected = model.method.predict(test.fetch(torch.arange(len(test)))).softmax(1).max(1).values
    assert sorted(row.confidence for row in rows) == pytest.approx(sorted(expected.tolist()), abs=1e-4)


def test_what_cannot_be_read_is_one_line(model: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cannot read image '.*bad\.png'"):
        model.predict([tmp_path / "bad.png"])
    with pytest.raises(UserError, match="does not exist"):
        model.predict(["nowhere.jpg"])
    with pytest.raises(UserError, match="is not a run"):
        evenhand.load(tmp_path)


def test_importing_evenhand_brings_no_torch() -> None:
    code = "import evenhand, sys; print('torch' in sys.modules, evenhand.__version__)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("False")


@pytest.mark.parametrize(("frame", "side"), [("auto", 24), ("crop", 100), ("squash", 24)])
def test_prediction_frames_as_training_did(tmp_path: Path, frame: str, side: int) -> None:
    """Tall pictures: files, arrays and PIL images are cut as the training stream was, whatever the folder says."""
    chance = np.random.default_rng(0)
    for k in ("ant", "bee"):
        (tmp_path / "tall" / k).mkdir(parents=True)
        for i in range(4):
            rough = Image.fromarray(chance.integers(0, 256, (12, 5, 3), dtype=np.uint8))
            rough.resize((50, 120)).save(tmp_path / "tall" / k / f"{i}.png")
    folder = trained(tmp_path / "run", {"set": str(tmp_path / "tall"), "frame": frame, "size": side})
    model = evenhand.load(folder)
    assert model.facts.frame == ("pad" if frame == "auto" else frame)
    paths = sorted((tmp_path / "tall").rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    shown = [model.source(x).fetch(torch.arange(8)) for x in (paths, pixels, [Image.open(path) for path in paths])]
    assert torch.equal(shown[0], shown[1])
    assert torch.equal(shown[0], shown[2])
    stream = model.run.data().labelled
    names = [path.relative_to(tmp_path / "tall").as_posix() for path in paths]
    rows = [names.index(stream.samples.name(row)) for row in range(len(stream))]
    assert torch.equal(stream.fetch(torch.arange(len(stream))), shown[0][rows])


def test_defaults_are_those_of_the_command() -> None:
    def default(function: Any, key: str) -> Any:
        return inspect.signature(function).parameters[key].default

    assert (
        [default(one, "batch") for one in (Model.predict, Model.probabilities, Model.stream)]
        == [SAMPLES] * 3
        == [64] * 3
    )
    assert [default(one, "batch") for one in (Locator.predict, Locator.stream)] == [SCENES] * 2 == [8] * 2
    assert [default(one, "min_score") for one in (Locator.predict, Locator.stream)] == [0.5] * 2
    assert default(Model.stream, "top") == 2


class Finding:
    """Finds in each image as many objects as its first pixel says, the surest first."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.data = toy_data("ab", kind="scenes")

    def detect(self, images: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        self.sizes.append(len(images))
        counts = [int(image[0, 0, 0]) for image in images]
        return [(torch.ones(n, 4), 0.25 * torch.arange(n, 0, -1), torch.arange(n) % 2) for n in counts]


def test_objects_are_told_from_their_score_on_and_batch_by_batch() -> None:
    method = Finding()
    run: Any = SimpleNamespace(
        method=method, model=SimpleNamespace(facts=method.data.facts), recipe=SimpleNamespace(data=DataSettings())
    )
    locator = Locator(run)
    scenes = np.stack([np.full((5, 6), n, np.uint8) for n in (3, 0, 2)])
    found = locator.predict(scenes, batch=2)
    assert method.sizes == [2, 1]
    assert [(one.name, one.labels, one.scores.tolist()) for one in found] == [
        ("image 0", ("a", "b"), [0.75, 0.5]), ("image 1", (), []), ("image 2", ("a",), [0.5]),
    ]  # fmt: skip
    assert [len(one.boxes) for one in found] == [2, 0, 1]
    assert [len(one.labels) for one in locator.predict(scenes, min_score=0.6)] == [1, 0, 0]
    assert [len(one.labels) for one in locator.stream(scenes, min_score=0.0, batch=1)] == [3, 0, 2]
    assert method.sizes == [2, 1, 3, 1, 1, 1]


def test_a_model_is_loaded_onto_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    def opened(folder: str, *, device: str | None = None) -> Any:
        heard.append((folder, device))
        return SimpleNamespace(method=SimpleNamespace(task=SimpleNamespace(boxes=len(heard) == 1)))

    monkeypatch.setattr(predicting, "open_run", opened)
    monkeypatch.setattr(predicting, "Locator", lambda _: "locator")
    monkeypatch.setattr(predicting, "Model", lambda _: "model")
    assert [evenhand.load("a", device="cuda"), evenhand.load("b")] == ["locator", "model"]
    assert heard == [("a", "cuda"), ("b", None)]


def test_what_stands_behind_confidences_is_said(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(
        method=SimpleNamespace(task=CLASSIFY, data=toy_data("ab")), folder=tmp_path,
        model=SimpleNamespace(facts=toy_data("ab").facts, temperature=1.5), recipe=SimpleNamespace(data=DataSettings()),
    )  # fmt: skip
    assert Model(run).calibration == "confidences are calibrated: temperature 1.5, fitted on validation"
    run.model.temperature = None
    assert "the run had no validation split" in Model(run).calibration
    (tmp_path / "streams.json").write_text(json.dumps({"val": {"samples": 1, "digest": ""}}))
    assert f"evenhand measure {tmp_path} fits them" in Model(run).calibration


def test_a_temperature_divides_the_logits(model: Any, photos: Path) -> None:
    raw = model.source(photos).fetch(torch.arange(4))
    logits, paths = model.method.predict(raw), [photos / model.source(photos).name(row) for row in range(4)]
    before = model.temperature
    try:
        for value, divisor in ((None, 1.0), (4.0, 4.0)):
            model.temperature = value
            torch.testing.assert_close(model.probabilities(paths), (logits / divisor).softmax(1))
    finally:
        model.temperature = before
    assert model.probabilities([]).shape == (0, 3)
    assert [len(row.labels) for row in model.stream(paths)] == [2] * 4
    assert [len(row.labels) for row in model.stream(paths, top=9)] == [3] * 4
