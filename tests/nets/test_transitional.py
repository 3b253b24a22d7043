"""Transitional-cGAN's networks against spec 03, section 3, written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from evenhand.nets.stylegan2 import Generator
from evenhand.nets.transitional import TransitionalDiscriminator, TransitionalGenerator


@pytest.fixture
def generator() -> TransitionalGenerator:
    torch.manual_seed(0)
    made = TransitionalGenerator(16, 3, 4, latent=5, style=6, base=64, widest=8, mapping_layers=3)
    for parameter in made.mapping.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)  # biases begin with 0
    return made


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Equalised, at a hundredth of the learning rate, with leaky ReLU."""
    y = torch.stack([0.01 / math.sqrt(len(row)) * (weight @ row) + 0.01 * bias for row in x])
    return math.sqrt(2) * torch.where(y > 0, y, 0.2 * y)


def unit(x: Tensor) -> Tensor:
    return torch.stack([row / torch.sqrt((row**2).mean() + 1e-8) for row in x])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_label_is_added_to_the_first_layer(generator: TransitionalGenerator, share: float) -> None:
    z, y = torch.randn(3, 5), torch.tensor([0, 3, 3])
    m = generator.mapping
    m.transition.fill_(share)
    embedded = torch.stack([m.embed.weight[:, k] / math.sqrt(4) + m.embed.bias for k in y])
    x = layer(unit(z), m.fc0.weight, m.fc0.bias)
    x = x + share * layer(unit(embedded), m.proj_embedd.weight, m.proj_embedd.bias)
    for number in (1, 2):
        fc = m.get_submodule(f"fc{number}")
        x = layer(x, fc.weight, fc.bias)
    torch.testing.assert_close(m(z, y), x[:, None].expand(-1, m.copies, -1))


def test_at_0_labels_change_nothing_and_at_1_they_do(generator: TransitionalGenerator) -> None:
    z = torch.randn(2, 5)
    zeros, ones = torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.long)
    assert torch.equal(generator(z, zeros), generator(z, ones))
    generator.mapping.transition.fill_(1.0)
    assert not torch.allclose(generator(z, zeros), generator(z, ones))


def test_all_but_the_mapping_is_stylegan2s(generator: TransitionalGenerator) -> None:
    theirs = Generator(16, 3, 0, latent=5, style=6, base=64, widest=8, mapping_layers=3).state_dict()
    more = {"embed.weight", "embed.bias", "proj_embedd.weight", "proj_embedd.bias", "transition"}
    assert generator.state_dict().keys() - theirs.keys() == {f"mapping.{name}" for name in more}
    assert theirs.keys() <= generator.state_dict().keys()


@pytest.mark.parametrize("make", [TransitionalGenerator, TransitionalDiscriminator])
def test_without_classes_there_is_no_transition(make: Any) -> None:
    with pytest.raises(ValueError, match="num_classes=0"):
        make(16, 3, 0, base=64, widest=8)


def test_called_the_critic_knows_no_labels_and_its_second_score_is_a_projection() -> None:
    torch.manual_seed(0)
    critic = TransitionalDiscriminator(16, 3, 4, base=64, widest=8, group=2)
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    alone, of_class = critic.scores(images, labels)
    torch.testing.assert_close(critic(images, labels), alone)
    torch.testing.assert_close(critic(images), alone)
    others, of_others = critic.scores(images, labels.flip(0))
    assert torch.equal(alone, others)
    assert not torch.allclose(of_class, of_others)
    names = {name.removeprefix("b4.").split(".")[0] for name in critic.state_dict() if name.startswith("b4.")}
    assert names == {"conv", "fc", "out_uc", "out_c"}  # as released
    assert "transition" in critic.state_dict()
    x, vectors = critic.b4.features(critic._lowest(images)), critic.mapping(labels)
    written = [
        (critic.b4.out_c.weight @ f / math.sqrt(8) + critic.b4.out_c.bias) @ v / math.sqrt(8)
        for f, v in zip(x, vectors, strict=True)
    ]
    torch.testing.assert_close(of_class, torch.stack(written))
