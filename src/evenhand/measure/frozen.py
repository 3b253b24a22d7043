"""Images as features of a frozen network, computed once: many seeds of a small classifier then take seconds each.

Vectors are kept beside the data sets, named by the digest of samples, weights and image side. A run that learns from
them keeps the network's weights in its folder, so that it predicts from images wherever it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import load_file, save_file
from torch import Tensor

from evenhand import atomic
from evenhand.data.prepared import IMAGENET
from evenhand.data.sets.catalogue import digest_of, obtain_weights
from evenhand.data.sets.packages import home
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.data.views.images import Pipeline
from evenhand.errors import UserError, did_you_mean
from evenhand.nets import NETS, PRETRAINED, TIMM, HeadedNet, build_net
from evenhand.nets.weights import load_backbone

BATCH = 64
KEPT = "backbone"  # the weights in a run's folder, with the suffix of the file they come from


def embed(streams: Streams, network: str, side: int) -> Streams:
    """The same streams with the features of ``network`` in place of images: "name", "name:weights file", "timm:name".

    Images are resized to ``side`` and normalised as ImageNet's; BatchNorm is in eval mode.
    """
    name, weights = _weights(network)
    fetched = None if weights else backbone(network)
    mark = hashlib.sha256(weights.read_bytes()).hexdigest() if weights else digest_of(fetched.state_dict())  # type: ignore[union-attr]
    embedded: Streams = {}
    for key, stream in streams.items():
        sha = hashlib.sha256(f"{name} {mark} {side}".encode())
        for known in stream.samples.identity(dated=True):
            sha.update(known)
        kept = home() / "embedded" / f"{name.replace(':', '-')}-{side}-{sha.hexdigest()[:16]}.safetensors"
        if not kept.exists():
            with atomic.replacing(kept, "free space or set EVENHAND_DATA") as part:
                save_file({"vectors": _compute(stream, fetched or backbone(network), side, key)}, part)
        names = [stream.samples.name(row) for row in range(len(stream))]
        embedded[key] = replace(stream, samples=Memory(load_file(kept)["vectors"], names, stream.samples))
    return embedded


def features_of(stream: Stream, network: str, side: int, kept: Path | None = None) -> Tensor:
    """(N, d) of one stream, nothing stored; ``kept`` weights of a run stand for those the name means."""
    return _compute(stream, backbone(network, kept), side, stream.name)


def check_backbone(network: str) -> None:
    """Refuse a network or weights that do not exist, before anything is fetched or decoded."""
    name, file = _parsed(network)
    if name not in NETS and not name.startswith(TIMM):
        raise UserError(f"data.embed = '{network}': no network '{name}'; {did_you_mean(name, [*NETS, *PRETRAINED])}")
    if not file:
        there = ", ".join(sorted(PRETRAINED))
        raise UserError(f"data.embed = '{network}' needs weights: write '{name}:path/to/file', or use {there}")
    if file not in (*PRETRAINED, "pretrained") and not Path(file).is_file():
        raise UserError(f"data.embed: weights '{file}' are not a file; check the path")


def backbone(network: str, kept: Path | None = None) -> HeadedNet:
    """The network in eval mode with its weights: those ``kept`` in a run's folder, or as its name says."""
    name, weights = (_parsed(network)[0], kept) if kept else _weights(network)
    with torch.random.fork_rng(devices=[]):
        options = {"pretrained": True} if weights is None else {}
        net = build_net(name, num_classes=2, **options)  # type: ignore[arg-type]
    if weights is not None:
        load_backbone(net, weights)
    return net.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def keep_backbone(network: str, folder: Path) -> None:
    """The weights into a run's folder: linked where they are ours and on the same disk, else copied."""
    if kept_backbone(folder) is not None:
        return
    _, weights = _weights(network)
    place = folder / f"{KEPT}{weights.suffix if weights else '.safetensors'}"
    if weights is not None and weights.is_relative_to(home()):
        try:
            os.link(weights, place)
            return
        except OSError:  # another disk, or one without links
            pass
    with atomic.replacing(place) as part:
        if weights is None:
            net = backbone(network)
            save_file({name: value.contiguous() for name, value in net.backbone.state_dict().items()}, part)  # type: ignore[union-attr]
        else:
            shutil.copyfile(weights, part)


def kept_backbone(folder: Path) -> Path | None:
    """The file that ``keep_backbone`` left in a run's folder, if it is one on frozen features."""
    return next(iter(sorted(folder.glob(f"{KEPT}.*"))), None)


def seen_by_backbone(images: Tensor, side: int) -> Tensor:
    """uint8 images (N, 1 or 3, H, W) as a frozen network takes them: in colour, normalised, (N, 3, side, side)."""
    seen = Pipeline([], *IMAGENET)(images.expand(-1, 3, -1, -1))
    if seen.shape[-2:] != (side, side):
        seen = F.interpolate(seen, (side, side), mode="bilinear", antialias=True)
    return seen.contiguous(memory_format=torch.channels_last)


def _parsed(network: str) -> tuple[str, str]:
    """A network's name, and the name or file of its weights."""
    prefix = TIMM if network.startswith(TIMM) else ""
    name, _, file = network.removeprefix(prefix).partition(":")
    if prefix:
        return prefix + name, file or "pretrained"
    return (PRETRAINED[name], name) if not file and name in PRETRAINED else (name, file)


def _weights(network: str) -> tuple[str, Path | None]:
    """A network's name and the file of its weights, fetched if it is one of the built-in ones; None: timm fetches."""
    check_backbone(network)
    name, file = _parsed(network)
    if Path(file).is_file() and network != file:
        return name, Path(file)
    return name, None if file == "pretrained" else obtain_weights(file)


@torch.no_grad()
def _compute(stream: Stream, net: HeadedNet, side: int, label: str) -> Tensor:
    """(N, d) on a GPU if there is one."""
    if stream.kind != "images":
        raise UserError(f"data.embed takes images, but '{label}' holds {stream.kind}; leave it out")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net, err = net.to(device), Console(stderr=True)
    vectors = []
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(f"embedding {label}", total=len(stream))
        for some in torch.arange(len(stream)).split(BATCH):
            vectors.append(net.features(seen_by_backbone(stream.fetch(some).to(device), side)).float().cpu())
            bar.advance(task, len(some))
    return torch.cat(vectors)
