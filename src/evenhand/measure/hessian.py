"""Curvature of a loss at given weights: the Hessian's spectrum, overall or class by class.

The Hessian H (P x P) is only ever multiplied: H v is the gradient of <grad f, v>. A probe v1 of random signs
spans a Krylov space in which H is a small tridiagonal matrix T (Lanczos). The eigenvalues t_i of T are the
nodes, the squared first components of its eigenvectors the weights w_i, of the spectral density of H:
sum w_i = 1, sum w_i t_i = v1' H v1, sum w_i t_i^2 = |H v1|^2. The extreme nodes converge
first, to extreme eigenvalues of H.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evenhand.given import as_tensor
from evenhand.measure.lanczos import Hessian, Loss, lanczos
from evenhand.nets.modes import evaluating


@dataclass(frozen=True)
class Spectrum:
    """Nodes and weights of the spectral density, ascending, all probes together; float64 on the CPU."""

    eigenvalues: Tensor  # (M,)
    weights: Tensor  # (M,), sum 1
    minimum: float
    maximum: float
    trace: float  # P * sum(weights * eigenvalues), an estimate from the probes; exact when steps >= P
    error: float  # H has eigenvalues this near to `minimum` and to `maximum`; falls with steps

    @property
    def ratio(self) -> float:
        """Non-convexity |minimum / maximum|; 0 where the loss is flat."""
        if self.maximum == 0:
            return math.inf if self.minimum < 0 else 0.0
        return abs(self.minimum / self.maximum)

    def density(self, grid: Tensor | None = None, points: int = 10_000) -> tuple[Tensor, Tensor]:
        """Grid and sum_i w_i N(grid; t_i, s^2), s^2 = 1e-5 max(1, maximum - minimum).

        Without a grid: `points` from minimum - 0.01 to maximum + 0.01, s no finer than their spacing, and the
        values divided by their integral, because the outermost kernels are cut.
        """
        spread = self.maximum - self.minimum
        scale = math.sqrt(1e-5 * max(1.0, spread))
        whole = grid is None
        if grid is None:
            grid = torch.linspace(self.minimum - 0.01, self.maximum + 0.01, points, dtype=torch.float64)
            scale = max(scale, (spread + 0.02) / (points - 1))
        distance = (grid[:, None] - self.eigenvalues) / scale  # (G, M)
        values = torch.exp(-0.5 * distance**2) @ self.weights / (scale * math.sqrt(2 * math.pi))
        return grid, values / torch.trapezoid(values, grid) if whole else values


@dataclass(frozen=True)
class ClassSpectrum:
    """A class's spectrum beside what tells a saddle (small gradient) from weights that have not converged."""

    spectrum: Spectrum
    loss: float
    gradient_norm: float
    samples: int


def hessian_spectrum(
    loss: Loss,
    parameters: Iterable[Tensor],
    *,
    steps: int = 64,
    probes: int = 4,
    generator: torch.Generator | None = None,
    reorthogonalise: bool = True,
) -> Spectrum:
    """Spectrum of the Hessian of `loss` in `parameters`, by `probes` Lanczos runs of `steps` products each.

    `loss` is a closure on fixed data (no augmentation, no dropout, BatchNorm in eval mode). Its graph is
    built once and serves every product; (closure, weight) pairs are rebuilt at every product, one at a time.

    Memory: a basis of `steps` x P numbers in the parameters' precision, of which every new vector is freed.
    `reorthogonalise=False` keeps three vectors of float64 whatever `steps` is: extremes, trace and density
    stay, but an eigenvalue found early returns as close copies, which share its weight.

    With `steps` >= P the whole matrix costs less than the probes and is taken instead: eigenvalues and trace
    are exact, each weight is 1 / P. Without a generator the probes are those of seed 0.

    >>> w = torch.zeros(2, requires_grad=True)
    >>> spectrum = hessian_spectrum(lambda: 0.5 * (1 - w[0] * w[1]) ** 2, [w])
    >>> spectrum.minimum, spectrum.maximum, spectrum.ratio
    (-1.0, 1.0, 1.0)
    """
    for name, value in {"steps": steps, "probes": probes}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    hessian = Hessian(loss, parameters)
    return _spectrum(hessian, steps, probes, generator or torch.Generator().manual_seed(0), reorthogonalise)


