"""Vectors as data: a user's own features, and images through a frozen network, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.arrays import as_vectors
from evenhand.data.stream import Memory, Stream
from evenhand.data.views.vectors import Standardise, vector_stats
from evenhand.errors import UserError
from evenhand.measure import frozen as embedding
from evenhand.measure.frozen import embed
from evenhand.nets import build_net
from evenhand.run.recipe import validate
from evenhand.run.training import train

D = 6


def own_features(path: Path, *, shift: float = 0.0, d: int = D, per_class: int = 20, seed: int = 0) -> str:
    chance = np.random.default_rng(seed)
    y = np.arange(3).repeat(per_class)
    x = 5 * np.eye(3, d)[y] + chance.normal(size=(len(y), d)) * np.linspace(1, 9, d) + shift
    np.savez(path, x=x, y=y, classes=["ant", "bee", "cow"])
    return str(path)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """A file for resnet8, whose statistics are not the initial ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = build_net("resnet8", num_classes=4)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.fill_(0.1)  # type: ignore[union-attr]
    torch.save(net.state_dict(), tmp_path / "resnet8.pt")
    return f"resnet8:{tmp_path / 'resnet8.pt'}"


def pictures(count: int = 70, channels: int = 3, seed: int = 0) -> Stream:
    chance = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, channels, 12, 12), generator=chance, dtype=torch.uint8)
    return Stream(Memory(images), torch.arange(count) % 2, ("a", "b"), "some")


# one's own vectors


def test_npz_of_floats_is_standardised_by_the_training_part(tmp_path: Path) -> None:
    data = prepare_data(DataSettings(set=own_features(tmp_path / "f.npz"), val_per_class=2))
    assert data.inputs == D
    labelled = data.streams["labelled"]
    raw = labelled.fetch(torch.arange(len(labelled)))
    assert raw.dtype == torch.float32
    seen = data.train_view(raw, torch.Generator())
    torch.testing.assert_close(seen.mean(0), torch.zeros(D), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(D))
    test = data.streams["test"].fetch(torch.arange(3))
    mean, std = torch.tensor(data.facts.mean), torch.tensor(data.facts.std)
    for view in (data.train_view, data.strong_view, data.eval_view):
        torch.testing.assert_close(view(test, torch.Generator()), (test - mean) / std)


