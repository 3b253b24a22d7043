"""Adversarial losses and what steadies them: R1, LeCam; and the labels a generator is asked for.

Scores are raw discriminator outputs, of any shape; each loss is a mean over them, in float32 at least.

>>> real, fake = torch.tensor([1.0, 0.5]), torch.tensor([-1.0, 0.0])
>>> discriminator_loss(real, fake, "hinge"), generator_loss(fake, "hinge")
(tensor(0.7500), tensor(0.5000))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand import parallel
from evenhand.given import as_tensor
from evenhand.pieces.losses import PerClass

Adversarial = Literal["relativistic", "hinge", "non-saturating", "least-squares"]


def discriminator_loss(real: Tensor, fake: Tensor, kind: Adversarial) -> Tensor:
    """What the discriminator minimises; ``fake`` scores images detached from the generator.

    relativistic    -log sigmoid(real - fake), paired by position
    hinge           max(0, 1 - real) + max(0, 1 + fake)
    non-saturating  -log sigmoid(real) - log sigmoid(-fake)
    least-squares   (real - 1)^2 / 2 + fake^2 / 2
    """
    real, fake = _wide(real), _wide(fake)
    if kind == "relativistic":
        return F.softplus(fake - _paired(real, fake)).mean()
    if kind == "hinge":
        return F.relu(1 - real).mean() + F.relu(1 + fake).mean()
    if kind == "non-saturating":
        return F.softplus(-real).mean() + F.softplus(fake).mean()
    if kind == "least-squares":
        return (real - 1).square().mean() / 2 + fake.square().mean() / 2
    raise ValueError(_unknown(kind))


def generator_loss(fake: Tensor, kind: Adversarial, real: Tensor | None = None) -> Tensor:
    """What the generator minimises; only the relativistic loss needs ``real``, scores of the last real batch.

    relativistic    -log sigmoid(fake - real), paired by position
    hinge           -fake
    non-saturating  -log sigmoid(fake)
    least-squares   (fake - 1)^2 / 2
    """
    fake = _wide(fake)
    if kind == "relativistic":
        return F.softplus(_paired(real, fake) - fake).mean()
    if kind == "hinge":
        return -fake.mean()
    if kind == "non-saturating":
        return F.softplus(-fake).mean()
    if kind == "least-squares":
        return (fake - 1).square().mean() / 2
    raise ValueError(_unknown(kind))


def r1_penalty(discriminate: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """``|grad_x D(x)|^2 / 2``, mean over real ``images`` (N, ...); differentiable, for the discriminator's loss.

    Applied every k steps only, it is multiplied by k.
    """
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        (slope,) = torch.autograd.grad(discriminate(x).sum(), x, create_graph=True)
    return slope.flatten(1).square().sum(1).mean() / 2


class LeCam:
    """LeCam regularisation: scores shall not run away from the moving average of the other side's.

    ``mean relu(D(x) - fake)^2 + mean relu(real - D(G))^2`` with averages ``real`` and ``fake`` of batch means, over
    all processes; without ``one_sided`` the relu is left out, as the papers print it. A call moves the averages,
    then returns the penalty of its batch, which is zero in the first ``start`` calls. The averages begin with the
    first batch's means, or ``from_zero``, as NoisyTwins' do.
    """

    def __init__(
        self, decay: float = 0.99, start: int = 1000, *, one_sided: bool = True, from_zero: bool = False
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} is outside [0, 1): use 0.99")
        self.decay, self.start, self.one_sided, self.from_zero = decay, start, one_sided, from_zero
        self.calls = 0
        self.averages = torch.zeros(2)  # of the scores of real and of fake images

    def __call__(self, real: Tensor, fake: Tensor) -> Tensor:
        means = parallel.mean(torch.stack([_wide(scores.detach()).mean() for scores in (real, fake)]))
        kept = self.decay if self.calls or self.from_zero else 0.0
        self.averages = torch.lerp(means, self.averages.to(means), kept)
        self.calls += 1
        if self.calls <= self.start:
            return means.new_zeros(())
        above, below = _wide(real) - self.averages[1], self.averages[0] - _wide(fake)
        if self.one_sided:
            above, below = F.relu(above), F.relu(below)
        return above.square().mean() + below.square().mean()

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages, "calls": self.calls}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.averages, self.calls = state_dict["averages"].clone(), int(state_dict["calls"])


def sample_labels(
    count: int, num_classes: int, generator: torch.Generator, *, frequencies: PerClass | None = None
) -> Tensor:
    """Labels (count,) for a generator on the CPU: uniform, or with chances ``1 / frequencies``, with replacement."""
    if frequencies is None:
        return torch.randint(num_classes, (count,), generator=generator)
    n = as_tensor(frequencies).detach().to("cpu", torch.float64)
    if n.shape != (num_classes,) or not (n > 0).all():
        raise ValueError(f"frequencies={n.tolist()}: expected {num_classes} positive numbers, one per class")
    return torch.multinomial(n.min() / n, count, replacement=True, generator=generator)


def _paired(real: Tensor | None, fake: Tensor) -> Tensor:
    if real is None or real.shape != fake.shape:
        found = "no scores" if real is None else f"scores of shape {tuple(real.shape)}"
        raise ValueError(f"the relativistic loss pairs real with fake: {found} given for {tuple(fake.shape)} fakes")
    return real


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _unknown(kind: str) -> str:
    return f"kind='{kind}': choose 'relativistic', 'hinge', 'non-saturating' or 'least-squares'"
