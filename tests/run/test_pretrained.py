"""Runs that begin with pretrained weights, by name or through timm, and what is refused before anything is decoded."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evenhand
from evenhand.data.sources.files import Files
from evenhand.errors import UserError
from evenhand.measure import frozen
from evenhand.measure.frozen import embed
from evenhand.nets import build_net
from evenhand.run.opening import read_data
from evenhand.run.recipe import validate
from evenhand.run.training import train
from helpers import tree

NAMES = [f"{split}/{k}/{i}.png" for split in ("train", "test") for k in ("ant", "bee") for i in range(4)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return tree(tmp_path / "photos", *NAMES, side=32)


def recipe(folder: Path, data: dict[str, Any], **method: Any) -> Any:
    table = {"name": "classifier", "batch": 4, **method}
    run = {"folder": str(folder), "steps": 2, "progress": False, "threads": 1}
    return validate({"data": {"groups": "1/1", **data}, "method": table, "run": run}, "test")


def test_a_run_from_named_weights_opens_without_them(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        state = build_net("resnet18-folded", num_classes=2, width=8).state_dict()
    torch.save(state, tmp_path / "w.pt")
    monkeypatch.setattr("evenhand.methods.common.obtain_weights", {"resnet18": tmp_path / "w.pt"}.__getitem__)
    net = {"name": "resnet18", "weights": "resnet18", "width": 8}
    data = {"set": str(photos), "normalise": "imagenet"}
    folder = train(recipe(tmp_path / "run", data, net=net, optim={"lr": 1e-9, "weight_decay": 0}))
    monkeypatch.setattr("evenhand.methods.common.obtain_weights", lambda _: pytest.fail("asked for the weights"))
    model = evenhand.load(folder)
    judged: Any = model.method.network()
    torch.testing.assert_close(judged.layer1[0].conv1.bias, state["layer1.0.conv1.bias"])  # the variant, and its values
    torch.testing.assert_close(judged.layer1[0].conv1.weight, state["layer1.0.conv1.weight"], atol=1e-5, rtol=0)
    assert len(model.predict(photos / "test")) == 8


def test_another_normalisation_than_the_weights_know_is_told(photos: Path, tmp_path: Path) -> None:
    net = {"name": "mobilenet_v2", "weights": "mobilenet_v2"}
    with pytest.warns(UserWarning, match="'mobilenet_v2' know images normalised as ImageNet's: set data.normalise"):
        read_data(recipe(tmp_path / "run", {"set": str(photos)}, net=net))


@pytest.mark.parametrize(
    ("data", "net", "says"),
    [
        (
            {},
            {"name": "resnet50", "weights": "resnet-50"},
            "weights we know; there are: mobilenet_v2, resnet18, resnet50",
        ),
        ({}, {"name": "resnet32", "weights": "resnet18"}, "set net.name to it, not 'resnet32'"),
        ({"embed": "resnet-50"}, {"name": "mlp"}, "no network 'resnet-50'; did you mean 'resnet50'"),
        ({"embed": "resnet34"}, {"name": "mlp"}, "needs weights: write 'resnet34:path/to/file', or use mobilenet_v2"),
        ({"embed": "resnet50:none.pth"}, {"name": "mlp"}, "weights 'none.pth' are not a file"),
    ],
)
def test_unknown_weights_are_told_before_any_image_is_decoded(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], net: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr(Files, "fetch", lambda *_: pytest.fail("decoded an image"))
    with pytest.raises(UserError, match=says):
        read_data(recipe(tmp_path / "run", {"set": str(photos), **data}, net=net))


class Pooled(nn.Module):
    """What timm gives with ``num_classes=0``; "pretrained" weights are all 0.01."""

    def __init__(self, pretrained: bool) -> None:
        super().__init__()
        self.num_features, self.conv = 6, nn.Conv2d(3, 6, 3)
        if pretrained:
            nn.init.constant_(self.conv.weight, 0.01)
            nn.init.normal_(self.conv.bias, generator=torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


def test_features_of_a_timm_network(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def create_model(_: str, *, pretrained: bool, **__: Any) -> nn.Module:
        asked.append(pretrained)
        return Pooled(pretrained)

    module = types.SimpleNamespace(create_model=create_model, is_model=lambda name: name == "some_net")
    monkeypatch.setitem(sys.modules, "timm", module)  # type: ignore[arg-type]
    data = {"set": str(photos), "embed": "timm:some_net", "embed_size": 32}
    folder = train(recipe(tmp_path / "run", data, net={"name": "mlp", "width": 4}))
    assert set(asked) == {True}
    model = evenhand.load(folder)
    asked.clear()
    images = model.source(photos / "test").fetch(torch.arange(8))
    assert isinstance(images, Tensor)
    seen = frozen.seen_by_backbone(images, 32)
    expected = model.method.predict(Pooled(True)(seen).detach()).softmax(1)
    torch.testing.assert_close(model.probabilities(photos / "test"), expected)
    assert asked == [False]  # from the run's own file
    torch.save(Pooled(True).state_dict(), tmp_path / "own.pt")
    streams = read_data(recipe(tmp_path / "r", {"set": str(photos)}, net={"name": "small-cnn"})).streams
    some = embed({"test": streams["test"]}, f"timm:some_net:{tmp_path / 'own.pt'}", 32)["test"].fetch(torch.arange(8))
    torch.testing.assert_close(some, Pooled(True)(frozen.seen_by_backbone(streams["test"].fetch(torch.arange(8)), 32)))
