"""Weights in other programs' files as plain tensors under torchvision's names; nothing in the files is executed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.errors import UserError

ONNX_FLOAT = 1  # TensorProto.FLOAT
BRANCHES = {"branch2a": "1", "branch2b": "2", "branch2c": "3"}  # Caffe's names of a block's three convolutions
NORMED = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def folded_resnet(folder: Path) -> dict[str, Tensor]:
    """A ResNet out of ``*/resnet18.onnx``: convolutions with the biases that BatchNorm was folded into; no classes."""
    found = onnx_tensors(next(folder.rglob("resnet18.onnx")))
    named = {name.replace(".weight_bias", ".bias"): value for name, value in found.items()}
    return {name: value for name, value in named.items() if name.endswith((".weight", ".bias"))}


def caffe_resnet(folder: Path) -> dict[str, Tensor]:
    """Keras's ResNet-50 out of TensorFlow.js files.

    A convolution's bias b before BatchNorm moves into its running mean, as ``(z + b) - m = z - (m - b)``: the same
    function, and in training too, where a batch's own mean takes b away.
    """
    arrays = tfjs_tensors(next(folder.rglob("ResNet50/model.json")))
    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        layer, _, part = name.partition("/")
        if layer == "fc1000":
            state["fc.weight" if part == "kernel" else "fc.bias"] = torch.from_numpy(array.T.copy())
        elif layer.startswith("bn"):
            _, normalised = _caffe_names(layer.removeprefix("bn"))
            value = array - arrays[f"{_convolution(layer)}/bias"] if part == "moving_mean" else array
            state[f"{normalised}.{NORMED[part]}"] = torch.from_numpy(value.copy())
        elif part == "kernel":  # (H, W, in, out)
            convolution, _ = _caffe_names(layer.removeprefix("res"))
            state[f"{convolution}.weight"] = torch.from_numpy(array.transpose(3, 2, 0, 1).copy())
    return state


def _convolution(norm: str) -> str:
    return "conv1" if norm == "bn_conv1" else norm.replace("bn", "res", 1)


def _caffe_names(place: str) -> tuple[str, str]:
    """``3a_branch2b`` -> ``layer2.0.conv2`` and ``layer2.0.bn2``; the first layer is ``conv1``."""
    if place in ("conv1", "_conv1"):
        return "conv1", "bn1"
    match = re.fullmatch(r"([2-5])([a-z])_(branch\w+)", place)
    if match is None:
        raise UserError(f"a ResNet has no layer '{place}'; this is another file than expected")
    stage, block, branch = match.groups()
    inside = f"layer{int(stage) - 1}.{ord(block) - ord('a')}"
    if branch == "branch1":
        return f"{inside}.downsample.0", f"{inside}.downsample.1"
    return f"{inside}.conv{BRANCHES[branch]}", f"{inside}.bn{BRANCHES[branch]}"


def tfjs_tensors(model: Path) -> dict[str, np.ndarray]:
    """The float32 arrays of a TensorFlow.js layers model: shards one after the other, in the manifest's order."""
    arrays = {}
    for group in json.loads(model.read_text(encoding="utf-8"))["weightsManifest"]:
        content, at = b"".join((model.parent / shard).read_bytes() for shard in group["paths"]), 0
        for entry in group["weights"]:
            if entry["dtype"] != "float32" or "quantization" in entry:
                raise UserError(f"'{model}': {entry['name']} is not plain float32; this is another file than expected")
            count = math.prod(entry["shape"])
            arrays[entry["name"]] = np.frombuffer(content, "<f4", count, at).reshape(entry["shape"])
            at += 4 * count
    return arrays


def onnx_tensors(model: Path) -> dict[str, Tensor]:
    """The float32 initialisers of an ONNX file, inside it or in the data file beside it."""
    graph = dict(_fields(memoryview(model.read_bytes())))[7]  # ModelProto.graph
    beside: dict[str, bytes] = {}
    tensors = {}
    for number, value in _fields(graph):
        if number != 5:  # GraphProto.initializer
            continue
        dims: list[int] = []
        parts: dict[int, Any] = {}
        place: dict[str, str] = {}
        for key, content in _fields(value):
            if key == 1:  # dims, packed or not
                dims += [content] if isinstance(content, int) else list(_varints(content))
            elif key == 13:  # external_data: pairs of strings
                pair = {k: bytes(v).decode() for k, v in _fields(content)}
                place[pair[1]] = pair[2]
            else:
                parts[key] = content
        if parts[2] != ONNX_FLOAT:
            continue
        raw = parts.get(9, b"")  # raw_data
        if place:
            file = place["location"]
            if Path(file).name != file:
                raise UserError(f"'{model}' points to data elsewhere ('{file}'); do not use this file")
            if file not in beside:
                beside[file] = (model.parent / file).read_bytes()
            start = int(place.get("offset", 0))
            raw = beside[file][start : start + int(place["length"])]
        array = np.frombuffer(raw, "<f4").reshape([int(d) for d in dims])
        tensors[bytes(parts[8]).decode()] = torch.from_numpy(array.copy())  # name
    return tensors


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and content of every field of a protobuf message: an integer, or the bytes of what is inside."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, at = _varint(message, at)
        yield number, message[at : at + length]
        at += length


def _varints(packed: memoryview) -> Iterator[int]:
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """An integer in base 128, lowest digits first, and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
