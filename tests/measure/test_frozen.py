"""Frozen networks: how they are named, and what they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure import frozen


def test_networks_are_named_with_or_without_weights() -> None:
    assert frozen._parsed("timm:vit_tiny") == ("timm:vit_tiny", "pretrained")
    assert frozen._parsed("timm:vit_tiny:w.pt") == ("timm:vit_tiny", "w.pt")
    assert frozen._parsed("small-cnn:w.pt") == ("small-cnn", "w.pt")
    assert frozen._parsed("small-cnn") == ("small-cnn", "")
    assert frozen._parsed("mobilenet_v2") == ("mobilenet_v2", "mobilenet_v2")
    assert frozen._parsed("mobilenet_v2:w.pt") == ("mobilenet_v2", "w.pt")


def test_weights_are_a_file_or_fetched_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "obtain_weights", lambda name: Path(f"fetched {name}"))
    file = tmp_path / "w.pt"
    file.write_bytes(b"")
    assert frozen._weights(f"small-cnn:{file}") == ("small-cnn", file)
    assert frozen._weights("mobilenet_v2") == ("mobilenet_v2", Path("fetched mobilenet_v2"))
    assert frozen._weights("timm:vit_tiny") == ("timm:vit_tiny", None)
    for network, said in (
        ("smal-cnn:x", "no network 'smal-cnn'"),
        ("small-cnn", "needs weights"),
        ("small-cnn:no.pt", "not a file"),
    ):
        with pytest.raises(UserError, match=said):
            frozen.check_backbone(network)


def test_images_are_shown_in_colour_normalised_and_resized() -> None:
    grey = torch.randint(256, (2, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    plain = (grey.expand(-1, 3, -1, -1) / 255 - mean) / std
    torch.testing.assert_close(frozen.seen_by_backbone(grey, 8), plain, atol=1e-5, rtol=1e-5)
    small = torch.nn.functional.interpolate(plain, (3, 3), mode="bilinear", antialias=True)
    torch.testing.assert_close(frozen.seen_by_backbone(grey, 3), small, atol=1e-5, rtol=1e-5)


def test_all_images_are_embedded_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Means(torch.nn.Module):
        sizes: list[int] = []  # noqa: RUF012

        def features(self, x: Tensor) -> Tensor:
            self.sizes.append(len(x))
            return x.mean((1, 2, 3))[:, None]

    monkeypatch.setattr(frozen, "backbone", lambda network, kept: {("net", None): Means()}[network, kept])
    images = torch.arange(130, dtype=torch.uint8).view(-1, 1, 1, 1).expand(130, 3, 4, 4)
    found = frozen.features_of(Stream(Memory(images), None, (), "x"), "net", 4)
    assert Means.sizes == [64, 64, 2]
    assert found.flatten().diff().tolist() == pytest.approx([float(found[1] - found[0])] * 129, abs=1e-5)
    with pytest.raises(UserError, match="'x' holds vectors"):
        frozen.features_of(Stream(Memory(torch.zeros(2, 3)), None, (), "x"), "net", 4)
