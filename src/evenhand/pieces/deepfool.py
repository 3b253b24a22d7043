"""DeepFool: about how far a sample is from another class, by steps to the nearest linearised boundary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evenhand.nets.modes import evaluating
from evenhand.precision import without_tf32


def deepfool_norm(model: nn.Module, x: Tensor, *, iterations: int = 50, overshoot: float = 0.02) -> Tensor:
    """(N,) norm of the smallest perturbation found that changes the class; exact for a linear ``model``, which gives

    ``min_k (z_y - z_k) / ||w_y - w_k||`` over logits z (N, K) and their gradients w. The steps add up; each is tried
    ``1 + overshoot`` as long, which the norm leaves out. Samples still unchanged after ``iterations`` keep the norm
    reached, those without any gradient get the largest float. Eval mode meanwhile; costs K backward passes a step.
    """
    if iterations < 1 or not overshoot >= 0:
        raise ValueError(f"iterations={iterations}, overshoot={overshoot}: use at least 1 and 0, e.g. 50 and 0.02")
    with evaluating(model), torch.autocast(x.device.type, enabled=False), without_tf32():
        x = x.detach()
        with torch.no_grad():
            label = model(x).argmax(1)
        r, active = torch.zeros_like(x), torch.arange(len(x), device=x.device)  # active: rows still of their class
        stuck = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for _ in range(iterations):
            length, step = _nearest_boundary(model, x[active] + (1 + overshoot) * r[active], label[active])
            lost = ~length.isfinite()
            stuck[active[lost]] = True
            active, step = active[~lost], step[~lost]
            r[active] += step
            if len(active):
                with torch.no_grad():
                    same = model(x[active] + (1 + overshoot) * r[active]).argmax(1) == label[active]
                active = active[same]
            if not len(active):
                break
        norm = torch.linalg.vector_norm(r.flatten(1), dim=1)
        return norm.masked_fill(stuck, torch.finfo(norm.dtype).max)


def _nearest_boundary(model: nn.Module, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) distance to the nearest linearised boundary, inf if there is none, and the step onto it, of x's shape."""
    with torch.enable_grad():
        x = x.requires_grad_()
        logits = model(x)
        own = logits.gather(1, label[:, None])[:, 0]
        margins = own[:, None] - logits  # (n, K)
        best, step = torch.full_like(own, torch.inf), torch.zeros_like(x)
        for k in range(logits.shape[1]):
            (w,) = torch.autograd.grad(margins[:, k].sum(), x, retain_graph=True)
            norm = torch.linalg.vector_norm(w.flatten(1), dim=1)
            length = torch.where((label != k) & (norm > 0), margins[:, k] / norm, torch.inf)
            nearer = length < best
            unit = w / norm.clamp_min(torch.finfo(x.dtype).tiny).view(-1, *[1] * (x.ndim - 1))
            wide = nearer.view(-1, *[1] * (x.ndim - 1))
            best = torch.where(nearer, length, best)
            step = torch.where(wide, -length.view(wide.shape) * unit, step)
    return best.detach(), step.detach()