def class_spectra(
    net: nn.Module,
    images: Tensor,
    labels: Tensor,
    classes: Sequence[int],
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    steps: int = 64,
    probes: int = 1,
    max_samples: int | None = 1024,
    chunk: int = 256,
    generator: torch.Generator | None = None,
    reorthogonalise: bool = True,
) -> dict[int, ClassSpectrum]:
    """Spectrum of the mean loss on each class's images, over the trainable weights, with `net` in eval mode.

    `images` (N, C, H, W) are normalised, not augmented, as a rule the training images; `loss(logits, labels)`
    is a mean. More than `max_samples` of a class are subsampled; up to `chunk` keep their graph, more are
    rebuilt in chunks. Probes and subset depend on the generator and the class, not on the other classes.
    """
    labels = as_tensor(labels)
    base = int(torch.randint(2**62, (), generator=generator or torch.Generator().manual_seed(0)))
    found = {}
    for label in classes:
        rows = (labels == label).nonzero().flatten().cpu()
        if not len(rows):
            raise ValueError(f"class {label} has no images; leave it out of classes")
        own = torch.Generator().manual_seed(base + label)
        if max_samples is not None and len(rows) > max_samples:
            rows = rows[torch.randperm(len(rows), generator=own)[:max_samples]].sort().values
        found[label] = sample_spectrum(
            net, images[rows], labels[rows], loss=loss, steps=steps, probes=probes, chunk=chunk, generator=own,
            reorthogonalise=reorthogonalise,
        )  # fmt: skip
    return found


def sample_spectrum(
    net: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    steps: int = 64,
    probes: int = 1,
    chunk: int = 256,
    generator: torch.Generator | None = None,
    reorthogonalise: bool = True,
) -> ClassSpectrum:
    """Spectrum of the mean loss on all these images, whatever their class; see ``class_spectra``."""
    rows = torch.arange(len(labels))
    parts = [
        (partial(_batch_loss, net, loss, images, labels, part), len(part) / len(rows)) for part in rows.split(chunk)
    ]
    with evaluating(net):
        hessian = Hessian(parts, [p for p in net.parameters() if p.requires_grad])
        own = generator or torch.Generator().manual_seed(0)
        spectrum = _spectrum(hessian, steps, probes, own, reorthogonalise)
    return ClassSpectrum(spectrum, hessian.loss, float(hessian.gradient.norm()), len(rows))


def top_eigenvalue(
    loss: Loss,
    parameters: Iterable[Tensor],
    *,
    iterations: int = 100,
    tolerance: float = 1e-3,
    generator: torch.Generator | None = None,
) -> float:
    """Eigenvalue of largest magnitude, which may be negative, by power iteration: two vectors of memory.

    Stops when the Rayleigh quotient v' H v changes by less than `tolerance` of itself.
    """
    hessian = Hessian(loss, parameters)
    generator = generator or torch.Generator().manual_seed(0)
    vector = torch.randn(hessian.size, dtype=torch.float64, generator=generator).to(hessian.device)
    vector /= vector.norm()
    value = math.inf
    for _ in range(iterations):
        image = hessian @ vector
        before, value = value, float(vector @ image)
        length = float(image.norm())
        if length == 0 or abs(value - before) <= tolerance * abs(value):
            break
        vector = image / length
    return value


def _spectrum(hessian: Hessian, steps: int, probes: int, generator: torch.Generator, reorthogonalise: bool) -> Spectrum:
    if steps >= hessian.size:
        columns = torch.eye(hessian.size, dtype=torch.float64, device=hessian.device)
        matrix = torch.stack([hessian @ column for column in columns]).cpu()
        nodes = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
        weights, errors = torch.full_like(nodes, 1 / len(nodes)), torch.zeros_like(nodes)
    else:
        shape = (steps if reorthogonalise else 0, hessian.size)
        basis = torch.empty(shape, dtype=hessian.dtype, device=hessian.device)
        runs = []
        for _ in range(probes):
            signs = 2 * torch.randint(2, (hessian.size,), generator=generator, device=generator.device) - 1
            runs.append(lanczos(hessian, signs.to(hessian.device, torch.float64), steps, basis))
        nodes, weights, errors = (torch.cat(parts) for parts in zip(*runs, strict=True))
        order = nodes.argsort()
        nodes, weights, errors = nodes[order], weights[order] / probes, errors[order]
    trace, error = hessian.size * float(weights @ nodes), float(max(errors[0], errors[-1]))
    return Spectrum(nodes, weights, float(nodes[0]), float(nodes[-1]), trace, error)


def _batch_loss(
    net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], images: Tensor, labels: Tensor, rows: Tensor
) -> Tensor:
    like = next(net.parameters())
    some = images[rows].to(like.device)
    seen = some.to(like.dtype) if some.is_floating_point() else some  # tokens are numbers of words
    return loss(net(seen), labels[rows].to(like.device))
