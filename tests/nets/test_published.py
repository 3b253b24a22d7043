"""Published ResNets: Caffe's order of things and folded BatchNorm, written out step by step; and the real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.data.prepared import IMAGENET
from evenhand.data.sets.catalogue import DATASETS, obtain_weights
from evenhand.data.sources.files import Files
from evenhand.data.views.images import Pipeline
from evenhand.measure.frozen import backbone, seen_by_backbone
from evenhand.methods.common import Net
from evenhand.nets import PRETRAINED, build_net, load_weights
from evenhand.nets.imagenet import Bottleneck
from helpers import save_picture

CACHE = Path(os.environ.get("EVENHAND_DATA") or Path.home() / ".cache" / "evenhand")  # before tests get their own


def seeded(name: str, seed: int = 0, **options: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = build_net(name, num_classes=5, **options)  # type: ignore[arg-type]
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):  # as if trained
                nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.001, 2)  # type: ignore[arg-type]
                nn.init.normal_(module.bias, std=0.1)
        return net.eval()


def norm(x: Tensor, layer: nn.Module) -> Tensor:
    mean, var, scale, shift = (
        getattr(layer, key)[:, None, None] for key in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / torch.sqrt(var + 0.001) * scale + shift


def caffe_block(block: Bottleneck, x: Tensor, stride: int) -> Tensor:
    out = F.conv2d(x, block.conv1.weight, stride=stride)
    out = norm(out, block.bn1).relu()
    out = norm(F.conv2d(out, block.conv2.weight, padding=1), block.bn2).relu()
    out = norm(F.conv2d(out, block.conv3.weight), block.bn3)
    if block.downsample is not None:
        x = norm(F.conv2d(x, block.downsample[0].weight, stride=stride), block.downsample[1])  # type: ignore[arg-type]
    return (out + x).relu()


def test_caffe_resnet_written_out() -> None:
    net = seeded("resnet50-caffe", width=8)
    pixels = torch.randint(256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(0)).float()  # RGB
    mean = torch.tensor([103.939, 116.779, 123.68]).view(3, 1, 1)
    x = pixels[:, [2, 1, 0]] - mean
    x = F.conv2d(F.pad(x, (3, 3, 3, 3)), net.conv1.weight, stride=2)  # type: ignore[arg-type]
    x = F.max_pool2d(F.pad(norm(x, net.bn1).relu(), (1, 1, 1, 1)), 3, 2)  # type: ignore[arg-type]
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        for at, block in enumerate(stage):  # type: ignore[arg-type]
            x = caffe_block(block, x, 2 if at == 0 and stage is not net.layer1 else 1)
    seen = Pipeline([], *IMAGENET)(pixels.byte())
    expected = x.mean((2, 3))
    torch.testing.assert_close(net.features(seen) / expected.std(), expected / expected.std(), atol=1e-4, rtol=1e-4)  # type: ignore[operator]


def test_folded_resnet_computes_what_the_original_does() -> None:
    whole, folded = seeded("resnet18", width=8), seeded("resnet18-folded", width=8)
    state = {}
    norms = {"conv1": "bn1", "conv2": "bn2", "0": "1"}  # "downsample.0" has "downsample.1"
    layers = dict(whole.named_modules())
    for name, conv in layers.items():
        if isinstance(conv, nn.Conv2d):
            place, _, last = name.rpartition(".")
            bn = layers[f"{place}.{norms[last]}" if place else norms[last]]
            factor = bn.weight / torch.sqrt(bn.running_var + bn.eps)  # type: ignore[operator]
            state[f"{name}.weight"] = conv.weight * factor.view(-1, 1, 1, 1)
            state[f"{name}.bias"] = bn.bias - bn.running_mean * factor  # type: ignore[operator]
    missing, unexpected = folded.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["fc.weight", "fc.bias"], [])
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(folded.features(x), whole.features(x), atol=1e-4, rtol=1e-4)  # type: ignore[operator]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    torch.testing.assert_close(folded.train().features(x), folded.eval().features(x))  # type: ignore[operator]


def test_a_plain_name_means_the_published_variant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = Net(name="resnet18", weights="resnet18", width=8)
    state = seeded("resnet18-folded", 3, width=8).state_dict()
    torch.save({name: value for name, value in state.items() if not name.startswith("fc")}, tmp_path / "w.pt")
    monkeypatch.setattr("evenhand.methods.common.obtain_weights", {"resnet18": tmp_path / "w.pt"}.__getitem__)
    built = net.build(4, 3)
    assert torch.equal(built.state_dict()["layer4.1.conv2.bias"], state["layer4.1.conv2.bias"])
    again = net.as_trained()
    assert (again.name, again.weights, again.width) == ("resnet18-folded", None, 8)
    assert again.build(4, 3).state_dict().keys() == built.state_dict().keys()
    own = Net(name="resnet18", weights=str(tmp_path / "w.pt"))
    assert (own.variant(), own.as_trained().name) == ("resnet18", "resnet18")  # a file is of the network that is named


def test_pretrained_names_have_a_network_and_a_row_with_a_licence() -> None:
    for name, net in PRETRAINED.items():
        assert DATASETS[name].licence
        assert DATASETS[name].read is None
        build_net(net, num_classes=2, width=8)
        Net(name=name, weights=name).check()


# the real files, where they have been fetched: evenhand data get NAME


# First features of the picture below and their norm. By other programs: resnet18 by onnxruntime 1.31 on the package's
# own ONNX file, resnet50 by a transcription in float64 of its layers from the package's own arrays, biases and all;
# mobilenet_v2 by ours, whose classes were looked at (a cat, a cup of coffee).
STORED = {
    "mobilenet_v2": ([0.07927, 0.52175, 0.00135, 0.20241, 0.31847, 0.0], 18.9167),
    "resnet18": ([0.01430, 0.0, 0.11499, 3.64091, 0.08089, 0.00078], 17.9693),
    "resnet50": ([0.12707, 0.0, 0.25920, 0.0, 0.17185, 0.00858], 41.4515),
}


@pytest.mark.parametrize("name", STORED)
def test_real_weights_give_stored_outputs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(CACHE))
    if DATASETS[name].state == "absent":
        pytest.skip(f"not in the cache: evenhand data get {name}")
    picture = save_picture(tmp_path / "picture.png", 256, 256, seed=1)
    pixels = Files([picture], size=224).fetch([0])
    with torch.no_grad():
        found = backbone(name).features(seen_by_backbone(pixels, 224))[0]
    first, length = STORED[name]
    assert found[:6].tolist() == pytest.approx(first, abs=2e-4)
    assert float(found.norm()) == pytest.approx(length, rel=1e-4)


def test_real_classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The classes of ResNet-50 too: 644 and 782, by the same transcription."""
    monkeypatch.setenv("EVENHAND_DATA", str(CACHE))
    if DATASETS["resnet50"].state == "absent":
        pytest.skip("not in the cache: evenhand data get resnet50")
    net = build_net("resnet50-caffe", num_classes=1000).eval()
    load_weights(net, obtain_weights("resnet50"))
    pixels = Files([save_picture(tmp_path / "picture.png", 256, 256, seed=1)], size=224).fetch([0])
    sure, which = net(seen_by_backbone(pixels, 224)).softmax(1)[0].topk(2)
    assert which.tolist() == [644, 782]
    assert sure.tolist() == pytest.approx([0.2784, 0.2206], abs=1e-3)
