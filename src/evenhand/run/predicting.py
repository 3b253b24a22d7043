"""A finished run in use: from paths, arrays or texts to class names and confidences, or to objects and their boxes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from evenhand.data.sources.files import REMEDY
from evenhand.data.sources.source import Samples, Source
from evenhand.errors import UserError
from evenhand.measure.frozen import backbone, kept_backbone, seen_by_backbone
from evenhand.methods.protocol import Finder, Recogniser
from evenhand.nets import HeadedNet
from evenhand.run.folder import told_streams
from evenhand.run.inputs import Inputs
from evenhand.run.opening import OpenRun, open_run
from evenhand.tasks.classify import CLASSIFY

DECODERS = 4  # threads that read images ahead
SCENES = 8  # whole images at a time


class Prediction(NamedTuple):
    """What the model says of one input."""

    name: str
    label: str
    confidence: float


class Ranking(NamedTuple):
    """The likeliest classes of one input, surest first."""

    name: str
    labels: tuple[str, ...]
    confidences: tuple[float, ...]


class Model:
    """A classifier out of a run's folder; neither its data nor the runs it needed have to be there.

    Confidences are calibrated where the run had a validation split: logits are divided by ``temperature``.
    """

    def __init__(self, run: OpenRun) -> None:
        if run.method.task is not CLASSIFY:
            raise UserError(f"{run.folder} is a run of task {run.method.task.name}: it predicts no classes")
        self.run, self.method = run, cast(Recogniser, run.method)
        self.facts, self.temperature = run.model.facts, run.model.temperature
        self.inputs = Inputs(run.recipe.data, self.method.data)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    @property
    def calibration(self) -> str:
        """What stands behind the confidences, in one line."""
        if self.temperature is not None:
            return f"confidences are calibrated: temperature {self.temperature:.3g}, fitted on validation"
        if not self._was_validated():
            return "confidences are not calibrated: the run had no validation split to fit a temperature on"
        return (
            f"confidences are not calibrated: evenhand measure {self.run.folder} fits them, if validation has mistakes"
        )

    def _was_validated(self) -> bool:
        return "val" in told_streams(self.run.folder)

    def predict(self, inputs: Any, *, batch: int = 64) -> list[Prediction]:
        """One row (name, label, confidence) for each input.

        ``inputs``: paths of images, a folder of them, a list of paths in a .csv or .txt, PIL images, uint8 arrays
        (N, H, W[, C]) or (N, C, H, W) or a list of single ones, float vectors (N, d); for a model of texts, strings.
        """
        return [Prediction(name, said[0], sure[0]) for name, said, sure in self.stream(inputs, batch=batch, top=1)]

    def probabilities(self, inputs: Any, *, batch: int = 64) -> Tensor:
        """(N, K), classes in the order of ``classes``."""
        found = [probs for _, probs in self._predicted(self.source(inputs), batch, None)]
        return torch.cat(found) if found else torch.empty(0, len(self.classes))

    def stream(
        self, inputs: Any, *, batch: int = 64, top: int = 2, unreadable: list[str] | None = None
    ) -> Iterator[Ranking]:
        """The ``top`` likeliest classes of each input, batch by batch, so that a folder may be of any size.

        What cannot be read stops it with an error, unless ``unreadable`` is a list to note it in.
        """
        source = inputs if isinstance(inputs, Source) else self.source(inputs)
        for names, probs in self._predicted(source, batch, unreadable):
            sure, chosen = probs.topk(min(top, len(self.classes)))
            for name, which, values in zip(names, chosen.tolist(), sure.tolist(), strict=True):
                yield Ranking(name, tuple(self.classes[k] for k in which), tuple(values))

    def source(self, inputs: Any) -> Source:
        """The inputs as training has seen its samples: framed, in colour or grey, or as tokens."""
        return self.inputs.source(inputs)

    @torch.no_grad()
    def logits(self, samples: Tensor) -> Tensor:
        """(N, K) of raw samples as ``source`` fetches them; images pass the frozen network where there is one."""
        if self.run.recipe.data.embed and samples.ndim == 4:
            side = self.run.recipe.data.embed_size
            net, device = self.backbone
            samples = net.features(seen_by_backbone(samples.to(device), side)).float()
        return self.method.predict(samples).float().cpu()

    @cached_property
    def backbone(self) -> tuple[HeadedNet, torch.device]:
        """The frozen network whose features this model has learned from: of the run's folder, or fetched."""
        network, device = self.method.network(), torch.device("cpu")
        if network is not None:
            device = next(network.parameters()).device
        return backbone(self.run.recipe.data.embed, kept_backbone(self.run.folder)).to(device), device

    def _predicted(
        self, source: Source, batch: int, unreadable: list[str] | None
    ) -> Iterator[tuple[list[str], Tensor]]:
        for rows, samples in _batches(source, batch, unreadable):
            logits = self.logits(samples) / (self.temperature or 1.0)
            if not logits.isfinite().all():
                raise UserError(f"{self.run.folder} gives predictions that are not finite: its training diverged")
            yield [source.name(row) for row in rows], logits.softmax(1)


