"""A classifier for Python programs, by scikit-learn's conventions: the same methods, recipes and ``fit`` as everywhere.

    clf = evenhand.Classifier(loss="la").fit(X, y)
    clf.predict(X), clf.predict_proba(X), clf.score(X, y)

scikit-learn need not be installed; where it is, ``Pipeline``, ``GridSearchCV`` and ``clone`` take it as one of theirs.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.data.holdout import Whole, hold_out_share
from evenhand.data.prepared import Data, Seen, around
from evenhand.data.reading import ARRAYS
from evenhand.data.settings import DataSettings
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError, did_you_mean
from evenhand.measure.frozen import embed
from evenhand.methods import method_class
from evenhand.methods.protocol import Recogniser
from evenhand.run.handed import Inputs, labels_of, not_fitted, numbered
from evenhand.run.opening import copy_model, open_run
from evenhand.run.predicting import Model
from evenhand.run.recipe import Recipe, load_recipe, validate
from evenhand.run.tables import put
from evenhand.run.training import train

# What ``loss`` may say, as keys of [method].
LOSSES: dict[str, dict[str, str]] = {
    "ce": {"loss": "ce"},
    "la": {"loss": "la"},
    "balanced": {"loss": "ce", "sampling": "class-balanced"},
    "reweighted": {"loss": "ce", "weighting": "always"},
    "drw": {"loss": "ce", "weighting": "drw"},
    "ldam-drw": {"loss": "ldam", "weighting": "drw"},
    "vs": {"loss": "vs"},
    "focal": {"loss": "focal"},
}
SEEN = {  # keys of [data] that say how samples are seen, not which they are
    "images": ("groups", "size", "embed", "embed_size", "augment", "strong", "normalise"),
    "vectors": ("groups",),
    "texts": ("groups", "text"),
}
SMALL = 64  # pixels up to which a plain convnet does


class Classifier:
    """Classes from numbers (N, d), images (N, H, W[, C]), texts or numeric data frames, rare classes included.

    Parameters: ``loss``, one of ``LOSSES`` (default la, logit adjustment); ``method``, a name of ``evenhand list
    methods`` (default classifier, or fixmatch with ``X_unlabelled``); ``net``, of ``evenhand list nets`` (default by
    the samples); ``features``, a frozen network that images pass first, such as mobilenet_v2; ``augment``, steps of
    docs/data.md for images; ``steps``, ``batch``, ``lr`` of training; ``validation``, the share of every class held
    out and measured on; ``seed``; ``folder``, where the run is kept as ``evenhand train`` keeps it; ``recipe``, one of
    ours or a TOML file to start from in place of these defaults; ``options``, any further keys of a recipe, such as
    ``{"method.optim.name": "sam"}``; ``device``; ``progress``.

    After ``fit``: ``classes_``, ``n_features_in_``, ``feature_names_in_`` (of a data frame), ``recipe_``, ``model_``
    (as of ``evenhand.load``) and ``measured_``, what the run's table says of the validation samples, if there are any.
    """

    def __init__(
        self, *, loss: str | None = None, method: str | None = None, net: str | None = None, features: str = "",
        augment: Sequence[str] | None = None, steps: int | None = None, batch: int | None = None,
        lr: float | None = None, validation: float = 0.0, seed: int = 0, folder: str | Path | None = None,
        recipe: str | Path | None = None, options: Mapping[str, Any] | None = None, device: str = "auto",
        progress: bool = False,
    ) -> None:  # fmt: skip
        self.loss, self.method, self.net, self.features, self.augment = loss, method, net, features, augment
        self.steps, self.batch, self.lr, self.validation, self.seed = steps, batch, lr, validation, seed
        self.folder, self.recipe, self.options, self.device, self.progress = folder, recipe, options, device, progress

    def fit(self, X: Any, y: Any, X_unlabelled: Any = None, X_val: Any = None, y_val: Any = None) -> Classifier:
        """Train on X (N samples) and y (N,); the run is measured on X_val, or on what ``validation`` holds out."""
        inputs = Inputs.of(X)
        samples = inputs.read(X)
        y = labels_of(y, len(samples))
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise UserError(f"y has one class, '{self.classes_[0]}': at least two are needed to tell apart")
        with tempfile.TemporaryDirectory() as place:
            self._inputs = inputs
            if inputs.kind == "vectors":
                self.n_features_in_ = inputs.shape[0]
            if inputs.columns:
                self.feature_names_in_ = np.array(inputs.columns, dtype=object)
            recipe = self._recipe(len(samples), X_unlabelled is not None, Path(place, "run"))
            parts = self._parts(samples, y, X_unlabelled, X_val, y_val, recipe)
            data = _prepared(recipe.data, parts)
            run = open_run(train(recipe, data=data))
            self.recipe_, self.measured_ = recipe, _measured(run.folder)
            copy_model(run, Path(place, "model"))
            self._files = {
                file.relative_to(place).as_posix(): file.read_bytes()
                for file in Path(place, "model").rglob("*")
                if file.is_file()
            }
        self.model_ = self._opened()
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest of ``classes_`` for each sample."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, K), columns in the order of ``classes_``."""
        if not self.__sklearn_is_fitted__():
            raise not_fitted(type(self).__name__)
        samples: Any = self._inputs.read(X)
        if self._inputs.kind == "images":
            samples = self._inputs.source(samples, "X", self.recipe_.data.size).samples.numpy()  # type: ignore[attr-defined]
        probs = self.model_.probabilities(samples).double().numpy()
        return probs / probs.sum(1, keepdims=True)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share that is right; for a number that rare classes count in, take scoring="balanced_accuracy"."""
        right = self.predict(X) == labels_of(y, len(X))
        return float(np.average(right, weights=sample_weight))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the constructor was given; ``deep`` changes nothing here."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Classifier:
        """Other arguments for the next ``fit``."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"Classifier has no parameter '{name}'; {did_you_mean(name, known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        given = [f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name]]
        return f"{type(self).__name__}({', '.join(given)})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "model_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_files" in state:
            self.model_ = self._opened()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        seen = InputTags(two_d_array=True, three_d_array=True)
        return Tags("classifier", TargetTags(required=True), classifier_tags=ClassifierTags(), input_tags=seen)

    def _opened(self) -> Model:
        """The model out of its files, which a copy or another process has too."""
        with tempfile.TemporaryDirectory() as place:
            for name, content in self._files.items():
                Path(place, name).parent.mkdir(parents=True, exist_ok=True)
                Path(place, name).write_bytes(content)
            return Model(open_run(Path(place, "model"), device=self.device))

    def _parts(self, samples: Any, y: np.ndarray, X_unlabelled: Any, X_val: Any, y_val: Any, recipe: Recipe) -> Streams:
        """Training, validation and unlabelled samples as streams."""
        inputs, names, size = self._inputs, tuple(map(str, self.classes_)), recipe.data.size

        def stream(samples: Any, y: np.ndarray | None, name: str) -> Stream:
            labels = None if y is None else numbered(y, self.classes_, f"y_{name}")
            return Stream(inputs.source(samples, name, size), labels, names, name)

        parts = {"labelled": stream(samples, y, "labelled")}
        if X_val is not None:
            held = inputs.read(X_val)
            parts["val"] = stream(held, labels_of(y_val, len(held)), "val")
        elif not 0 <= self.validation < 1:
            raise UserError(f"validation = {self.validation!r} is no share: give 0 for none, or for example 0.1")
        elif self.validation:
            whole, parts["val"] = hold_out_share(Whole.of(parts["labelled"]), self.validation, self.seed, "val")
            parts["labelled"] = whole.stream
        if X_unlabelled is not None:
            parts["unlabelled"] = stream(inputs.read(X_unlabelled), None, "unlabelled")
        return parts

    def _recipe(self, count: int, unlabelled: bool, place: Path) -> Recipe:
        """The recipe that ``evenhand train`` would be given."""
        tree = self._ours(count, unlabelled) if self.recipe is None else self._given()
        _check_method(str(tree["method"]["name"]), unlabelled=unlabelled)
        keys: dict[str, Any] = {
            "method.net.name": self.net, "method.batch": self.batch, "method.optim.lr": self.lr,
            "run.steps": self.steps, "data.augment": self.augment, "data.embed": self.features or None,
        }  # fmt: skip
        if self.loss is not None:
            if self.loss not in LOSSES:
                raise UserError(f"loss = {self.loss!r} is unknown; {did_you_mean(str(self.loss), LOSSES)}")
            keys |= {f"method.{key}": value for key, value in LOSSES[self.loss].items()}
        keys |= {"run.seed": self.seed, "run.device": self.device, "run.progress": self.progress}
        keys |= {"data.set": ARRAYS, "run.folder": str(self.folder or place), **(self.options or {})}
        for key, value in keys.items():
            if value is not None:
                put(tree, key, list(value) if isinstance(value, tuple) else value)
        recipe = validate(tree, "Classifier")
        if recipe.needs or getattr(recipe.method, "name", "") == "second-stage":
            raise UserError("a recipe that needs another run cannot start from arrays: train it with evenhand train")
        return recipe

    def _ours(self, count: int, unlabelled: bool) -> dict[str, Any]:
        """Settings that do on small data within seconds."""
        kind, side = self._inputs.kind, min(self._inputs.shape[:2] or (0,))
        kind = "vectors" if self.features else kind
        net = {"vectors": "mlp", "texts": "text-mean", "images": "small-cnn" if side <= SMALL else "resnet18"}[kind]
        lr = {"vectors": 0.003, "texts": 0.01, "images": 0.003}[kind]
        batch = self.batch or min(64, count)
        steps = self.steps or min(3000, max(300, 30 * count // batch))
        optim = {"name": "adamw", "lr": lr, "weight_decay": 0.01, "schedule": "cosine", "schedule_by": "step"}
        method = {"name": self.method or ("fixmatch" if unlabelled else "classifier"), "batch": batch}
        if method["name"] in ("classifier", "fixmatch"):
            method["loss"] = "la"
        data = {"augment": ["crop"] if kind == "images" and side >= 24 else [], "strong": []} if kind != "texts" else {}
        if kind == "images" and unlabelled:
            data["strong"] = DataSettings().strong
        groups = {"groups": "thirds" if len(self.classes_) > 2 else "halves"}
        run = {"steps": steps, "eval_every": max(1.0, steps * batch / count / 5)}
        return {"data": data | groups, "method": method | {"net": {"name": net}, "optim": optim}, "run": run}

    def _given(self) -> dict[str, Any]:
        """A recipe of ours or a file, with the keys that say how samples are seen, not which they are."""
        if self.method is not None:
            raise UserError("a recipe names its method: give recipe or method, not both")
        recipe = load_recipe(str(self.recipe), ["run.folder=unused"])
        tree = recipe.model_dump(exclude_none=True, exclude={"expect", "smoke", "variants"})
        tree["data"] = {key: value for key, value in tree["data"].items() if key in SEEN[self._inputs.kind]}
        return tree


def _check_method(name: str, *, unlabelled: bool) -> None:
    """A method that predicts classes, with unlabelled samples if and only if it learns from them."""
    cls = method_class(name)
    family = cls.__module__.removeprefix("evenhand.methods.").partition(".")[0]
    if not issubclass(cls, Recogniser) or family == "adapt":
        raise UserError(f"method '{name}' does not learn classes from X and y: train it with evenhand train")
    if family == "recognise" and unlabelled:
        raise UserError(f"method '{name}' does not use X_unlabelled: leave it out, or set method='fixmatch'")
    if family == "unlabelled" and not unlabelled:
        raise UserError(f"method '{name}' needs X_unlabelled: give them to fit, or set method='classifier'")


def _prepared(settings: DataSettings, parts: Streams) -> Data:
    """With features in place of images where a frozen network is named."""
    if not settings.embed:
        return around(settings, parts)
    seen = Seen.of(parts["labelled"])
    return around(settings, embed(parts, settings.embed, settings.embed_size), seen=seen)


def _measured(folder: Path) -> dict[str, Any]:
    table = folder / "measure.json"
    return json.loads(table.read_text()) if table.is_file() else {}
