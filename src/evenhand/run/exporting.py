"""A run as one file for other programs: ONNX, ``torch.export``, safetensors, each with a model card beside it.

The graph begins where framing ends, at uint8 images of the model's side, and ends in calibrated probabilities:
normalisation, a frozen network, the head's scale and the temperature are inside.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from evenhand import __version__, atomic
from evenhand.data.prepared import IMAGENET
from evenhand.data.sources.files import Files
from evenhand.data.sources.frames import FILL, FILL_GREY
from evenhand.errors import UserError
from evenhand.methods.protocol import Recogniser
from evenhand.nets import HeadedNet
from evenhand.run.cards import card, licence_of
from evenhand.run.opening import open_run
from evenhand.run.predicting import Model
from evenhand.tasks.classify import CLASSIFY

Format = Literal["onnx", "torch", "safetensors"]
FILES: dict[Format, str] = {"onnx": "model.onnx", "torch": "model.pt2", "safetensors": "model.safetensors"}
NEEDED = ("onnx", "onnxscript")


class Affine(nn.Module):
    """``x * scale + shift``, of each channel or number."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Tensor, std: Tensor, unit: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("scale", 1 / (unit * std), persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.float() * self.scale + self.shift


class Embedding(nn.Module):
    """uint8 images to a frozen network's features. Resizing is linear, so it is two products with a constant matrix:
    every runtime has those, and antialiasing as ours is has none.
    """

    matrix: Tensor

    def __init__(self, net: HeadedNet, side: int, embed_size: int) -> None:
        super().__init__()
        self.net, self.see = net, _of_images(*IMAGENET)
        self.resizes = side != embed_size
        unit = torch.eye(side)[None, None]  # (1, 1, side, side): what becomes of each row
        size = (embed_size, side)
        matrix = F.interpolate(unit, size, mode="bilinear", antialias=True)[0, 0] if self.resizes else unit[0, 0]
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.see(images.expand(-1, 3, -1, -1))
        if self.resizes:
            x = self.matrix @ x @ self.matrix.T
        return self.net.features(x)


class Graph(nn.Module):
    """From framed samples to the probabilities of classes (N, K)."""

    def __init__(self, net: HeadedNet, see: Affine, embedding: Embedding | None, factor: float) -> None:
        super().__init__()
        self.net, self.see, self.embedding, self.factor = net, see, embedding, factor

    def forward(self, samples: Tensor) -> Tensor:
        x = samples if self.embedding is None else self.embedding(samples)
        return (self.net(self.see(x)) * self.factor).softmax(1)


def _of_images(mean: Any, std: Any) -> Affine:
    return Affine(torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1), unit=255)


def graph_of(model: Model) -> tuple[Graph, Tensor]:
    """The graph on the CPU, and an example of its input: two samples."""
    facts, data = model.facts, model.run.recipe.data
    if model.inputs.reads == "texts":
        raise UserError("a model of texts needs its vocabulary around the network: export --format safetensors")
    example = torch.zeros(2, facts.inputs)
    embedding = None
    if model.inputs.reads == "images":
        side = facts.size[-1]
        example = torch.zeros(2, model.inputs.channels, side, side, dtype=torch.uint8)
        if data.embed:
            embedding = Embedding(_plain(model.backbone[0]), side, data.embed_size)
    mean, std = facts.mean, facts.std
    see = _of_images(mean, std) if facts.kind == "images" else Affine(torch.tensor(mean), torch.tensor(std))
    factor = model.method.logit_scale / (model.temperature or 1.0)
    return Graph(_plain(network_of(model)), see, embedding, factor).eval(), example


def network_of(model: Model) -> HeadedNet:
    """The network that predicts, if it alone does."""
    net = model.method.network()
    if net is None or type(model.method).predict is not Recogniser.predict:
        raise UserError(f"method '{model.run.recipe.method.name}' predicts by more than a network: it has no export")
    return net


