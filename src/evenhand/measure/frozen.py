"""Images as features of a frozen network, computed once: many seeds of a small classifier then take seconds each.

Vectors are kept beside the data sets, named by the digest of samples, weights and image side.
"""

from __future__ import annotations

import hashlib
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
from evenhand.data.sets.catalogue import DATASETS, obtain_weights
from evenhand.data.sets.packages import home
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.data.views.images import Pipeline
from evenhand.errors import UserError, did_you_mean
from evenhand.nets import NETS, HeadedNet, build_net
from evenhand.nets.weights import load_weights

BATCH = 64


def embed(streams: Streams, network: str, side: int) -> Streams:
    """The same streams with the features of ``network`` ("name" or "name:weights file") in place of images.

    Images are resized to ``side`` and normalised as ImageNet's; BatchNorm is in eval mode.
    """
    name, weights = _weights(network)
    mark = hashlib.sha256(weights.read_bytes()).hexdigest()
    embedded: Streams = {}
    for key, stream in streams.items():
        sha = hashlib.sha256(f"{name} {mark} {side}".encode())
        for known in stream.samples.identity(dated=True):
            sha.update(known)
        kept = home() / "embedded" / f"{name}-{side}-{sha.hexdigest()[:16]}.safetensors"
        if not kept.exists():
            with atomic.replacing(kept, "free space or set EVENHAND_DATA") as part:
                save_file({"vectors": _compute(stream, _frozen(name, weights), side, key)}, part)
        names = [stream.samples.name(row) for row in range(len(stream))]
        embedded[key] = replace(stream, samples=Memory(load_file(kept)["vectors"], names, stream.samples))
    return embedded


def features_of(stream: Stream, network: str, side: int) -> Tensor:
    """(N, d) of one stream, nothing kept."""
    return _compute(stream, _frozen(*_weights(network)), side, stream.name)


def _weights(network: str) -> tuple[str, Path]:
    """A network's name and the file of its weights, fetched if it is one of the built-in ones."""
    name, _, file = network.partition(":")
    known = [net for net in NETS if net in DATASETS]
    if name not in NETS:
        raise UserError(f"data.embed = '{network}': no network '{name}'; {did_you_mean(name, NETS)}")
    if not file and name not in known:
        raise UserError(f"data.embed = '{name}' needs weights: write '{name}:path/to/file', or use {', '.join(known)}")
    path = Path(file) if file else obtain_weights(name)
    if not path.is_file():
        raise UserError(f"data.embed: weights '{path}' are not a file; check the path")
    return name, path


def _frozen(name: str, weights: Path) -> HeadedNet:
    with torch.random.fork_rng(devices=[]):
        net = build_net(name, num_classes=2)
    load_weights(net, weights, skip_head=True)
    return net.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@torch.no_grad()
def _compute(stream: Stream, net: HeadedNet, side: int, label: str) -> Tensor:
    """(N, d) on a GPU if there is one."""
    if stream.kind != "images":
        raise UserError(f"data.embed takes images, but '{label}' holds {stream.kind}; leave it out")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net, view, err = net.to(device), Pipeline([], *IMAGENET), Console(stderr=True)
    vectors = []
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(f"embedding {label}", total=len(stream))
        for some in torch.arange(len(stream)).split(BATCH):
            images = stream.fetch(some).to(device)
            images = view(images.expand(-1, 3, -1, -1))
            if images.shape[-1] != side:
                images = F.interpolate(images, (side, side), mode="bilinear", antialias=True)
            vectors.append(net.features(images.contiguous(memory_format=torch.channels_last)).float().cpu())
            bar.advance(task, len(some))
    return torch.cat(vectors)
