"""What a finished model is shown: paths, folders, lists, tables, arrays or texts, framed as in training."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.prepared import Data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.annotations import read_coco
from evenhand.data.sources.arrays import as_images, as_vectors
from evenhand.data.sources.files import Files, convert
from evenhand.data.sources.paths import encodable, existing, images_in, printable, read_text, relative_names
from evenhand.data.sources.scenes import Held, Scenes
from evenhand.data.sources.source import Memory, Source, joined, reframed
from evenhand.data.sources.tables import value_of
from evenhand.errors import UserError, did_you_mean

LISTS = (".csv", ".tsv", ".txt")
TEXTS = (*LISTS, ".jsonl")
ARRAYS = (".npz", ".npy")
SAMPLES = ("x", "images", "x_test", "images_test", "x_unlabelled")  # arrays of a file that hold what is to be predicted
NOT_NUMBERS = ("label", "split", "domain", "name", "path")  # columns of a table beside its numbers


class Inputs:
    """Makes sources of what one model takes; ``settings`` and ``data`` are those of its run."""

    def __init__(self, settings: DataSettings, data: Data) -> None:
        self.settings, self.data, self.facts = settings, data, data.facts
        grey = data.facts.inputs == 1 if data.facts.kind == "images" else settings.grey
        self.channels = 1 if grey else 3

    @property
    def reads(self) -> str:
        """What a single input is: "images", "scenes" of any size, "vectors" or "texts"."""
        return "texts" if self.facts.kind == "tokens" else "images" if self.settings.embed else self.facts.kind

    def source(self, inputs: Any) -> Source:
        """Of anything Python holds: arrays, PIL images, strings that are paths or, for a model of texts, texts."""
        if not hasattr(inputs, "__iter__") and not isinstance(inputs, Path | Image.Image):
            raise UserError(f"cannot predict of {inputs!r}: give paths, arrays, pictures or texts")
        if self.reads == "texts":
            return self.texts([inputs] if isinstance(inputs, str) else list(inputs))
        if self.reads == "vectors" or _is_vectors(inputs):
            if isinstance(inputs, str | Path):
                return self.files([inputs])
            return self._vectors(np.asarray(inputs, dtype=np.float32), "inputs")
        if isinstance(inputs, np.ndarray | Tensor):
            array = np.asarray(inputs)
            one = array.ndim == 3 and array.shape[2] == 3 < array.shape[1]  # a picture (H, W, 3), not grey ones 3 wide
            return self._pictures(array[None] if one else array, "inputs")
        given: list[Any] = [inputs] if isinstance(inputs, str | Path | Image.Image) else list(inputs)
        if given and all(isinstance(one, Image.Image | np.ndarray | Tensor) for one in given):
            arrays = [np.array(convert(x, self.mode)) if isinstance(x, Image.Image) else np.asarray(x) for x in given]
            shown = [as_images(array[None], "inputs") for array in arrays]
            return joined([self._framed(x, [f"image {at}"]) for at, x in enumerate(shown)])
        if strange := [one for one in given if not isinstance(one, str | Path)]:
            raise UserError(f"cannot predict of {strange[0]!r}: give paths, arrays, pictures or texts")
        return self.files(given)

    def files(self, paths: Sequence[str | Path]) -> Source:
        """Of paths alone: folders, images, lists and tables of paths, numbers or texts, arrays."""
        parts: list[Source] = []
        found: list[tuple[Path, str]] = []
        for given in paths:
            path = existing(given)
            kind = path.suffix.lower()
            if self.reads == "texts":
                parts.append(self._texts_of(path))
            elif kind in ARRAYS:
                parts.append(self._array_of(path))
            elif self.reads == "vectors":
                parts.append(self._vectors_of(path))
            else:
                found += self._images_of(path, alone=len(paths) == 1)
        if found or not parts:
            parts.append(self._decoded([path for path, _ in found], [name for _, name in found]))
        if len(kinds := {part.kind for part in parts}) > 1:
            raise UserError(f"the inputs are {' and '.join(sorted(kinds))}; predict them one kind at a time")
        return joined(parts)

    @property
    def mode(self) -> str:
        return "L" if self.channels == 1 else "RGB"

    def texts(self, texts: Sequence[str], names: Sequence[str] | None = None) -> Source:
        assert self.data.vocabulary is not None
        tokens = self.data.vocabulary.encode(texts)
        return Memory(torch.cat([tokens, torch.zeros_like(tokens)], 1) if self.facts.translations else tokens, names)

    def _decoded(self, files: Sequence[Path], names: Sequence[str]) -> Source:
        if self.reads == "scenes":
            return Scenes(files, mode=self.mode, names=names)
        frame = self.facts.framing
        return Files(files, size=frame.side, mode=self.mode, resize=frame.resize, names=names, frame=frame.how)

    def _images_of(self, path: Path, *, alone: bool) -> list[tuple[Path, str]]:
        """Files with their names: from the folder down if it is the only one, else as they were given."""
        if path.is_dir():
            inside = images_in(path, any_name=True)
            names = relative_names(inside, path) if alone else [file.as_posix() for file in inside]
            return list(zip(inside, map(printable, names), strict=True))
        if self.reads == "scenes" and path.suffix.lower() == ".json":
            coco = read_coco(path)
            return [(coco.path(image), told["file_name"]) for image, told in coco.images.items()]
        if path.suffix.lower() not in LISTS:
            return [(path, printable(str(path)))]
        return [(path.parent / name, name) for _, name in _column(path, "path")]

    def _texts_of(self, path: Path) -> Source:
        if path.suffix.lower() not in TEXTS:
            raise UserError(f"'{path}' is no list of texts; give {', '.join(TEXTS)}")
        found = _column(path, self.settings.text_column)
        return self.texts([text for _, text in found], [f"{path.name}:{at}" for at, _ in found])

    def _array_of(self, path: Path) -> Source:
        array = _array(path)
        names = [f"{path.name}/{row}" for row in range(len(array))]
        pictures = self.reads in ("images", "scenes") and not _is_vectors(array)
        made = self._pictures if pictures else self._vectors
        return made(array, str(path), names)

    def _vectors_of(self, path: Path) -> Source:
        if path.suffix.lower() not in (".csv", ".tsv"):
            raise UserError(f"'{path}' is no table of numbers; give a .csv, .tsv, .npz or .npy")
        header, rows = _table(path)
        for column in self.facts.columns:
            if column not in header:
                raise UserError(f"'{path}' has no column '{column}'; {did_you_mean(column, header)}")
        known = self.facts.columns or [column for column in header if column not in NOT_NUMBERS]
        kept = [header.index(column) for column in known]  # as in training, in whatever order they come
        others = f"every column but {', '.join(NOT_NUMBERS)} must hold numbers"
        remedy = "correct it" if self.facts.columns else others
        numbers = np.array(
            [
                [value_of("".join(row[at : at + 1]), header[at], f"'{path}' row {which}", remedy=remedy) for at in kept]
                for which, row in rows
            ],
            np.float32,
        )
        return self._vectors(numbers, str(path), [f"{path.name}:{at}" for at, _ in rows])

    def _pictures(self, array: np.ndarray, where: str, names: Sequence[str] | None = None) -> Source:
        return self._framed(as_images(array, where), names)

    def _framed(self, images: Tensor, names: Sequence[str] | None) -> Source:
        if self.reads == "scenes":
            told = [f"image {at}" for at in range(len(images))] if names is None else names
            return Held(list(reframed(images, 0, self.channels)), told)
        return Memory(images, names).cut(self.facts.framing, self.channels)

    def _vectors(self, array: np.ndarray, where: str, names: Sequence[str] | None = None) -> Source:
        if self.facts.kind == "images":
            raise UserError(f"{where} are {tuple(array.shape)}; this model takes images (N, H, W, C): one is x[None]")
        if array.ndim != 2 or array.shape[1] != self.facts.inputs:
            raise UserError(f"{where} are {tuple(array.shape)}; this model takes vectors (N, {self.facts.inputs})")
        return Memory(as_vectors(array, where), names)


def _is_vectors(inputs: Any) -> bool:
    return isinstance(inputs, np.ndarray | Tensor) and inputs.ndim == 2


def _array(path: Path) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            content: Any = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content
            arrays = {key: content[key] for key in content.files}
    except Exception as error:  # a damaged or hostile archive raises nearly anything
        raise UserError(
            f"cannot read '{path}': {str(error).splitlines()[0]}; save plain arrays with np.savez"
        ) from error
    chosen = next((key for key in SAMPLES if key in arrays), next(iter(arrays)) if len(arrays) == 1 else None)
    if chosen is None:
        raise UserError(f"'{path}' holds {', '.join(arrays) or 'nothing'}; name the array to be predicted 'x'")
    return np.asarray(arrays[chosen])


def _column(path: Path, wanted: str) -> list[tuple[int, str]]:
    """A text file's lines, or what a table has in the column ``wanted``; one of a single column needs no header.

    With each its line, or its row in a table, among all there are: blank ones are left out, but counted.
    """
    kind = path.suffix.lower()
    if kind == ".jsonl":
        return [(at, _text_of(line, f"'{path}' line {at}", wanted)) for at, line in _lines(path)]
    if kind == ".txt":
        return list(_lines(path))
    header, rows = _table(path)
    if wanted not in header:
        if len(header) == 1:
            return [(1, header[0]), *((at + 1, row[0]) for at, row in rows)]
        raise UserError(f"'{path}' has no column '{wanted}'; {did_you_mean(wanted, header)}")
    place = header.index(wanted)
    return [(at, row[place]) for at, row in rows if len(row) > place]


def _text_of(line: str, where: str, wanted: str) -> str:
    try:
        return encodable(str(json.loads(line)[wanted]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where} has no '{wanted}' ({error}); write {{\"{wanted}\": ...}}") from error


def _lines(path: Path) -> Iterable[tuple[int, str]]:
    return ((at, line.strip()) for at, line in enumerate(read_text(path).splitlines(), 1) if line.strip())


def _table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and the rows that are not blank with their places below it."""
    content = read_text(path)
    csv.field_size_limit(max(csv.field_size_limit(), len(content) + 1))
    first = content.partition("\n")[0]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, skipinitialspace=True)
    rows = [(at, [cell.strip() for cell in row]) for at, row in enumerate(reader)]
    rows = [(at, row) for at, row in rows if any(row)]
    if not rows:
        raise UserError(f"'{path}' is empty; add lines")
    top, header = rows[0]
    return header, [(at - top, row) for at, row in rows[1:]]
