"""Runs as files for other programs: what they compute is what the run computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor

import evenhand
from evenhand.errors import UserError
from evenhand.measure.frozen import seen_by_backbone
from evenhand.measure.intervals import wilson
from evenhand.nets import build_net
from evenhand.run import exporting
from evenhand.run.exporting import export, graph_of
from evenhand.run.folder import keep_temperature
from evenhand.run.recipe import validate
from evenhand.run.training import train
from helpers import save_picture

TOLERANCE = 1e-5  # of probabilities, said in docs/using-a-model.md
CLASSES = ("ant", "bee", "cat")


def trained(folder: Path, data: dict[str, Any], **method: Any) -> Path:
    table = {"name": "classifier", "batch": 8, "net": {"name": "small-cnn", "width": 4}, **method}
    run = {"folder": str(folder), "steps": 3, "progress": False, "threads": 1}
    made = train(validate({"data": data, "method": table, "run": run}, "test"))
    keep_temperature(made, 0.37)  # so that one who forgets it is found out
    return made


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that are not square, so that framing them wrongly shows."""
    root = tmp_path_factory.mktemp("photos")
    for seed, name in enumerate(CLASSES):
        for at in range(6):
            save_picture(root / "train" / name / f"{at}.png", 36 + at % 3, 32, seed=3 * at + seed)
            save_picture(root / "test" / name / f"{at}.png", 32, 36 + at % 3, seed=2 * at + seed)
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("export") / "run", {"set": str(photos), "size": 24, "frame": "crop"})