class Objects(NamedTuple):
    """What was found in one image, surest first: boxes (n, 4) x1, y1, x2, y2 in its pixels, classes, scores (n,)."""

    name: str
    boxes: Tensor
    labels: tuple[str, ...]
    scores: Tensor


class Locator:
    """A detector out of a run's folder, used as ``Model`` is; images may be of any size."""

    def __init__(self, run: OpenRun) -> None:
        self.run, self.method, self.facts = run, cast(Finder, run.method), run.model.facts
        self.inputs = Inputs(run.recipe.data, self.method.data)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    def predict(self, inputs: Any, *, min_score: float = 0.5, batch: int = SCENES) -> list[Objects]:
        """The objects (name, boxes, labels, scores) of each image, none included.

        ``inputs``: paths of images, a folder of them, a list of paths in a .csv or .txt, a COCO file, PIL images, uint8
        arrays (N, H, W[, C]) or (N, C, H, W), or a list of single ones of any size.
        """
        return list(self.stream(inputs, batch=batch, min_score=min_score))

    def stream(
        self, inputs: Any, *, batch: int = SCENES, min_score: float = 0.5, unreadable: list[str] | None = None
    ) -> Iterator[Objects]:
        """The objects of each image, batch by batch; what cannot be read is an error, or noted in ``unreadable``."""
        return (found for _, found in self.rows(inputs, batch=batch, min_score=min_score, unreadable=unreadable))

    def rows(
        self, inputs: Any, *, batch: int, min_score: float, unreadable: list[str] | None
    ) -> Iterator[tuple[int, Objects]]:
        """As ``stream``, with each image's place among the inputs."""
        source = inputs if isinstance(inputs, Source) else self.inputs.source(inputs)
        for rows, images in _batches(source, batch, unreadable):
            for row, (boxes, scores, labels) in zip(rows, self.method.detect(images), strict=True):
                sure = scores >= min_score
                names = tuple(self.classes[k] for k in labels[sure].tolist())
                yield row, Objects(source.name(row), boxes[sure].cpu(), names, scores[sure].cpu())


def load(folder: str | Path, *, device: str | None = None) -> Model | Locator:
    """The model in a run's folder: ``load("runs/x").predict(["a.jpg"])``."""
    run = open_run(folder, device=device)
    return Locator(run) if run.method.task.boxes else Model(run)


def _batches(source: Source, batch: int, unreadable: list[str] | None) -> Iterator[tuple[list[int], Any]]:
    """Rows and samples, the next batch being read meanwhile; what cannot be read is noted, or raised."""
    waiting: deque[list[Future[Any]]] = deque()
    with ThreadPoolExecutor(DECODERS) as pool:
        for rows in torch.arange(len(source)).split(batch) if len(source) else ():
            single = rows.split(1) if source.decodes else [rows]
            waiting.append([pool.submit(_fetched, source, row) for row in single])
            if len(waiting) > 1:
                yield from _whole(waiting.popleft(), unreadable)
        for last in waiting:
            yield from _whole(last, unreadable)


def _fetched(source: Source, rows: Tensor) -> tuple[Tensor, Samples | UserError]:
    try:
        return rows, source.fetch(rows)
    except UserError as error:
        return rows, error


def _whole(reading: Sequence[Future[Any]], unreadable: list[str] | None) -> Iterator[tuple[list[int], Any]]:
    places: list[int] = []
    samples: list[Samples] = []
    for rows, got in (part.result() for part in reading):
        if not isinstance(got, UserError):
            places += rows.tolist()
            samples.append(got)
        elif unreadable is None:
            raise UserError(str(got).replace(REMEDY, "replace it, or leave it out")) from got
        else:
            unreadable.append(str(got).removesuffix(f"; {REMEDY}"))
    if samples and all(isinstance(some, Tensor) for some in samples):
        yield places, torch.cat(samples)  # type: ignore[arg-type]
    elif samples:
        yield places, [image for some in samples for image in some]
