"""A network with its optimiser, and what happens between backward and step.

A classifier has one player, a GAN two, a domain-adversarial method two with different radii. The player scales
the loss under float16, averages gradients over processes, clips, steps, and keeps the moving average; the
method decides what is a loss and when to step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evenhand import parallel
from evenhand.pieces.clipping import clip_parts
from evenhand.pieces.sam import SAM

Precision = Literal["float32", "bfloat16", "float16"]


class Player:
    """``backward`` as often as needed, ``last=True`` the last time, then ``step``.

    clip: largest gradient norm, of all or, with clip_apart, of each part; ema: decay of the averaged copy used for
    evaluation; precision: autocast type of forward passes (float16 scales the loss); freeze_bn: SAM's second pass
    leaves BatchNorm's running statistics alone.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clip: float | None = None,
        clip_apart: bool = False,
        ema: float | None = None,
        ema_warm: bool = False,
        precision: Precision = "float32",
        freeze_bn: bool = True,
    ) -> None:
        self.net = parallel.join_batchnorm(net) if parallel.world() > 1 else net
        self.optimizer = optimizer
        self.clip, self.clip_apart = clip, clip_apart
        self.ema, self.ema_warm = ema, ema_warm
        self.averaged = 0  # steps in the average
        self.precision = precision
        self.freeze_bn = freeze_bn
        self.device = next(net.parameters()).device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "float16")
        self.average = copy.deepcopy(net).requires_grad_(False) if ema is not None else None
        self._joint = False  # the gradients are the processes' mean already

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def autocast(self) -> AbstractContextManager[Any]:
        """Forward passes go here; a no-op under float32."""
        enabled = self.precision != "float32"
        dtype = getattr(torch, self.precision) if enabled else torch.bfloat16
        return torch.autocast(self.device.type, dtype=dtype, enabled=enabled)

    def backward(self, loss: Tensor, *, last: bool = False) -> None:
        """``last``: nothing is added to the gradients before ``ascent`` or ``step``, so processes average meanwhile."""
        meanwhile = parallel.averaging(self.parameters, parallel.local_statistics(self.net)) if last else nullcontext()
        with meanwhile:
            self.scaler.scale(loss).backward()
        self._joint = last

    def _join(self) -> None:
        if not self._joint:
            parallel.average_gradients(self.parameters, parallel.local_statistics(self.net))
        self._joint = False

    @contextmanager
    def ascent(self) -> Iterator[Tensor]:
        """Inside, the weights stand at the worst point of the SAM ball; the joint gradient gives the direction.

        Yields that gradient's norm, free of the loss scale; 0 where float16 overflowed and the step will be skipped.
        """
        if not isinstance(self.optimizer, SAM):
            raise TypeError(f"ascent needs a SAM optimiser, got {type(self.optimizer).__name__}")
        self._join()
        with self.optimizer.ascent(self.net if self.freeze_bn else None) as length:
            yield (length / self.scaler.scale(torch.ones_like(length))).nan_to_num(0.0, 0.0)

    def step(self, *, follow: bool = True) -> None:
        """Average over processes, unscale, clip, step, forget the gradients, move the average unless told not to."""
        self._join()
        self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            clip_parts(self.optimizer.param_groups if self.clip_apart else [{"params": self.parameters}], self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if follow:
            self.follow()

    @torch.no_grad()
    def follow(self) -> None:
        """Move the average: part of ``step``, or after the last of several steps."""
        if self.average is None or self.ema is None:
            return
        self.averaged += 1
        decay = min(self.ema, (1 + self.averaged) / (10 + self.averaged)) if self.ema_warm else self.ema
        torch._foreach_lerp_(list(self.average.parameters()), list(self.net.parameters()), 1.0 - decay)
        for mine, theirs in zip(self.average.buffers(), self.net.buffers(), strict=True):
            mine.copy_(theirs)

    def judged(self) -> nn.Module:
        """The network that evaluation uses: the average if there is one, in eval mode."""
        return (self.average if self.average is not None else self.net).eval()

    def state(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "averaged": self.averaged,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        if state["optimizer"] is not None:  # a model to be used, not trained on, has none
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
            self.averaged = state["averaged"]
