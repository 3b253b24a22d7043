"""What is said aloud of a generator's classes: much alike, hardly drawn, exploding; or why none of it will be."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from evenhand.data.stream import Stream
from evenhand.measure.manifold import FEWEST

EXPLODED = 2.0  # times the median class's spectral norm
RARE = 0.1  # of an even share: below, a class is hardly drawn
ENOUGH = 20  # images that an even share would be, before that is said


def warn_of_silence(peers: Stream, drawn: int, *, asked: bool, annotated: bool) -> None:
    """Before training: why the collapse alarm will not sound, whatever is ``drawn`` and compared with ``peers``.

    Of all classes, or of those that have too few ``peers``. Classes are those ``asked`` for, or an annotator's.
    """
    K = len(peers.classes)
    if K < 2:
        return
    counts = [0] * K if peers.target is None else peers.counts
    asks = [(drawn + K - 1 - k) // K if asked else drawn for k in range(K)]  # in turn; others may be of any class
    undrawn, few = ([k for k in range(K) if of_class[k] < FEWEST] for of_class in (asks, counts))
    if not (asked or annotated):
        mute, why = [], "nobody names the classes of what is drawn: set needs.annotator to a classifier's recipe or run"
    elif undrawn:
        more = f"set method.measure.judge_samples = {FEWEST * K}"
        mute, why = undrawn, f"{drawn} drawn images are under {FEWEST} of each class: {more}"
    elif few:
        remedy = "add some" if peers.name == "labelled" else "add some, or hold out none"
        mute, why = few, f"'{peers.name}' has under {FEWEST} images of each to compare with: {remedy}"
    else:
        return
    named = ", ".join(peers.classes[k] for k in mute[:5]) + (f" and {len(mute) - 5} more" if len(mute) > 5 else "")
    of = f" for {len(mute)} of {K} classes ({named})" if 0 < len(mute) < K else ""
    warnings.warn(f"no collapse alarm{of}, since {why}", stacklevel=2)


def warn_of_collapse(patterns: Sequence[float | None], classes: Sequence[str], *, below: float) -> list[int]:
    """The classes whose drawn images are much alike, which are named."""
    collapsed = [k for k, value in enumerate(patterns) if value is not None and value < below]
    if collapsed:
        worst = sorted(collapsed, key=lambda k: patterns[k] or 0.0)
        warnings.warn(
            f"drawn images of class {_named(worst, patterns, classes)} are much alike: they show below {below:g} of "
            "the patterns of as many real ones; mode collapse?",
            stacklevel=2,
        )
    return collapsed


def warn_of_absence(shares: Tensor, count: int, classes: Sequence[str]) -> None:
    """Classes hardly drawn, once enough images were that an even share could not be missed."""
    even = 1 / len(shares)
    rare = sorted(torch.where(shares < RARE * even)[0].tolist(), key=lambda k: float(shares[k]))
    if rare and count * even >= ENOUGH:
        named = _named(rare, (100 * shares).tolist(), classes)
        warnings.warn(
            f"class {named} is hardly drawn: in brackets its share in per cent, where an even one were "
            f"{100 * even:.2g}",
            stacklevel=2,
        )


def warn_of_explosion(sigma: Sequence[float], classes: Sequence[str]) -> None:
    """Of spectral norms (K,), those far above the median class's."""
    usual = median(sigma)
    wild = sorted((k for k, value in enumerate(sigma) if value > EXPLODED * usual), key=lambda k: -sigma[k])
    if wild:
        warnings.warn(
            f"the spectral norm of class {_named(wild, sigma, classes)} is over {EXPLODED:g} times the median class's "
            f"({usual:.2f}); collapse often follows: see [method.gsr]",
            stacklevel=2,
        )


def _named(classes: Sequence[int], values: Sequence[float | None], names: Sequence[str]) -> str:
    told = [f"'{names[k]}' ({values[k]:.2f})" for k in classes[:5]]
    return ", ".join(told + [f"{len(classes) - 5} more"] * (len(classes) > 5))
