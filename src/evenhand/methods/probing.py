"""A radius for SAM by rule: short trainings from the weights as they are, judged on held-out labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from pydantic import Field

from evenhand.data.loader import Loader
from evenhand.data.stream import Streams
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.pieces.radius import pick_rho
from evenhand.randomness import mix
from evenhand.settings import Settings


class Auto(Settings):
    """How ``rho = "auto"`` picks the radius: short trainings, judged on validation."""

    steps: int = Field(200, gt=0, description="of each training")
    shares: list[float] = Field(
        [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2], description="radii to try, as shares of the weight norm, rising"
    )
    tolerance: float = Field(0.02, ge=0, description="of the score: what the radius may cost")


def search_rho(
    method: Recogniser,
    auto: Auto,
    probe: Callable[[float, int], Recogniser],
    score: Callable[[Recogniser], float],
    streams: Streams,
    clock: Callable[[int], Progress],
    unit: float,
    chance: float,
) -> float:
    """``pick_rho`` of ``auto.shares`` times ``unit``; a function of weights, data and seed.

    ``probe(rho, seed)`` is a method that trains with that radius on one feed; it starts from the weights of ``method``,
    sees the same batches and draws the same numbers whatever the radius, and ``clock`` tells it the time of each step.
    ``chance`` is the score of who has learnt nothing.
    """
    assert method.player is not None
    seed, device = mix(method.seed, "rho"), method.player.device
    weights = method.player.net.state_dict()

    def trained(rho: float) -> float:
        torch.manual_seed(seed)
        one = probe(rho, seed)
        assert one.player is not None
        for net in filter(None, (one.player.net, one.player.average)):
            net.load_state_dict(weights)
        ((name, feed),) = one.feeds(streams).items()
        stream = feed.stream if not isinstance(feed.stream, str) else streams[feed.stream]
        loader = Loader(streams, feed, seed=seed, device=device, workers=stream.workers)
        for step, batch in enumerate(loader.iterate(0, auto.steps)):
            one.schedule(clock(step))
            one.update({name: batch})
        finite = all(bool(p.isfinite().all()) for p in one.player.parameters)
        found = score(one) if finite else math.nan  # diverged: that radius fails
        if rho == 0 and not found - chance > auto.tolerance:  # nor where it diverged
            warnings.warn(
                f"rho = 'auto': {auto.steps} steps without SAM come to {found:.3f} where chance is {chance:.3f}, too "
                "little to tell radii apart: raise method.auto.steps, or give a radius",
                stacklevel=2,
            )
        return found

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return pick_rho(trained, [share * unit for share in auto.shares], tolerance=auto.tolerance, chance=chance)
