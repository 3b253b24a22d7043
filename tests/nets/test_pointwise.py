from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from evenhand.nets.pointwise import Thinned, conv1x1
from evenhand.randomness import dice


@pytest.mark.parametrize("inputs", [3, 8, 12, 15])
def test_a_narrow_strided_convolution_survives_avx512_and_gives_the_plain_gradients(inputs: int) -> None:
    """The plain form in channels_last ends the process here: torch 2.13 on a CPU with AVX-512."""
    chance = dice(0, inputs)
    x, ours = torch.randn(16, inputs, 56, 56, generator=chance), conv1x1(inputs, 16, 2)
    plain = nn.Conv2d(inputs, 16, 1, 2, bias=False)
    plain.load_state_dict(ours.state_dict())
    upstream = torch.randn(16, 16, 28, 28, generator=chance)

    def passed(conv: nn.Module, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        y = conv(x)
        return [y, *torch.autograd.grad(y, [x, *conv.parameters()], upstream)]

    expected = passed(plain, x)
    found = passed(ours.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last))  # type: ignore[call-overload]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_wide_and_unstrided_ones_are_torchs_own() -> None:
    assert type(conv1x1(8, 16, 2)) is Thinned
    assert type(conv1x1(16, 16, 2)) is type(conv1x1(8, 16)) is nn.Conv2d
