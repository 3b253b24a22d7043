"""The class-wise Hessian of a run: is a rare class at a minimum or on a saddle?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evenhand import atomic
from evenhand.data.prepared import Data
from evenhand.errors import UserError, did_you_mean
from evenhand.measure.hessian import ClassSpectrum, class_spectra, sample_spectrum
from evenhand.randomness import dice
from evenhand.report.charts.hessian import plot_dynamics, plot_spectra
from evenhand.run.opening import OpenRun, open_run
from evenhand.tasks.classify import CLASSIFY

WHOLE = "all classes"


def study(
    folder: Path,
    *,
    classes: Sequence[str] | None = None,
    whole: bool = False,
    every_checkpoint: bool = False,
    steps: int = 64,
    probes: int = 1,
    max_samples: int = 512,
) -> dict[str, Any]:
    """Spectra of the plain cross-entropy on training images (an adaptation's: the source's), class by class.

    ``whole`` takes one spectrum of all classes instead. Writes hessian.json and plots.
    """
    if whole and classes:
        raise UserError("--whole is one spectrum of all classes; leave out --class")
    names: list[str | None] = [None]
    if every_checkpoint:
        names = [path.name for path in sorted(folder.glob("epoch-*.pt"))]
        if not names:
            raise UserError(f"{folder} kept no checkpoints: train with --set run.keep_every=10")
    history: dict[str, list[tuple[float, float, float]]] = {}
    rows: list[dict[str, Any]] = []
    spectra: dict[str, ClassSpectrum] = {}
    data: Data | None = None
    for name in names:
        run = open_run(folder, name=name)
        data = data or run.data()
        how = {"steps": steps, "probes": probes, "max_samples": max_samples}
        spectra = {WHOLE: of_all_classes(run, data, **how)} if whole else of_run(run, data, classes, **how)
        epoch = run.epoch
        for label, result in spectra.items():
            s = result.spectrum
            history.setdefault(label, []).append((epoch, s.minimum, s.maximum))
            rows.append({
                "class": label, "checkpoint": run.checkpoint, "epoch": round(epoch, 2), "samples": result.samples,
                "loss": result.loss, "gradient_norm": result.gradient_norm, "minimum": s.minimum,
                "maximum": s.maximum, "ratio": s.ratio, "trace": s.trace, "probes": probes, "error": s.error,
                "eigenvalues": s.eigenvalues.tolist(), "weights": s.weights.tolist(),
            })  # fmt: skip
    atomic.write_json(folder / "hessian.json", rows)
    plot_spectra({k: v.spectrum for k, v in spectra.items()}, folder / "hessian.svg", title=folder.name)
    if every_checkpoint:
        plot_dynamics(history, folder / "hessian-dynamics.svg", title=folder.name)
    _print(rows, probes)
    print(f"{folder / 'hessian.json'}  {folder / 'hessian.svg'}")
    return {"rows": rows}


def of_run(
    run: OpenRun,
    data: Data,
    classes: Sequence[str] | None = None,
    *,
    steps: int = 64,
    probes: int = 1,
    max_samples: int = 512,
) -> dict[str, ClassSpectrum]:
    """Spectra by class name, on training samples without augmentation, BatchNorm in eval mode.

    Of a class with more than ``max_samples`` it takes some at random, the same for every run on these data.
    """
    stream, (net, scaled_loss) = data.labelled, _task(run)
    for name in classes or ():
        if name not in stream.classes:
            raise UserError(f"no class is called '{name}'; {did_you_mean(name, stream.classes)}")
    wanted = [stream.classes.index(name) for name in classes or stream.classes]
    assert stream.labels is not None
    found: dict[str, ClassSpectrum] = {}
    for k in wanted:
        mine = _some((stream.labels == k).nonzero()[:, 0], max_samples, k)
        images = run.method.data.see(stream.fetch(mine))
        spectrum = class_spectra(
            net, images, stream.labels[mine], [k], steps=steps, probes=probes, max_samples=None, loss=scaled_loss,
            generator=dice(0, "hessian", k),
        )  # fmt: skip
        found[stream.classes[k]] = spectrum[k]
    return found


def of_all_classes(
    run: OpenRun, data: Data, *, steps: int = 64, probes: int = 1, max_samples: int = 512
) -> ClassSpectrum:
    """One spectrum of the task loss, on training images at random without regard to class, the same for every run."""
    stream, (net, scaled_loss) = data.labelled, _task(run)
    rows = _some(torch.arange(len(stream)), max_samples)
    assert stream.labels is not None
    return sample_spectrum(
        net, run.method.data.see(stream.fetch(rows)), stream.labels[rows],
        loss=scaled_loss, steps=steps, probes=probes, generator=dice(0, "hessian"),
    )  # fmt: skip


def _some(rows: Tensor, most: int, *which: int) -> Tensor:
    """At most so many rows, at random: the first of a folder may all be of one session, or of one author."""
    return rows[torch.randperm(len(rows), generator=dice(0, "hessian", "rows", *which))[:most]]


def _task(run: OpenRun) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    """The whole network that is judged, and the cross-entropy of its logits, scaled as in training.

    A copy, because an average and the features of a second stage are frozen: their curvature counts all the same.
    """
    if run.method.task is not CLASSIFY:
        raise UserError(f"curvature is of a classifier's loss; {run.folder} is a run of task {run.method.task.name}")
    method: Any = run.method
    if method.network() is None:
        raise UserError(f"curvature is of a network's weights; the method of {run.folder} shows none (network())")
    net = copy.deepcopy(method.network()).requires_grad_(True)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(method.logit_scale * logits, target)

    return net, loss


def _print(rows: list[dict[str, Any]], probes: int) -> None:
    heads = ("class", "checkpoint", "images", "loss", "|grad|", "λ min", "λ max", "ratio", "trace")
    table = Table(*heads, box=None)
    for r in rows:
        values = (r["loss"], r["gradient_norm"], r["minimum"], r["maximum"], r["ratio"], r["trace"])
        table.add_row(r["class"], r["checkpoint"], str(r["samples"]), *(f"{value:.3g}" for value in values))
    Console().print(table)
    few = "one random probe, so only its order of magnitude holds" if probes == 1 else f"{probes} random probes"
    print(f"trace: an estimate from {few}; --probes sets how many")
