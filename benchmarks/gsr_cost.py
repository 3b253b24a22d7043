"""Time of one gSR term, forward and backward, ÷ the same through exact singular values, in the same run; and that of a
whole generator step with the term ÷ one without.

    OMP_NUM_THREADS=1 python benchmarks/gsr_cost.py [--repeats 3] [--device cpu]

The tables are those of real generators: gain and bias of every class at both conditional BatchNorm layers of every
block. "Warm" is a training step (four power iterations from the last vectors), "cold" a call without state; the
references take torch's batched singular values, or the eigenvalues of the smaller Gram matrix, layer by layer. All
are interleaved; a ratio is the median over the repeats of the ratio in one. On the CPU the process's own time is
taken, so that a busy machine matters little; small generators are repeated more often.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from evenhand.nets.gan import ResDiscriminator, ResGenerator
from evenhand.pieces.spectral import conditional_parameters, gsr_loss, inverse_effective_number, near_square

GENERATORS = {  # name: (classes, widths of the conditional layers)
    "SNGAN 32, CIFAR-10": (10, [256] * 6),
    "BigGAN 32, CIFAR-100": (100, [384] * 6),
    "BigGAN 64, LSUN-5": (5, [1280, 640, 640, 320, 320, 160, 160, 80]),
    "BigGAN 64, iNaturalist": (1010, [1280, 640, 640, 320, 320, 160, 160, 80]),
}


def by_svd(matrices: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrices)[:, 0].square()


def by_eigenvalues(matrices: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrices @ matrices.mT)[:, -1]


def exact_loss(tables: list[Tensor], counts: Tensor, squares: Callable[[Tensor], Tensor]) -> Tensor:
    weights = inverse_effective_number(counts).to(tables[0])
    losses = [(weights * squares(t.view(-1, *near_square(t.shape[1])))).sum() for t in tables]
    return torch.stack(losses).sum()


def timed(loss: Callable[[], Tensor], tables: list[Tensor], device: str) -> float:
    for table in tables:
        table.grad = None
    if device == "cpu":
        start = time.process_time()
        loss().backward()
        return 1e3 * (time.process_time() - start)
    torch.cuda.synchronize()
    start = time.perf_counter()
    loss().backward()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def whole_step(width: int, repeats: int, batch: int = 32, classes: int = 10) -> None:
    """A generator's forward and backward pass through the discriminator, SNGAN at 32 pixels."""
    torch.manual_seed(0)
    draws = ResGenerator(size=32, num_classes=classes, width=width)
    tells = ResDiscriminator(size=32, num_classes=classes, head="projection", width=width).requires_grad_(False)
    z, y, counts = torch.randn(batch, draws.latent), torch.arange(batch) % classes, torch.linspace(500, 5, classes)
    state: dict[str, Tensor] = {}
    tables = conditional_parameters(draws)

    def plain() -> Tensor:
        return -tells(draws(z, y), y).score.mean()

    losses: list[Callable[[], Tensor]] = [
        plain,
        lambda: plain() + gsr_loss(*tables, counts, state=state),
        lambda: plain() + exact_loss([*tables[0], *tables[1]], counts, by_svd),
    ]
    learnt = list(draws.parameters())
    rows = [[timed(loss, learnt, "cpu") for loss in losses] for _ in range(repeats + 1)][1:]
    ours, exact = (statistics.median(row[i] / row[0] for row in rows) for i in (1, 2))
    print(
        f"| SNGAN 32, width {width} | {statistics.median(row[0] for row in rows):.0f} ms | {ours:.3f} | {exact:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of gSR against exact singular values")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {args.device}, {threads} threads\n")
    print("| generator | classes | matrices | warm | warm ÷ SVD | warm ÷ eigenvalues | cold ÷ SVD |")
    print("|---|---|---|---|---|---|---|")
    for name, (classes, widths) in GENERATORS.items():
        random = torch.Generator().manual_seed(0)
        tables = [
            (torch.randn(classes, width, generator=random) / width**0.5).to(args.device).requires_grad_()
            for width in widths * 2
        ]
        gains, biases = tables[: len(widths)], tables[len(widths) :]
        counts = torch.linspace(500, 5, classes)
        state: dict[str, Tensor] = {}
        losses: list[Callable[[], Tensor]] = [
            lambda g=gains, b=biases, n=counts, s=state: gsr_loss(g, b, n, state=s),
            lambda g=gains, b=biases, n=counts: gsr_loss(g, b, n),
            lambda t=tables, n=counts: exact_loss(t, n, by_svd),
            lambda t=tables, n=counts: exact_loss(t, n, by_eigenvalues),
        ]
        values = torch.stack([loss().detach() for loss in losses])  # also the warm-up
        torch.testing.assert_close(values, values[2].expand(4), rtol=1e-4, atol=0)
        repeats = max(args.repeats, 3000 // (len(tables) * classes))
        rows = [[timed(loss, tables, args.device) for loss in losses] for _ in range(repeats)]
        warm = statistics.median(row[0] for row in rows)
        over_svd, over_eigen, cold = (
            statistics.median(row[i] / row[j] for row in rows) for i, j in ((0, 2), (0, 3), (1, 2))
        )
        print(f"| {name} | {classes} | {len(tables) * classes} | {warm:.1f} ms ", end="")
        print(f"| {over_svd:.3f} | {over_eigen:.3f} | {cold:.2f} |")
    print("\n| generator, batch 32 on the CPU | step | with gSR ÷ step | with SVD ÷ step |\n|---|---|---|---|")
    for width in (8, 16, 64):
        whole_step(width, args.repeats)


if __name__ == "__main__":
    main()
