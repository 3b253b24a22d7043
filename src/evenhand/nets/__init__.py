"""Networks. Every classifier is ``head(features(x))``:

- ``net.features(x)`` gives (N, d) features, ``d = net.num_features``;
- ``net.head`` maps them to (N, K) logits with ``weight`` (K, d): ``nn.Linear``, or ``CosineHead`` for LDAM;
- ``net(x)`` is ``net.head(net.features(x))``; a distilled transformer averages two heads.

The head is stored under torchvision's name ``fc``; ``net.head = other`` replaces it. Initial weights come
from torch's generator alone: seed it inside ``torch.random.fork_rng()`` and build there to fix them.

>>> net = build_net("resnet32", num_classes=10)
>>> sum(p.numel() for p in net.parameters())
464154
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from evenhand.errors import did_you_mean
from evenhand.nets.heads import CosineHead, HeadedNet, HeadKind, ScaledHead, folded, make_head
from evenhand.nets.weights import load_weights
from evenhand.tokens import HF

__all__ = [
    "NETS", "PRETRAINED", "CosineHead", "HeadKind", "HeadedNet", "ScaledHead", "build_net", "folded", "load_weights",
    "make_head", "reads", "reads_text",
]  # fmt: skip

TIMM = "timm:"
INPUTS = ("channels", "inputs", "words")  # what constructors call the width of the first layer


def _lazy(place: str, *fixed: Any, **usual: Any) -> Callable[[], Callable[..., HeadedNet]]:
    """``module:Class`` with what the name fixes and what it merely sets, imported only when a net is built."""
    module, _, name = place.partition(":")
    return lambda: partial(getattr(import_module(f"evenhand.nets.{module}"), name), *fixed, **usual)


NETS: dict[str, Callable[[], Callable[..., HeadedNet]]] = {
    "small-cnn": _lazy("cifar:SmallCNN"),
    "lenet": _lazy("cifar:LeNet"),
    **{f"resnet{depth}": _lazy("cifar:CifarResNet", depth) for depth in (8, 14, 20, 32, 44, 56)},
    **{f"resnet{depth}": _lazy("imagenet:ImageNetResNet", depth) for depth in (18, 34, 50, 101)},
    "resnet18-folded": _lazy("published:FoldedResNet", 18),
    "resnet50-caffe": _lazy("published:CaffeResNet", 50),
    **{f"wrn28-{factor}": _lazy("wide:WideResNet", factor) for factor in (2, 8)},
    "mobilenet_v2": _lazy("mobilenet:MobileNetV2"),
    "linear": _lazy("vectors:Perceptron", depth=0),
    "mlp": _lazy("vectors:Perceptron"),
    "mlp-bn": _lazy("vectors:Perceptron", batch_norm=True),
    "text-transformer": _lazy("text:TextTransformer"),
    "text-mean": _lazy("text:TextMean"),
    "vit-tiny": _lazy("vit:VisionTransformer", size=32, patch=4, width=64, depth=4, heads=4),  # for small images
    "vit-ti16": _lazy("vit:VisionTransformer", width=192, heads=3),
    "vit-s16": _lazy("vit:VisionTransformer", width=384, heads=6),
    "vit-b16": _lazy("vit:VisionTransformer"),
}

# Weights to be had by name, and the network they are of: a plain name means the published variant of it.
PRETRAINED = {"mobilenet_v2": "mobilenet_v2", "resnet18": "resnet18-folded", "resnet50": "resnet50-caffe"}


def reads_text(name: str) -> bool:
    """Whether a network takes tokens."""
    return name.startswith(("text-", HF))


def reads_vectors(name: str) -> bool:
    """Whether a network takes vectors; those that take neither these nor tokens take images."""
    return name in ("linear", "mlp", "mlp-bn")


def reads(name: str) -> str:
    """The kind of sample that a network takes, as ``Stream.kind`` calls it; empty for a name that is none."""
    if reads_text(name) or reads_vectors(name):
        return "tokens" if reads_text(name) else "vectors"
    return "images" if name in NETS or name.startswith(TIMM) else ""


def build_net(
    name: str,
    *,
    num_classes: int,
    inputs: int = 3,
    head: HeadKind = "linear",
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    patch: int | None = None,
    size: int | None = None,
    drop_path: float | None = None,
    layer_scale: float | None = None,
    distilled: bool | None = None,
    stem_stride: int | None = None,
    zero_init_residual: bool | None = None,
    pretrained: bool | None = None,
) -> HeadedNet:
    """The network ``name`` of ``NETS``, ``timm:NAME`` or ``hf:FOLDER``; None leaves an option at the network's default.

    ``inputs`` is the width of the first layer: image channels, the length of vectors, the number of words. ``width`` is
    the number of channels after that layer (16 for small images, 64 for ImageNet), the length of a perceptron's hidden
    layers, of word or patch vectors; ``depth`` the number of layers or blocks. A vision transformer has ``heads`` of
    attention, patches of ``patch`` pixels and positions for images of ``size``; ``pretrained`` lets timm fetch weights.
    """
    if name.startswith(HF):
        make: Callable[..., HeadedNet] = _lazy("hf:HFEncoder", name)()
    elif name.startswith(TIMM):
        make = _lazy("timm:TimmNet", name.removeprefix(TIMM))()
    elif name in NETS:
        make = NETS[name]()
    else:
        raise ValueError(f"net '{name}' is unknown; {did_you_mean(name, NETS)}")
    given = {
        "width": width, "depth": depth, "heads": heads, "patch": patch, "size": size, "drop_path": drop_path,
        "layer_scale": layer_scale, "distilled": distilled, "stem_stride": stem_stride,
        "zero_init_residual": zero_init_residual, "pretrained": pretrained,
    }  # fmt: skip
    options = {option: value for option, value in given.items() if value is not None}
    accepted = inspect.signature(make).parameters
    for option, value in options.items():
        if option not in accepted:
            known = ", ".join(option for option in given if option in accepted) or "none"
            raise ValueError(f"net '{name}' has no option {option} (got {value}); it takes {known}")
    for option, value in {"inputs": inputs, **options}.items():
        if type(value) is int and value < 1:
            raise ValueError(f"{option} is {value}; it must be at least 1")
    first = next(word for word in INPUTS if word in accepted)
    return make(num_classes=num_classes, head=head, **{first: inputs}, **options)
