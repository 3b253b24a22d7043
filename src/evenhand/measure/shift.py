"""How far apart two domains are, and which model to trust on a target without labels.

A label-free score takes target logits (N, K), (almost) all of them, and returns a float, higher is better; it ranks
checkpoints and settings, it does not estimate accuracy. What each can be fooled by:

- ``entropy_score``: sure predictions. Best for a model that calls everything class 0.
- ``infomax_score``: sure predictions spread evenly over the classes; a collapse scores 0, the worst. Unfair to the
  right model where the target's classes are very uneven.
- ``density_score``: every sample has many near neighbours. Best for predictions all alike, sure or clueless, so
  look at ``infomax_score`` too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def domain_accuracy(source: Tensor, target: Tensor) -> float:
    """Share of rows whose domain the discriminator's logits get right, mean of the two domains: 0.5 is chance.

    Near 1 the features do not mix (the discriminator wins); at 0.5 they do, or the discriminator has died.
    """
    _rows("source", source, 1, axes=(1,))
    _rows("target", target, 1, axes=(1,))
    return float(((source >= 0).double().mean() + (target < 0).double().mean()) / 2)


def proxy_a_distance(
    source: Tensor,
    target: Tensor,
    *,
    held_out: float = 0.2,
    penalty: float = 1e-2,
    generator: torch.Generator | None = None,
) -> float:
    """``2 (1 - 2 e)``, e the held-out error of a linear domain classifier on features (S, d) and (T, d).

    0 for domains no line can tell apart (by chance a little below), 2 for separable ones. The classifier minimises the
    logistic loss plus ``penalty / 2 |w|^2`` on standardised features, each domain weighing half; the authors
    run SGD for ten epochs. Without a generator the split is that of seed 0.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out}: a share between 0 and 1, such as 0.2")
    _rows("source", source, 2)
    _rows("target", target, 2)
    if source.shape[1] != target.shape[1]:
        raise ValueError(f"source has {source.shape[1]} features, target {target.shape[1]}: use one network for both")
    generator = generator or torch.Generator().manual_seed(0)
    source_test, source_train = _split(source, held_out, generator)
    target_test, target_train = _split(target, held_out, generator)
    scale, centre = torch.std_mean(torch.cat([source_train, target_train]), 0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    w = _logistic((source_train - centre) / scale, (target_train - centre) / scale, penalty)  # (d + 1,)
    guesses = [(part - centre) / scale @ w[:-1] + w[-1] for part in (source_test, target_test)]
    return 2 * (2 * domain_accuracy(*guesses) - 1)


def target_entropy(logits: Tensor) -> float:
    """Mean entropy of the predictions, in nats: 0 is sure, log K clueless."""
    _rows("logits", logits, 1)
    return float(_entropy(logits.detach().double().softmax(1)).mean())


def entropy_score(logits: Tensor) -> float:
    """``-mean H(p)``, in [-log K, 0]."""
    return -target_entropy(logits)


def infomax_score(logits: Tensor) -> float:
    """``H(mean p) - mean H(p)``, the information between input and prediction, in [0, log K]."""
    return float(_entropy(logits.detach().double().softmax(1).mean(0))) - target_entropy(logits)


def density_score(logits: Tensor) -> float:
    """Soft neighbourhood density of the predicted probabilities, as its authors use it; in [0, log(N - 1)]."""
    return soft_neighbourhood_density(logits.softmax(1))


SCORES: dict[str, Callable[[Tensor], float]] = {
    "entropy": entropy_score,
    "infomax": infomax_score,
    "density": density_score,
}
"""Label-free scores by the names recipes use."""


def largest_share(logits: Tensor) -> float:
    """Share of samples that are given the class most often predicted: 1 is a collapse, 1/K the least."""
    return float(_shares(logits).max())


def effective_classes(logits: Tensor) -> float:
    """``exp H`` of the shares of predicted classes: 1 if all predictions are one class, K if they are spread evenly."""
    return math.exp(float(_entropy(_shares(logits))))


REMEDIES = {  # of each trouble, by a key that only one kind of [method] has
    "trade_off": {
        "wins": "raise method.trade_off or method.reversal.high, or lower method.optim_d.lr",
        "dead": "raise method.optim_d.lr, or lower method.reversal.high",
        "collapse": "lower method.trade_off, or method.mcc",
    },
    "domain_weight": {
        "wins": "raise method.domain_weight",
        "dead": "lower method.domain_weight",
        "collapse": "lower method.domain_weight or method.target_weight",
    },
    "entropy_weight": {"collapse": "lower method.entropy_weight"},
}


def adaptation_troubles(row: Mapping[str, float], keys: Collection[str] = ("trade_off",)) -> dict[str, str]:
    """What is wrong late in training, by kind; ``row`` is what an evaluation logs of the target.

    ``keys`` are those of the method's table, of which remedies speak; a method without any has none.

    - wins: the discriminator is right on 95 % or more.
    - dead: it is right on 45 to 55 %, its loss is log 2 within 0.02 (it says the same of all), and a line fitted afresh
      is right on 75 % or more (A-distance 1). At chance is where adaptation wants it: in a good run a line still finds
      a few per cent more, and with 80 held-out rows of a domain the distance itself is uncertain by 0.16.
    - collapse: a quarter or less of the classes are in use on the target.
    """
    found = {}
    told, apart = row.get("domain_accuracy"), row.get("a_distance", 0.0)
    if told is not None and told >= 0.95:
        found["wins"] = f"the discriminator wins (domain accuracy {told:.2f}, chance 0.5): the features do not mix"
    at_chance = told is not None and abs(told - 0.5) <= 0.05
    if at_chance and abs(row.get("domain_loss", 0.0) - math.log(2)) <= 0.02 and apart >= 1.0:
        found["dead"] = (
            f"the discriminator is dead (domain accuracy {told:.2f}, loss log 2) though the domains differ (A-distance "
            f"{apart:.2f} of 2)"
        )
    used, possible = row.get("effective_classes"), row.get("possible_classes", 1.0)
    if used is not None and used <= max(1.5, possible / 4) < possible:
        found["collapse"] = (
            f"predictions on the target collapse, unless it is so: {row.get('largest_share', 1.0):.0%} are one class, "
            f"about {used:.1f} of {possible:.0f} are in use"
        )
    known = next((remedies for key, remedies in REMEDIES.items() if key in keys), {})
    return {kind: f"{said}; {known[kind]}" if kind in known else said for kind, said in found.items()}


def principal_plane(features: Tensor) -> Tensor:
    """(N, 2) coordinates along the two directions of largest variance; each axis' largest entry is positive."""
    _rows("features", features, 2)
    centred = features.detach().double() - features.detach().double().mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False)[2][:2]  # (<= 2, d)
    signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
    points = centred @ (directions * signs).T
    return F.pad(points, (0, 2 - points.shape[1])).float()


