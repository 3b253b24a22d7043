"""The Inception-v3 by which FID is defined: that of December 2015, with the quirks of its graph.

Average pools do not count the padding, the last block takes a maximum where the paper has a mean, BatchNorm's
epsilon is 1e-3, and the classifier has 1008 outputs. Names are those of the usual FID state dict, so
``load_weights(blank(), path)`` reads such a file; ``load_script`` reads the TorchScript export.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.errors import UserError
from evenhand.nets.heads import HeadedNet

Kernel = int | tuple[int, int]
Step = tuple[int, Kernel] | tuple[int, Kernel, int]  # outputs, kernel, stride
Chain = list[Step | Literal["fork"]]  # a fork ends a chain: 1 x 3 ("a") and 3 x 1 ("b") side by side
Branches = dict[str, Chain]


class Conv(nn.Module):
    """Convolution without bias, BatchNorm, ReLU; the image keeps its size unless strided or ``padded=False``."""

    def __init__(self, inputs: int, outputs: int, kernel: Kernel, stride: int = 1, *, padded: bool = True) -> None:
        super().__init__()
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if padded and stride == 1 else (0, 0)
        self.conv = nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.bn(self.conv(x)))


class Mixed(nn.Module):
    """Chains of convolutions side by side, concatenated; ``branch_pool`` begins with a 3 x 3 pool.

    Without a ``branch_pool`` the block halves the image and its own input, max-pooled, is the last part.
    """

    def __init__(self, inputs: int, branches: Branches, *, maximum: bool = False) -> None:
        super().__init__()
        self.maximum = maximum
        self.chains: dict[str, list[list[str]]] = {}
        for branch, steps in branches.items():
            width, chain = inputs, []
            for number, step in enumerate(steps, start=1):
                name = branch if len(steps) == 1 else f"{branch}_{number}"
                if step == "fork":
                    parts = {f"{name}a": Conv(width, 384, (1, 3)), f"{name}b": Conv(width, 384, (3, 1))}
                else:
                    parts = {name: Conv(width, *step)}
                    width = step[0]
                for part, conv in parts.items():
                    self.add_module(part, conv)
                chain.append(list(parts))
            self.chains[branch] = chain

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for branch, chain in self.chains.items():
            y = self._pooled(x) if branch == "branch_pool" else x
            for names in chain:
                y = torch.cat([self.get_submodule(name)(y) for name in names], 1)
            outputs.append(y)
        if "branch_pool" not in self.chains:
            outputs.append(F.max_pool2d(x, 3, 2))
        return torch.cat(outputs, 1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.maximum:
            return F.max_pool2d(x, 3, 1, padding=1)
        return F.avg_pool2d(x, 3, 1, padding=1, count_include_pad=False)


class FIDInception(HeadedNet):
    """``features(x)``: pool3, (N, 2048), of x (N, 3, 299, 299) in [-1, 1]; the head gives 1008 logits."""

    def __init__(self) -> None:
        super().__init__(num_features=2048)
        self.Conv2d_1a_3x3 = Conv(3, 32, 3, 2)
        self.Conv2d_2a_3x3 = Conv(32, 32, 3, padded=False)
        self.Conv2d_2b_3x3 = Conv(32, 64, 3)
        self.Conv2d_3b_1x1 = Conv(64, 80, 1)
        self.Conv2d_4a_3x3 = Conv(80, 192, 3, padded=False)
        self.Mixed_5b = Mixed(192, _five(32))
        self.Mixed_5c = Mixed(256, _five(64))
        self.Mixed_5d = Mixed(288, _five(64))
        self.Mixed_6a = Mixed(288, {"branch3x3": [(384, 3, 2)], "branch3x3dbl": [(64, 1), (96, 3), (96, 3, 2)]})
        self.Mixed_6b = Mixed(768, _six(128))
        self.Mixed_6c = Mixed(768, _six(160))
        self.Mixed_6d = Mixed(768, _six(160))
        self.Mixed_6e = Mixed(768, _six(192))
        long: Chain = [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)]
        self.Mixed_7a = Mixed(768, {"branch3x3": [(192, 1), (320, 3, 2)], "branch7x7x3": long})
        self.Mixed_7b = Mixed(1280, _seven())
        self.Mixed_7c = Mixed(2048, _seven(), maximum=True)
        self.fc = nn.Linear(2048, 1008)

    def features(self, x: Tensor) -> Tensor:
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))  # (N, 64, 147, 147)
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(F.max_pool2d(x, 3, 2)))  # (N, 192, 71, 71)
        x = F.max_pool2d(x, 3, 2)
        for name, block in self.named_children():
            if name.startswith("Mixed"):
                x = block(x)  # 35, then 17 from 6a, then 8 pixels across from 7a
        return x.mean((2, 3))


def blank() -> FIDInception:
    """The network with every entry 0, ready for a file: quick, and nothing is drawn at random."""
    with torch.device("meta"):
        net = FIDInception()
    net = net.to_empty(device="cpu")
    for entry in net.state_dict().values():
        entry.zero_()
    return net


def load_script(net: FIDInception, path: str | Path) -> None:
    """The TorchScript export's weights into ``net``; it has no classifier, so ``net.fc`` stays as it is.

    Its convolutions come in the order of ours, each as weight, beta, mean, var; gamma is 1 throughout.
    """
    try:
        stored = iter(torch.jit.load(str(path), map_location="cpu").state_dict().items())
    except RuntimeError as error:
        raise UserError(f"'{path}' is not a TorchScript file or damaged; fetch it again") from error
    convs = [module for module in net.modules() if isinstance(module, Conv)]
    with torch.no_grad():
        for conv in convs:
            nn.init.ones_(conv.bn.weight)
            for kind, own in (
                ("weight", conv.conv.weight),
                ("beta", conv.bn.bias),
                ("mean", conv.bn.running_mean),
                ("var", conv.bn.running_var),
            ):
                name, value = next(stored, ("the end", torch.empty(0)))
                if own is None or not name.endswith(f".{kind}") or value.shape != own.shape:
                    raise UserError(f"'{path}' has {name} {tuple(value.shape)} for a {kind}: not the FID Inception")
                own.copy_(value)


def _five(pooled: int) -> Branches:
    return {
        "branch1x1": [(64, 1)],
        "branch5x5": [(48, 1), (64, 5)],
        "branch3x3dbl": [(64, 1), (96, 3), (96, 3)],
        "branch_pool": [(pooled, 1)],
    }


def _six(width: int) -> Branches:
    across, down = (1, 7), (7, 1)
    return {
        "branch1x1": [(192, 1)],
        "branch7x7": [(width, 1), (width, across), (192, down)],
        "branch7x7dbl": [(width, 1), (width, down), (width, across), (width, down), (192, across)],
        "branch_pool": [(192, 1)],
    }


def _seven() -> Branches:
    return {
        "branch1x1": [(320, 1)],
        "branch3x3": [(384, 1), "fork"],
        "branch3x3dbl": [(448, 1), (384, 3), "fork"],
        "branch_pool": [(192, 1)],
    }
