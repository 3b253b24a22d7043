"""Networks. Every classifier is ``head(features(x))``:

- ``net.features(x)`` gives (N, d) features, ``d = net.num_features``;
- ``net.head`` maps them to (N, K) logits with ``weight`` (K, d): ``nn.Linear``, or ``CosineHead`` for LDAM;
- ``net(x)`` is ``net.head(net.features(x))``.

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

from evenhand.data.vocabulary import HF
from evenhand.errors import did_you_mean
from evenhand.nets.cifar import CifarResNet, LeNet, SmallCNN
from evenhand.nets.heads import CosineHead, HeadedNet, HeadKind, make_head
from evenhand.nets.imagenet import ImageNetResNet
from evenhand.nets.mobilenet import MobileNetV2
from evenhand.nets.text import TextMean, TextTransformer
from evenhand.nets.timm import PREFIX, TimmNet
from evenhand.nets.vectors import Perceptron
from evenhand.nets.vit import VisionTransformer
from evenhand.nets.weights import load_weights
from evenhand.nets.wide import WideResNet

__all__ = ["NETS", "CosineHead", "HeadKind", "HeadedNet", "build_net", "load_weights", "make_head", "reads_text"]

NETS: dict[str, Callable[..., HeadedNet]] = {
    "small-cnn": SmallCNN,
    "lenet": LeNet,
    **{f"resnet{depth}": partial(CifarResNet, depth) for depth in (8, 14, 20, 32, 44, 56)},
    **{f"resnet{depth}": partial(ImageNetResNet, depth) for depth in (18, 34, 50, 101)},
    **{f"wrn28-{factor}": partial(WideResNet, factor) for factor in (2, 8)},
    "mobilenet_v2": MobileNetV2,
    "mlp": Perceptron,
    "mlp-bn": partial(Perceptron, batch_norm=True),
    "text-transformer": TextTransformer,
    "text-mean": TextMean,
    "vit-tiny": partial(VisionTransformer, 32, 4, 4, 16, width=64),
    "vit-b16": partial(VisionTransformer, 224, 16, 12),
}


def reads_text(name: str) -> bool:
    """Whether a network takes tokens; the others take images."""
    return name.startswith(("text-", HF))


def build_net(
    name: str,
    *,
    num_classes: int,
    channels: int = 3,
    head: HeadKind = "linear",
    width: int | None = None,
    depth: int | None = None,
    stem_stride: int | None = None,
    zero_init_residual: bool | None = None,
    pretrained: bool | None = None,
) -> HeadedNet:
    """The network ``name`` of ``NETS``, ``timm:NAME`` or ``hf:FOLDER``; None leaves an option at the network's default.

    ``width`` is the number of channels after the first layer (16 for small images, 64 for ImageNet), the length of a
    perceptron's hidden layers or of word vectors; ``depth`` the number of a text transformer's blocks. ``channels`` is
    a perceptron's number of inputs, a text network's number of words. ``pretrained`` lets timm fetch its weights.
    """
    if name.startswith(HF):
        from evenhand.nets.hf import HFEncoder

        make: Callable[..., HeadedNet] = partial(HFEncoder, name)
    elif name.startswith(PREFIX):
        make = partial(TimmNet, name.removeprefix(PREFIX))
    elif name in NETS:
        make = NETS[name]
    else:
        raise ValueError(f"net '{name}' is unknown; {did_you_mean(name, NETS)}")
    given = {
        "width": width, "depth": depth, "stem_stride": stem_stride, "zero_init_residual": zero_init_residual,
        "pretrained": pretrained,
    }  # fmt: skip
    options = {option: value for option, value in given.items() if value is not None}
    accepted = inspect.signature(make).parameters
    for option, value in options.items():
        if option not in accepted:
            raise ValueError(f"net '{name}' has no option {option} (got {value}); leave it out")
    for option, value in {"channels": channels, **options}.items():
        if not isinstance(value, bool) and value < 1:
            raise ValueError(f"{option} is {value}; it must be at least 1")
    return make(num_classes=num_classes, channels=channels, head=head, **options)
