"""NoisyTwins: class embeddings with noise, and latents that agree on the class in spite of it.

A class-conditional StyleGAN on rare classes draws one image (its latent w ignores z) or another class's. Gaussian
noise turns each class's embedding into a small cloud, wider for rare classes; the Barlow Twins loss on the w of two
noise draws of the same (z, y) asks every dimension of w to be deaf to the noise and unlike the others, which only z
can provide. One line makes somebody else's mapping network noisy, another adds the loss:

    noise = EmbeddingNoise(mapping.embed, noise_scale(counts, sigma=0.75, alpha=0.99), torch.Generator())
    w = mapping(torch.cat([z, z]), torch.cat([y, y]))
    loss = loss + 0.01 * twins_loss(*w.chunk(2), off_diagonal=0.05)

Give the loss w as it leaves the mapping network: (N, d), before style mixing, truncation and copies for each layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evenhand import parallel
from evenhand.pieces.losses import PerClass
from evenhand.pieces.spectral import inverse_effective_number

EPSILON = 1e-5  # added to variances, BatchNorm's: a dead dimension correlates with nothing


def noise_scale(counts: PerClass, sigma: float, alpha: float) -> Tensor:
    """(K,) standard deviations with mean ``sigma``, in proportion to ``(1 - alpha) / (1 - alpha^n)``.

    This is what the authors ran: the thesis leaves out the division by the mean, which is 80 times less noise on
    CIFAR-10-LT. ``alpha=0`` gives every class the same noise.
    """
    if not sigma >= 0:
        raise ValueError(f"sigma={sigma}: use a standard deviation of at least 0, the authors 0.1 to 0.75")
    rarity = inverse_effective_number(counts, alpha)
    return (sigma * rarity / rarity.mean()).to(torch.get_default_dtype())


def twins_loss(first: Tensor, second: Tensor, *, off_diagonal: float) -> Tensor:
    """``sum_j (1 - c_jj)^2 + off_diagonal * sum_{j != k} c_jk^2``, c the ``cross_correlation`` of the twins' (N, d).

    Rows i are twins; both get gradients. In several processes each has the joint batch's loss, and parameters whose
    gradients are averaged over processes (``parallel.average_gradients``, DDP) get a single process's.
    """
    if not off_diagonal >= 0:
        raise ValueError(f"off_diagonal={off_diagonal}: a weight is at least 0, the paper's is 0.05")
    c = cross_correlation(first, second)
    diagonal = c.diagonal()
    return (1 - diagonal).square().sum() + off_diagonal * (c - diagonal.diag()).square().sum()


def cross_correlation(first: Tensor, second: Tensor) -> Tensor:
    """(d, d) correlation of each dimension of ``first`` with each of ``second``, over the rows of all processes."""
    if first.ndim != 2 or first.shape != second.shape:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"twins of shapes {shapes}: expected (N, d) twice; of copies for each layer take the first")
    if len(first) < 2 and parallel.world() == 1:
        raise ValueError(f"{len(first)} pair of twins has no correlation: draw at least 2")
    d = first.shape[1]
    with torch.autocast(first.device.type, enabled=False):
        both = torch.cat([first, second], 1).to(torch.promote_types(first.dtype, torch.float32))  # (N, 2d)
        sums = parallel.total(torch.cat([both.sum(0), both.new_tensor([len(both)])]))
        count = sums[-1].detach()
        centred = both - sums[:-1] / count
        products = torch.cat([centred[:, :d].T @ centred[:, d:], centred.square().sum(0).view(2, d)])
        covariance, a, b = (parallel.total(products) / count).split([d, 1, 1])  # biased, as BatchNorm's
        return covariance * (a.T + EPSILON).rsqrt() * (b + EPSILON).rsqrt()


def noisy(embedded: Tensor, labels: Tensor, scale: Tensor, generator: torch.Generator) -> Tensor:
    """Class embeddings (N, d) plus noise of their classes' ``scale`` (K,); labels are (N,), or one-hot (N, K)."""
    scale = scale.to(embedded.device)
    own = labels.to(scale) @ scale if labels.ndim == 2 else scale[labels]  # (N,)
    noise = torch.randn(embedded.shape, generator=generator, device=generator.device).to(embedded.device)
    return embedded + (own[:, None] * noise).to(embedded)


class EmbeddingNoise:
    """Adds ``noisy``'s noise to what ``embedding(labels)`` returns while it is in train mode; none in ``eval()``.

    A forward hook, so parameters keep their names. It must sit before the normalisation: in StyleGAN2 on
    ``mapping.embed``, of generator and discriminator. Sample, and average weights, with a copy in eval mode. Give
    each of the two, and each process, a ``generator`` of its own, and save its state to resume exactly.
    """

    def __init__(self, embedding: nn.Module, scale: Tensor, generator: torch.Generator) -> None:
        self.scale, self.generator = scale, generator
        self._hook = embedding.register_forward_hook(self._add)

    def remove(self) -> None:
        """Leave the embedding as it was found."""
        self._hook.remove()

    def _add(self, embedding: nn.Module, given: tuple[Any, ...], embedded: Tensor) -> Tensor:
        return noisy(embedded, given[0], self.scale, self.generator) if embedding.training else embedded