def _plain(net: HeadedNet) -> HeadedNet:
    """A copy on the CPU in the usual memory layout."""
    kept = copy.deepcopy(net).cpu().float().eval().requires_grad_(False)
    return kept.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def export(folder: str | Path, *, format: Format = "onnx", out: str | Path | None = None) -> Path:
    """Write the model of a run and its card into ``out``, by default ``export`` in its folder; returns the file."""
    if format not in FILES:
        raise UserError(f"format '{format}' is unknown; choose {', '.join(FILES)}")
    if format == "onnx":
        _needed()
    run = open_run(folder, device="cpu")
    if run.method.task is not CLASSIFY:
        other = "evenhand predict" if run.method.task.boxes else "evenhand sample"
        raise UserError(f"{folder} is a run of task {run.method.task.name}; export writes classifiers: use {other}")
    model = Model(run)
    path = Path(out or Path(folder) / "export") / FILES[format]
    told = about(model)
    with atomic.replacing(path) as part:
        if format == "safetensors":
            tensors = {name: value.contiguous().clone() for name, value in _tensors(model).items()}
            save_file(tensors, part, told)
        else:
            _write_graph(model, part, told, format)
    there = [name for name in FILES.values() if path.with_name(name).is_file()]  # one card for all that were written
    atomic.write(path.with_name("MODEL-CARD.md"), card(model, there, told))
    return path


def _write_graph(model: Model, part: Path, told: dict[str, str], format: Format) -> None:
    graph, example = graph_of(model)
    with _quiet(), torch.no_grad():
        shapes = {"samples": {0: torch.export.Dim("batch", min=1)}}
        program = torch.export.export(graph, (example,), dynamic_shapes=shapes)
        if format == "torch":
            with part.open("wb") as file:
                torch.export.save(program, file, extra_files={"about.json": json.dumps(told)})
            return
        names = {"input_names": [told["input"]], "output_names": ["probabilities"]}
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
        made.model.metadata_props.update(told)
        content = made.model_proto
        part.write_bytes(content.SerializeToString())


def about(model: Model) -> dict[str, str]:
    """What one must know to use the file, as strings: it stands in the file's own metadata."""
    reads, recipe = model.inputs.reads, model.run.recipe
    told = {
        "evenhand": __version__,
        "classes": json.dumps(list(model.classes)),
        "input": reads,
        "calibrated": "no" if model.temperature is None else f"yes, temperature {model.temperature:.6g}",
        "logit_scale": f"{model.method.logit_scale:.6g}",
        "licence_of_weights": licence_of(recipe),
        "run": model.run.model.digest,
    }
    if reads == "images":
        files = model.inputs.files([])
        assert isinstance(files, Files)
        shape = f"uint8 (N, {model.inputs.channels}, {files.size}, {files.size})"
        cut = {
            "crop": f"shorter side to {files.resize}, middle {files.size} x {files.size}",
            "pad": f"longer side to {files.size}, centred on a border of colour {FILL} (grey {FILL_GREY})",
            "squash": f"stretched to {files.size} x {files.size}",
        }[files.frame.how]
        how = f"upright by EXIF, transparency on white, upper byte of 16 bits; {cut}, bilinear; channels first, 0..255"
        frame = {
            "mode": files.mode, "side": str(files.size), "resize": str(files.resize), "frame": files.frame.how,
            "border": json.dumps(FILL_GREY if files.mode == "L" else FILL),
        }  # fmt: skip
        return told | frame | {"shape": shape, "preprocessing": how}
    if reads == "vectors":
        return told | {"shape": f"float32 (N, {model.facts.inputs})", "preprocessing": "none: columns as in training"}
    return told | {"words": json.dumps(list(model.facts.words)), "text": recipe.data.text.model_dump_json()}


def _tensors(model: Model) -> dict[str, Tensor]:
    """Weights by the names of the network, torchvision's or timm's where those have one; a frozen one's apart."""
    state = _plain(network_of(model)).state_dict()
    mean, std = torch.tensor(model.facts.mean), torch.tensor(model.facts.std)
    facts = {"mean": mean, "std": std} if len(mean) else {}
    if model.run.recipe.data.embed:
        frozen = _plain(model.backbone[0]).state_dict()
        state = {f"head.{name}": value for name, value in state.items()}
        state |= {f"backbone.{name}": value for name, value in frozen.items()}
    return state | {f"normalise.{name}": value for name, value in facts.items()}


def _needed() -> None:
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"exporting ONNX needs {name}: pip install 'evenhand[export]'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters warn of their own insides."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
