"""What a Python program hands over (arrays, tables, images, texts), checked and brought to the form samples have.

Messages that scikit-learn's conventions fix are worded as its own checks expect them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evenhand.data.sources.arrays import as_images
from evenhand.data.sources.source import Kind, Memory, Source
from evenhand.data.sources.texts import Texts
from evenhand.errors import UserError

LARGEST = 224  # pixels: larger arrays are scaled down, as files are


@dataclass(frozen=True)
class Inputs:
    """How samples come: settled by ``fit``, and the same for every ``predict`` after it.

    ``shape`` is one sample's; ``scale`` brings float images to 0..255; ``columns`` are those of a data frame.
    """

    kind: Kind
    shape: tuple[int, ...] = ()
    scale: float = 1.0
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, X: Any) -> Inputs:
        """As the training samples are."""
        X, columns = _array(X)
        if isinstance(X, list):
            return cls("texts")
        if X.ndim == 2:
            return cls("vectors", X.shape[1:], columns=columns)
        floats = X.dtype.kind == "f"
        return cls("images", X.shape[1:], 255.0 if floats and X.size and float(X.max()) <= 1 else 1.0)

    def read(self, X: Any, who: str = "Classifier") -> np.ndarray | list[str]:
        """Vectors float32 (N, d), images uint8 (N, H, W[, C]) or texts; refused where they are not like fit's."""
        X, columns = _array(X)
        if isinstance(X, list) != (self.kind == "texts"):
            given = "texts" if isinstance(X, list) else f"an array {X.shape}"
            raise UserError(f"X is {given}, but {who} was fitted to {self.kind}: give the same kind")
        if isinstance(X, list):
            return X
        if self.columns and columns and self.columns != columns:
            odd = sorted(set(columns) ^ set(self.columns)) or ["another order"]
            raise UserError(
                "The feature names should match those that were passed during fit. "
                f"They differ in: {', '.join(odd[:5])}; give the same columns in the same order"
            )
        if X.ndim != len(self.shape) + 1 or X.shape[1:] != self.shape:
            if X.ndim == 2 and self.kind == "vectors":
                raise UserError(
                    f"X has {X.shape[1]} features, but {who} is expecting {self.shape[0]} features as input"
                )
            raise UserError(f"X has samples {X.shape[1:]}, but {who} was fitted to {self.shape}: give the same shape")
        return X.astype(np.float32) if self.kind == "vectors" else self._pixels(X)

    def _pixels(self, X: np.ndarray) -> np.ndarray:
        """uint8 as it is; whole numbers or floats in 0..1 or 0..255 are rounded to it."""
        if X.dtype == np.uint8:
            return X
        scaled = np.rint(X.astype(np.float64) * self.scale)
        if scaled.size and not 0 <= scaled.min() <= scaled.max() <= 255:
            low, high, top = X.min(), X.max(), 255 / self.scale
            raise UserError(f"images lie in {low:g}..{high:g}, expected 0..{top:g}: scale them (0..1, or 0..255)")
        return scaled.astype(np.uint8)

    def source(self, samples: np.ndarray | list[str], where: str, size: int | None = None) -> Source:
        """In memory, each named by its row; images as squares of ``size``, else of at most 224 pixels."""
        names = [f"{where}/{row}" for row in range(len(samples))]
        if isinstance(samples, list):
            return Texts(samples, names=names)
        if self.kind == "vectors":
            return Memory(torch.from_numpy(samples), names)
        images = as_images(samples, where)
        return Memory(images, names).framed(size or min(*images.shape[2:], LARGEST), images.shape[1])


def _array(X: Any) -> tuple[np.ndarray | list[str], tuple[str, ...]]:
    """Texts as a list, all else as a numeric array of at least two axes; and the names of a data frame's columns."""
    if hasattr(X, "toarray"):
        raise TypeError("X is a sparse matrix, which is not supported: give X.toarray()")
    if isinstance(X, str | bytes):
        raise UserError("X is one string: give a list of texts")
    named = getattr(X, "columns", None)
    columns = tuple(map(str, named)) if named is not None and all(isinstance(name, str) for name in named) else ()
    try:
        array = np.asarray(X.detach().cpu() if isinstance(X, torch.Tensor) else X)
    except ValueError as error:
        raise UserError(f"X is no array ({error}): give samples of one size") from error
    if array.ndim == 1 and len(array) and all(isinstance(one, str) for one in array.tolist()):
        return [str(one) for one in array], ()
    if array.dtype.kind == "c":
        raise UserError("Complex data not supported: give real numbers")
    if array.dtype.kind not in "buif":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise type(error)(f"X holds what is no number ({error}): give numbers, images or a list of texts") from None
    if array.ndim < 2:
        shape = f"Expected 2D array, got {array.ndim}D array instead (shape {array.shape})."
        raise UserError(f"{shape} Reshape your data: (N, d) numbers, (N, H, W[, C]) images, or give a list of texts")
    if array.ndim > 4:
        raise UserError(f"X has {array.ndim} axes: give (N, d) numbers, (N, H, W[, C]) images, or a list of texts")
    if not len(array):
        raise UserError(f"Found array with 0 sample(s) (shape={array.shape}) while a minimum of 1 is required.")
    if not array.size:
        raise UserError(f"Found array with 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.dtype.kind == "f" and not np.isfinite(array.astype(np.float32)).all():
        what = "NaN" if np.isnan(array).any() else "infinity or a value too large for float32"
        raise UserError(f"Input X contains {what}: fill it in or leave the sample out")
    return array, columns


def labels_of(y: Any, samples: int, who: str = "Classifier") -> np.ndarray:
    """One label of any kind for each sample."""
    if y is None:
        raise UserError(f"{who} requires y to be passed, but the target y is None")
    y = np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
    if y.ndim == 2 and y.shape[1] == 1:
        said = "A column-vector y was passed when a 1d array was expected: give y.ravel()"
        warnings.warn(said, _sklearn("DataConversionWarning", UserWarning), stacklevel=4)
        y = y[:, 0]
    if y.ndim != 1:
        raise UserError(f"y should be a 1d array, got an array of shape {y.shape} instead: one label a sample")
    if len(y) != samples:
        raise UserError(f"X has {samples} samples and y {len(y)}: inconsistent numbers of samples")
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            raise UserError("Input y contains NaN or infinity: give a class for each sample")
        if (y != np.floor(y)).any():
            raise UserError("Unknown label type: continuous. Give classes, not measurements, as y")
    return y


def numbered(y: np.ndarray, classes: np.ndarray, where: str) -> torch.Tensor:
    """Each label's place among the classes."""
    places = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    if (classes[places] != y).any():
        unknown = y[classes[places] != y][0]
        raise UserError(f"{where} has the label '{unknown}', of which there is no training sample")
    return torch.from_numpy(places.astype(np.int64))


def not_fitted(who: str) -> Exception:
    """scikit-learn's own error where it is installed."""
    error = _sklearn("NotFittedError", _NotFittedError)
    return error(f"This {who} instance is not fitted yet: call fit first")


class _NotFittedError(ValueError, AttributeError):
    pass


def _sklearn(name: str, otherwise: Any) -> Any:
    try:
        import sklearn.exceptions as theirs
    except ImportError:
        return otherwise
    return getattr(theirs, name)