@torch.no_grad()
def soft_neighbourhood_density(features: Tensor, *, temperature: float = 0.05, block: int = 256) -> float:
    """SND (Saito et al., 2021): mean entropy over samples of ``softmax_{j != i}(cos(f_i, f_j) / temperature)``.

    In [0, log(N - 1)]; comparable only between scores of the same N. Memory: ``block`` x N numbers, not N x N.
    """
    _rows("features", features, 2)
    if not temperature > 0 or block < 1:
        raise ValueError(f"temperature={temperature}, block={block}: use a positive temperature and block >= 1")
    unit = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)))
    total = 0.0
    for start in range(0, len(unit), block):
        close = unit[start : start + block] @ unit.T / temperature  # (B, N)
        own = torch.arange(start, start + len(close), device=close.device)[:, None]
        weights = close.scatter(1, own, -math.inf).softmax(1)
        total += float(_entropy(weights).double().sum())
    return total / len(unit)


def _shares(logits: Tensor) -> Tensor:
    _rows("logits", logits, 1)
    return torch.bincount(logits.argmax(1), minlength=logits.shape[1]).double() / len(logits)


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1)


def _split(features: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random ``share`` of the rows and the rest, at least one row each."""
    order = torch.randperm(len(features), generator=generator, device=generator.device).to(features.device)
    cut = min(max(1, round(share * len(features))), len(features) - 1)
    rows = features.detach().double()[order]
    return rows[:cut], rows[cut:]


def _logistic(source: Tensor, target: Tensor, penalty: float) -> Tensor:
    """(d + 1,) weights and bias, positive for source, at the minimum of the penalised loss."""
    w = source.new_zeros(source.shape[1] + 1, requires_grad=True)
    solver = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.softplus(-(source @ w[:-1] + w[-1])).mean() + F.softplus(target @ w[:-1] + w[-1]).mean()
        loss = loss / 2 + penalty / 2 * w[:-1].square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    return w.detach()


def _rows(name: str, x: Tensor, least: int, axes: tuple[int, ...] = (2,)) -> None:
    if x.ndim not in axes or len(x) < least:
        wanted = "(N,)" if axes == (1,) else "(N, d)"
        raise ValueError(f"{name} of shape {tuple(x.shape)}: expected {wanted} with N >= {least}")