def test_domains_of_vectors(tmp_path: Path) -> None:
    source, target = own_features(tmp_path / "s.npz"), own_features(tmp_path / "t.npz", shift=3, seed=1)
    data = prepare_data(DataSettings(set=source, target=target))
    assert data.inputs == D
    assert data.streams["target"].labels is None
    assert len(data.streams["target"]) == 60
    shorter = own_features(tmp_path / "short.npz", d=4)
    with pytest.raises(UserError, match=r"vectors of 4 and vectors of 6; bring all of one kind"):
        prepare_data(DataSettings(set=source, target=shorter))
    np.savez(tmp_path / "i.npz", x=np.zeros((9, 8, 8), np.uint8), y=np.arange(9) % 3, classes=["ant", "bee", "cow"])
    with pytest.raises(UserError, match=r"images and vectors of 6"):
        prepare_data(DataSettings(set=source, target=str(tmp_path / "i.npz")))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"augment": ["flip"]}, r"data.augment = \['flip'\] changes images.*set data.augment = \[\]"),
        ({"strong": ["cutout"]}, r"data.strong = \['cutout'\] changes images"),
        ({"normalise": "imagenet"}, "is for images"),
        ({"normalise": [[0.0], [1.0]]}, "1 means for 6"),
        ({"embed": "mobilenet_v2:w"}, "weights 'w' are not a file"),
    ],
)
def test_what_is_for_images_is_refused(tmp_path: Path, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        prepare_data(DataSettings(set=own_features(tmp_path / "f.npz"), **wrong), embed=embed)


def test_vectors_that_are_not_finite_are_named() -> None:
    with pytest.raises(UserError, match="here: vector 1 is not finite"):
        as_vectors(np.array([[0.0, 1.0], [np.nan, 1.0]]), "here")


def test_a_number_that_never_changes_is_left_at_zero() -> None:
    samples = torch.tensor([[3.3, 1.0], [3.3, 2.0]])
    view = Standardise(*vector_stats(samples))
    torch.testing.assert_close(view(samples), torch.tensor([[0.0, -1.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match=r"float32 \(N, 2\)"):
        view(samples[:, :1])


def test_what_changes_by_less_than_a_millionth_of_itself_does_not_change() -> None:
    """Beside 10,000 a deviation of 0.005 is rounding of float32; beside nothing, one of 1e-9 is not."""
    samples = torch.tensor([[9999.995, 9999.0, -1e-9], [10000.005, 10001.0, 1e-9]], dtype=torch.float64)
    assert vector_stats(samples)[1] == pytest.approx([1.0, 1.0, 1e-9])
    assert vector_stats(5 * samples)[1] == pytest.approx([1.0, 5.0, 5e-9])


# embedding


def test_embedding_is_the_frozen_network_in_eval_mode(weights: str) -> None:
    streams = {"train": pictures(), "test": pictures(3, seed=1)}
    found = embed(streams, weights, 32)
    x = streams["train"].fetch(torch.arange(70)).float() / 255
    x = (x - torch.tensor(embedding.IMAGENET[0]).view(3, 1, 1)) / torch.tensor(embedding.IMAGENET[1]).view(3, 1, 1)
    x = nn.functional.interpolate(x, (32, 32), mode="bilinear", antialias=True)
    net = build_net("resnet8", num_classes=4).eval()
    net.load_state_dict(torch.load(weights.partition(":")[2]))
    with torch.no_grad():
        torch.testing.assert_close(found["train"].fetch(torch.arange(70)), net.features(x), atol=1e-5, rtol=1e-4)
    assert found["train"].labels is streams["train"].labels
    assert len(found["test"]) == 3
    assert found["test"].samples.origin is streams["test"].samples  # what a report shows


def test_embedding_is_computed_once_for_the_same_samples_weights_and_side(
    weights: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "cache"))
    calls: list[int] = []
    real = embedding._compute
    monkeypatch.setattr(embedding, "_compute", lambda *a: (calls.append(1), real(*a))[1])
    stream = pictures(9)
    first = embed({"train": stream, "test": stream.unlabelled()}, weights, 32)
    again = embed({"other": stream}, weights, 32)
    assert len(calls) == 1  # labels do not matter, nor do names
    assert torch.equal(first["train"].fetch(torch.arange(9)), again["other"].fetch(torch.arange(9)))
    assert first["test"].labels is None
    embed({"train": stream}, weights, 33)
    embed({"train": pictures(9, seed=5)}, weights, 32)
    path = Path(weights.partition(":")[2])
    state = torch.load(path)
    torch.save({name: value + 1 for name, value in state.items()}, path)
    embed({"train": stream}, weights, 32)
    assert len(calls) == 4


def test_grey_images_are_embedded_too(weights: str) -> None:
    assert embed({"train": pictures(4, channels=1)}, weights, 32)["train"].fetch(torch.arange(4)).shape == (4, 64)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ("mobilenet_v3", "no network 'mobilenet_v3'; did you mean 'mobilenet_v2'"),
        ("resnet34", "needs weights: write 'resnet34:path/to/file', or use mobilenet_v2, resnet18, resnet50"),
        ("resnet50:nowhere.pt", "weights 'nowhere.pt' are not a file"),
    ],
)
def test_networks_that_cannot_embed(network: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        embed({"train": pictures(2)}, network, 32)


def test_vectors_are_not_embedded_again(weights: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds vectors; leave it out"):
        prepare_data(DataSettings(set=own_features(tmp_path / "f.npz"), embed=weights), embed=embed)


# the whole way


def trained(tmp_path: Path, data: dict[str, Any], net: str) -> dict[str, Any]:
    method = {"name": "classifier", "batch": 16, "net": {"name": net, "width": 64}, "optim": {"lr": 0.05}}
    run = {"folder": str(tmp_path / "run"), "steps": 60, "progress": False}
    folder = train(validate({"data": data, "method": method, "run": run}, "test"))
    found: dict[str, Any] = json.loads((folder / "measure.json").read_text())
    return found


@pytest.mark.parametrize("net", ["linear", "mlp", "mlp-bn"])
def test_a_classifier_learns_from_vectors(tmp_path: Path, net: str) -> None:
    features = own_features(tmp_path / "f.npz", per_class=60)
    assert trained(tmp_path, {"set": features}, net)["accuracy"] > 0.6


def test_a_classifier_learns_from_embedded_images(tmp_path: Path, weights: str) -> None:
    y = np.arange(80) % 2
    x = (60 + 120 * y[:, None, None] + np.random.default_rng(0).integers(-40, 40, (80, 12, 12))).astype(np.uint8)
    np.savez(tmp_path / "grey.npz", x=x, y=y)
    data = {"set": str(tmp_path / "grey.npz"), "embed": weights, "embed_size": 32}
    assert trained(tmp_path, data, "mlp-bn")["accuracy"] > 0.8