@pytest.fixture(scope="module")
def frozen(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("frozen")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(build_net("small-cnn", num_classes=2).state_dict(), place / "net.pt")
    data = {"set": str(photos), "size": 24, "embed": f"small-cnn:{place / 'net.pt'}", "embed_size": 40}
    folder = trained(place / "run", data, net={"name": "mlp", "width": 4})
    (place / "net.pt").unlink()  # the run has its own
    return folder


def images(run: Path, photos: Path) -> tuple[Tensor, Tensor]:
    """Framed images, and what the run says of them."""
    model = evenhand.load(run)
    source = model.source(photos / "test")
    return source.fetch(torch.arange(len(source))), model.probabilities(photos / "test")  # type: ignore[return-value]


def test_onnx_takes_framed_images_to_calibrated_probabilities(run: Path, photos: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'export'")
    pytest.importorskip("onnxscript", reason="needs the extra 'export'")
    path = export(run, out=tmp_path)
    session = onnxruntime.InferenceSession(path)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(CLASSES)
    assert (about["mode"], about["side"], about["resize"]) == ("RGB", "24", "24")
    assert about["preprocessing"].startswith("upright by EXIF, transparency on white, ")
    found = []
    files = sorted((photos / "test").rglob("*.png"))
    for file in files:  # one by one, framed by PIL alone
        image = Image.open(file).convert(about["mode"])
        side, pixel = int(about["side"]), min(image.size) / int(about["resize"])
        left, top = (round((length / pixel - side) / 2) * pixel for length in image.size)
        image = image.resize((side, side), Image.BILINEAR, box=(left, top, left + side * pixel, top + side * pixel))
        found.append(session.run(None, {"images": np.asarray(image).transpose(2, 0, 1)[None]})[0][0])
    expected = evenhand.load(run).probabilities(files)
    np.testing.assert_allclose(np.stack(found), expected.numpy(), atol=TOLERANCE, rtol=0)
    raw, _ = images(run, photos)
    assert session.run(None, {"images": raw.numpy()})[0].shape == (18, 3)  # any batch
    plain = evenhand.load(run).method.predict(raw).softmax(1)
    assert (plain - images(run, photos)[1]).abs().max() > 0.01  # what a forgotten temperature would give


@pytest.mark.parametrize("kind", ["cosine", "transformer", "frozen"])
def test_onnx_of_other_networks(kind: str, frozen: Path, photos: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'export'")
    pytest.importorskip("onnxscript", reason="needs the extra 'export'")
    method = {
        "cosine": {"net": {"name": "resnet8"}, "loss": "ldam"},
        "transformer": {"net": {"name": "vit-tiny", "depth": 1, "width": 16, "heads": 2, "size": 24}},
    }
    known = kind == "frozen"
    run = frozen if known else trained(tmp_path / "run", {"set": str(photos), "size": 24}, **method[kind])
    raw, expected = images(run, photos)
    found = onnxruntime.InferenceSession(export(run, out=tmp_path)).run(None, {"images": raw.numpy()})[0]
    np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE, rtol=0)


def test_torch_export_has_any_batch(run: Path, photos: Path, tmp_path: Path) -> None:
    path = export(run, format="torch", out=tmp_path)
    told = {"about.json": ""}
    program = torch.export.load(str(path), extra_files=told)
    raw, expected = images(run, photos)
    torch.testing.assert_close(program.module()(raw), expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(program.module()(raw[:1]), expected[:1], atol=TOLERANCE, rtol=0)
    assert json.loads(json.loads(told["about.json"])["classes"]) == list(CLASSES)


@pytest.mark.parametrize(
    "method",
    [
        {"net": {"name": "resnet8"}, "loss": "ldam"},
        {"net": {"name": "mobilenet_v2", "width": 8}},
        {"net": {"name": "vit-tiny", "depth": 1, "width": 16, "heads": 2, "size": 24}},
        {"net": {"name": "resnet18-folded", "width": 8}},
        {"net": {"name": "resnet50-caffe", "width": 8}, "optim": {"ema": 0.9}},
    ],
    ids=lambda m: m["net"]["name"],
)
def test_the_graph_of_every_kind_of_net(method: dict[str, Any], photos: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", {"set": str(photos), "size": 24}, **method)
    raw = images(run, photos)[0]
    keep_temperature(run, float(evenhand.load(run).method.predict(raw).std()))  # else untrained nets say only 0 and 1
    raw, expected = images(run, photos)
    graph, example = graph_of(evenhand.load(run))
    assert example.shape == (2, 3, 24, 24)
    torch.testing.assert_close(graph(raw), expected, atol=TOLERANCE, rtol=0)
    assert expected.std(0).max() > 1e-3  # else any graph would do


def test_frozen_network_and_head_are_one_graph(frozen: Path, photos: Path, tmp_path: Path) -> None:
    raw, expected = images(frozen, photos)
    path = export(frozen, format="torch", out=tmp_path)
    torch.testing.assert_close(torch.export.load(str(path)).module()(raw), expected, atol=TOLERANCE, rtol=0)
    card = (tmp_path / "MODEL-CARD.md").read_text()
    assert "net.pt, a file of the user's, licence not known" in card
    with safe_open(export(frozen, format="safetensors", out=tmp_path), "pt") as file:
        assert {name.partition(".")[0] for name in file.keys()} == {"backbone", "head", "normalise"}  # noqa: SIM118
    card = (tmp_path / "MODEL-CARD.md").read_text()
    assert "- file: `model.pt2`\n- file: `model.safetensors`, the weights alone\n" in card
    assert "- output: probabilities" in card


def test_safetensors_hold_the_networks_own_names(run: Path, tmp_path: Path) -> None:
    path = export(run, format="safetensors", out=tmp_path)
    state = evenhand.load(run).method.network().state_dict()  # type: ignore[union-attr]
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {*state, "normalise.mean", "normalise.std"}
        for name, value in state.items():
            assert torch.equal(file.get_tensor(name), value)
        assert json.loads(file.metadata()["classes"]) == list(CLASSES)


@pytest.mark.parametrize("content", ["junk", "[1]"])
def test_a_damaged_measurement_is_one_line(run: Path, tmp_path: Path, content: str) -> None:
    damaged = Path(shutil.copytree(run, tmp_path / "damaged"))
    (damaged / "measure.json").write_text(content)
    with pytest.raises(UserError, match=r"measure\.json is damaged: measure the run again"):
        export(damaged, format="safetensors", out=tmp_path)


def test_the_card_has_counts_intervals_rule_and_recipe(run: Path, tmp_path: Path) -> None:
    export(run, format="safetensors", out=tmp_path)
    card = (tmp_path / "MODEL-CARD.md").read_text()
    measured = json.loads((run / "measure.json").read_text())
    for k, name in enumerate(CLASSES):
        low, high = wilson(measured["recall"][k], 6)
        row = f"| {name} | 6 | 6 | {measured['recall'][k]:.1%} [{low:.0%}, {high:.0%}] |"
        assert row in card
    for part in ("labelled 18, test 18", "rule `last`", "none, it was trained from scratch", 'name = "small-cnn"'):
        assert part in card
    assert "temperature 0.37" in card
    assert "before the temperature" in card
    plain = shutil.copytree(run, tmp_path / "plain")
    keep_temperature(plain, None)
    card = export(plain, format="safetensors").with_name("MODEL-CARD.md").read_text()
    assert "- calibrated: no\n" in card
    assert "before the temperature" not in card
    (plain / "confusion.npz").unlink()
    card = export(plain, format="safetensors").with_name("MODEL-CARD.md").read_text()
    assert f"| {CLASSES[0]} | 6 | ? | {measured['recall'][0]:.1%} |" in card
    (plain / "measure.json").unlink()
    assert "Not measured." in export(plain, format="safetensors").with_name("MODEL-CARD.md").read_text()


def test_licences_of_weights_are_told() -> None:
    table: dict[str, Any] = {"name": "classifier", "net": {"name": "resnet50", "weights": "resnet50"}}
    recipe = validate({"data": {"set": "shapes"}, "method": table}, "test")
    assert exporting.licence_of(recipe) == "resnet50, MIT (package and He et al.'s weights), trained on ImageNet"
    recipe = validate({"data": {"set": "shapes", "embed": "timm:x"}, "method": {"name": "classifier"}}, "test")
    assert exporting.licence_of(recipe) == "timm:x, see the model's page in timm"


def test_tables(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(3, 5, size=(40, 5)).astype(np.float32)
    np.savez(tmp_path / "v.npz", x=x, y=np.arange(40) % 2)
    data = {"set": str(tmp_path / "v.npz"), "groups": "1/1"}
    run = trained(tmp_path / "run", data, net={"name": "mlp", "width": 4})
    graph, _ = graph_of(evenhand.load(run))
    torch.testing.assert_close(graph(torch.from_numpy(x)), evenhand.load(run).probabilities(x), atol=TOLERANCE, rtol=0)


def test_texts_keep_their_words(tmp_path: Path) -> None:
    net = {"name": "text-mean", "width": 8}
    run = trained(tmp_path / "run", {"set": "phrases", "text": {"length": 8}}, net=net)
    with pytest.raises(UserError, match=r"a model of texts needs its vocabulary .*--format safetensors"):
        export(run, format="torch")
    assert not list((run / "export").glob("model*"))
    with safe_open(export(run, format="safetensors"), "pt") as file:
        assert json.loads(file.metadata()["words"]) == list(evenhand.load(run).facts.words)
        assert not [name for name in file.keys() if name.startswith("normalise")]  # noqa: SIM118


def test_what_cannot_be_exported_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="format 'tflite' is unknown; choose onnx, torch, safetensors"):
        export(run, format="tflite")  # type: ignore[arg-type]
    monkeypatch.setattr(exporting, "NEEDED", ("no_such_package",))
    with pytest.raises(UserError, match=r"needs no_such_package: pip install 'evenhand\[export\]'"):
        export(run)


def toy(net: torch.nn.Module, reads: str, temperature: float | None = None, embed: str = "", **facts: Any) -> Any:
    """A model by hand, whose logits are scaled by 3."""
    known = SimpleNamespace(**{"mean": [], "std": [], "kind": reads, "inputs": 2, "size": [], **facts})
    return SimpleNamespace(
        facts=known, temperature=temperature, method=SimpleNamespace(logit_scale=3.0, net=net), backbone=(net, "cpu"),
        inputs=SimpleNamespace(reads=reads, channels=1),
        run=SimpleNamespace(recipe=SimpleNamespace(data=SimpleNamespace(embed=embed, embed_size=3))),
    )  # fmt: skip


class Flat(torch.nn.Module):
    """The first two numbers of an input, as features and as logits."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :2]

    features = forward


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_a_graph_normalises_scales_and_divides(temperature: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "network_of", lambda model: model.method.net)
    factor = 3 / (temperature or 1)
    x = torch.tensor([[1.0, 6.0], [2.0, 0.5]])
    graph, example = graph_of(toy(Flat(), "vectors", temperature, mean=[1.0, 2.0], std=[2.0, 4.0]))
    assert example.shape == (2, 2)
    expected = (factor * (x - torch.tensor([1.0, 2.0])) / torch.tensor([2.0, 4.0])).softmax(1)
    torch.testing.assert_close(graph(x), expected)
    graph, example = graph_of(toy(Flat(), "images", temperature, mean=[0.5], std=[0.25], size=[4, 4]))
    assert (example.shape, example.dtype) == ((2, 1, 4, 4), torch.uint8)
    pixels = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)
    expected = (factor * (pixels.flatten(1)[:, :2] / 255 - 0.5) / 0.25).softmax(1)
    torch.testing.assert_close(graph(pixels), expected)


@pytest.mark.parametrize("side", [3, 4, 7])
def test_a_frozen_network_sees_images_of_its_side(side: int) -> None:
    x = torch.randint(0, 256, (2, 1, side, side), generator=torch.Generator().manual_seed(0)).byte()
    embedding = exporting.Embedding(torch.nn.Module(), side, 4)  # type: ignore[arg-type]
    seen: list[Tensor] = []
    embedding.net.features = lambda x: seen.append(x) or x
    embedding(x)
    assert embedding.resizes == (side != 4)
    torch.testing.assert_close(seen[0], seen_by_backbone(x, 4), atol=1e-5, rtol=0)
    assert "matrix" not in embedding.state_dict()


def test_numbers_to_normalise_by_are_kept_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    net = torch.nn.Linear(2, 2)
    monkeypatch.setattr(exporting, "network_of", lambda model: model.method.net)
    assert exporting._tensors(toy(net, "texts")).keys() == {"weight", "bias"}
    kept = exporting._tensors(toy(net, "vectors", mean=[1.0, 2.0], std=[3.0, 4.0], embed="x"))
    assert kept.keys() == {
        "head.weight", "head.bias", "backbone.weight", "backbone.bias", "normalise.mean", "normalise.std",
    }  # fmt: skip
    assert kept["normalise.std"].tolist() == [3, 4]
