"""A finished run in use: from paths, arrays or texts to class names and confidences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.sources.arrays import as_images, as_vectors
from evenhand.data.sources.files import Files, convert
from evenhand.data.sources.paths import existing, images_in, relative_names
from evenhand.data.sources.source import Memory, Source, joined
from evenhand.data.stream import Stream
from evenhand.errors import UserError
from evenhand.measure.classification import predict_all
from evenhand.measure.frozen import features_of
from evenhand.methods.protocol import Recogniser
from evenhand.run.opening import OpenRun, open_run
from evenhand.tasks.classify import CLASSIFY


class Prediction(NamedTuple):
    """What the model says of one input."""

    name: str
    label: str
    confidence: float


class Model:
    """A classifier out of a run's folder; neither its data nor the runs it needed have to be there."""

    def __init__(self, run: OpenRun) -> None:
        if run.method.task is not CLASSIFY:
            raise UserError(f"{run.folder} is a run of task {run.method.task.name}: it predicts no classes")
        self.run, self.method = run, cast(Recogniser, run.method)
        self.facts = run.model.facts

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    def predict(self, inputs: Any, *, batch: int = 64) -> list[Prediction]:
        """One row (name, label, confidence) for each input.

        ``inputs``: paths of images, a folder of them, PIL images, uint8 arrays (N, H, W[, C]) or (N, C, H, W), float
        vectors (N, d); for a model of texts, strings.
        """
        source = self.source(inputs)
        if not len(source):
            return []
        confidence, chosen = self._probabilities(source, batch).max(1)
        said = zip(chosen.tolist(), confidence.tolist(), strict=True)
        return [Prediction(source.name(row), self.classes[k], sure) for row, (k, sure) in enumerate(said)]

    def probabilities(self, inputs: Any, *, batch: int = 64) -> Tensor:
        """(N, K), classes in the order of ``classes``."""
        return self._probabilities(self.source(inputs), batch)

    def _probabilities(self, source: Source, batch: int) -> Tensor:
        return predict_all(self.method.predict, Stream(source, None, self.classes, "inputs"), batch=batch).softmax(1)

    def source(self, inputs: Any) -> Source:
        """The inputs as training has seen its samples: framed, in colour or grey, embedded or as tokens."""
        if self.facts.kind == "tokens":
            return self._texts([inputs] if isinstance(inputs, str) else list(inputs))
        settings = self.run.recipe.data
        if not settings.embed or _is_vectors(inputs):
            return self._samples(inputs)
        stream = Stream(self._images(inputs), None, self.classes, "inputs")
        return Memory(features_of(stream, settings.embed, settings.embed_size), _names(stream))

    def _texts(self, texts: Sequence[str]) -> Source:
        vocabulary = self.method.data.vocabulary
        assert vocabulary is not None
        tokens = vocabulary.encode(texts)
        return Memory(torch.cat([tokens, torch.zeros_like(tokens)], 1) if self.facts.translations else tokens)

    def _samples(self, inputs: Any) -> Source:
        if self.facts.kind == "images":
            return self._images(inputs)
        vectors = as_vectors(np.asarray(inputs, dtype=np.float32), "inputs")
        if vectors.ndim != 2 or vectors.shape[1] != self.facts.inputs:
            raise UserError(f"inputs are {tuple(vectors.shape)}; this model takes vectors (N, {self.facts.inputs})")
        return Memory(vectors)

    def _images(self, inputs: Any) -> Source:
        frame = self.facts.framing
        channels = self.facts.inputs if self.facts.kind == "images" else 1 if self.run.recipe.data.grey else 3
        if isinstance(inputs, np.ndarray | Tensor):
            images = as_images(np.asarray(inputs), "inputs")
            return Memory(images).cut(frame, channels)
        given: list[Any] = [inputs] if isinstance(inputs, str | Path | Image.Image) else list(inputs)
        mode = "L" if channels == 1 else "RGB"
        if given and all(isinstance(one, Image.Image) for one in given):
            shown = [as_images(np.array(convert(one, mode))[None], "inputs") for one in given]
            return joined([Memory(x, [f"image {at}"]).cut(frame, channels) for at, x in enumerate(shown)])
        found = [pair for one in given for pair in _files(Path(one))]
        paths, names = [path for path, _ in found], [name for _, name in found]
        return Files(paths, size=frame.side, mode=mode, resize=frame.resize, names=names, frame=frame.how)


def load(folder: str | Path, *, device: str | None = None) -> Model:
    """The model in a run's folder: ``load("runs/x").predict(["a.jpg"])``."""
    return Model(open_run(folder, device=device))


def _files(path: Path) -> list[tuple[Path, str]]:
    """An image and its name, or all images of a folder."""
    if not existing(path).is_dir():
        return [(path, str(path))]
    inside = images_in(path)
    return list(zip(inside, relative_names(inside, path), strict=True))


def _names(stream: Stream) -> list[str]:
    return [stream.samples.name(row) for row in range(len(stream))]


def _is_vectors(inputs: Any) -> bool:
    return isinstance(inputs, np.ndarray | Tensor) and inputs.ndim == 2
