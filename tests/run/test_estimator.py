"""``evenhand.Classifier``: scikit-learn's conventions on top of the one training path."""

from __future__ import annotations

import inspect
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import evenhand
from evenhand import Classifier
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.nets import build_net
from evenhand.report.page import write_report
from evenhand.run import estimator, handed, load_recipe, train

QUICK: dict[str, Any] = {"run.threads": 1, "method.net.width": 16}


def blobs(count: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds in the plane, the last one rare; labels are words."""
    rng = np.random.default_rng(seed)
    k = rng.choice(3, count, p=[0.6, 0.3, 0.1])
    k[:6] = [0, 0, 1, 1, 2, 2]
    return rng.normal(size=(count, 2)) + 4 * np.array([[0, 0], [1, 0], [0, 1]])[k], np.array(["oak", "elm", "ash"])[k]


def pictures(count: int = 24, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Bright on the left, or on the right; uint8 (N, H, W)."""
    rng = np.random.default_rng(0)
    k = np.arange(count) % 2
    x = rng.integers(0, 80, (count, side, side)).astype(np.uint8)
    for image, right in zip(x, k, strict=True):
        image[:, side // 2 :] += np.uint8(150 * right)
        image[:, : side // 2] += np.uint8(150 * (1 - right))
    return x, k


def quick(**given: Any) -> Classifier:
    return Classifier(**{"steps": 40, "lr": 0.05, "options": QUICK, **given})


def test_numbers_words_and_attributes() -> None:
    X, y = blobs()
    clf = quick().fit(X, y)
    assert clf.classes_.tolist() == ["ash", "elm", "oak"]
    assert clf.n_features_in_ == 2
    new, truth = blobs(seed=1)
    assert clf.score(new, truth) > 0.9
    probs = clf.predict_proba(new)
    assert probs.shape == (60, 3)
    np.testing.assert_allclose(probs.sum(1), 1)
    assert (clf.classes_[probs.argmax(1)] == clf.predict(new)).all()
    only_ash = (truth == "ash").astype(float)
    assert clf.score(new, truth, only_ash) == np.mean(clf.predict(new)[truth == "ash"] == "ash")


def test_it_is_the_training_of_the_command_line(tmp_path: Path) -> None:
    X, y = blobs()
    clf = quick(loss="drw").fit(X, y)
    names = clf.classes_.tolist()
    x32 = X.astype(np.float32)
    labels = np.array([names.index(one) for one in y])
    np.savez(tmp_path / "same.npz", x_train=x32, y_train=labels, x_test=x32, y_test=labels, classes=names)
    (tmp_path / "same.toml").write_text(clf.recipe_.toml())
    where = {"data.set": str(tmp_path / "same.npz"), "run.folder": str(tmp_path / "run")}
    theirs = evenhand.load(train(load_recipe(tmp_path / "same.toml", where))).probabilities(x32)
    np.testing.assert_allclose(clf.predict_proba(X), theirs.double().numpy(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("form", ["uint8", "0..1", "0..255", "colour", "channels first", "wide"])
def test_images_of_every_form(form: str) -> None:
    x, y = pictures()
    x = {
        "uint8": x,
        "0..1": (x / 255).astype(np.float32),
        "0..255": x.astype(np.float64),
        "colour": np.repeat(x[..., None], 3, 3),
        "channels first": np.repeat(x[:, None], 3, 1),
        "wide": np.repeat(x, 2, 2),
    }[form]
    clf = quick(steps=30, options={"run.threads": 1, "method.net.width": 4}).fit(x, y)
    assert clf.recipe_.method.net.name == "small-cnn"
    assert clf.score(x, y) == 1
    assert clf.score(x[:1], y[:1]) == 1  # of its own: the scale is fit's, not the batch's


def test_float_images_are_rounded_the_same_in_fit_and_predict() -> None:
    x, y = pictures()
    bytes_, floats = quick(steps=5).fit(x, y), quick(steps=5).fit(x / 255, y)
    np.testing.assert_array_equal(bytes_.predict_proba(x), floats.predict_proba(x / 255))
    dark = x[:3] // 200  # all below 1: still 0..255, as in fit
    np.testing.assert_array_equal(
        bytes_.predict_proba(dark), quick(steps=5).fit(x.astype(float), y).predict_proba(dark.astype(float))
    )


def test_texts() -> None:
    texts = ["a fine film", "a good film", "a dull play", "a bad play"] * 5
    clf = quick(steps=40, options={"run.threads": 1}).fit(texts, [1, 1, 0, 0] * 5)
    assert clf.predict(np.array(["good film", "dull and bad"])).tolist() == [1, 0]
    with pytest.raises(UserError, match="was fitted to texts"):
        clf.predict(np.zeros((2, 2)))


class Frame:
    """As much of a data frame as is asked for."""

    def __init__(self, values: np.ndarray, columns: list[str]) -> None:
        self.values, self.columns = values, columns

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values, dtype)

    def __len__(self) -> int:
        return len(self.values)


def test_a_data_frames_columns_are_remembered() -> None:
    X, y = blobs()
    clf = quick(steps=2).fit(Frame(X, ["height", "girth"]), y)
    assert clf.feature_names_in_.tolist() == ["height", "girth"]
    assert len(clf.predict(Frame(X, ["height", "girth"]))) == len(X)
    with pytest.raises(UserError, match="feature names should match"):
        clf.predict(Frame(X, ["girth", "height"]))


def test_same_seed_same_model_and_the_global_generators_are_left_alone() -> None:
    X, y = blobs()
    torch.manual_seed(5)
    np.random.seed(5)
    first, again, other = (quick(steps=5, seed=seed).fit(X, y).predict_proba(X) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    drawn = torch.rand(3), np.random.rand(3)
    torch.manual_seed(5)
    np.random.seed(5)
    assert torch.equal(drawn[0], torch.rand(3))
    assert np.array_equal(drawn[1], np.random.rand(3))


def test_a_pickle_is_the_model() -> None:
    X, y = blobs()
    clf = quick(steps=5).fit(X, y)
    twin = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(twin.predict_proba(X), clf.predict_proba(X))
    assert twin.get_params() == clf.get_params()


def test_every_argument_reaches_the_recipe() -> None:
    X, y = blobs()
    plain = quick(steps=2).fit(X, y).recipe_
    assert (plain.method.name, plain.method.loss, plain.method.net.name) == ("classifier", "la", "mlp")
    given = Classifier(
        loss="balanced", net="mlp-bn", steps=3, batch=7, lr=0.5, seed=4, device="cpu", options={"method.beta": 0.5}
    )
    recipe = given.fit(X, y).recipe_
    assert (recipe.method.loss, recipe.method.sampling) == ("ce", "class-balanced")
    assert (recipe.method.net.name, recipe.run.steps, recipe.method.batch) == ("mlp-bn", 3, 7)
    assert (recipe.method.optim.lr, recipe.run.seed, recipe.method.beta) == (0.5, 4, 0.5)
    assert recipe.run.device == "cpu"
    for loss, key, value in (("drw", "weighting", "drw"), ("reweighted", "weighting", "always"), ("vs", "loss", "vs")):
        assert getattr(quick(steps=1, loss=loss).fit(X, y).recipe_.method, key) == value
    x, k = pictures(side=32)
    assert quick(steps=1).fit(x, k).recipe_.data.augment == ["crop"]
    assert quick(steps=1, augment=("flip",)).fit(x, k).recipe_.data.augment == ["flip"]


def test_small_data_are_gone_over_thirty_times_within_bounds() -> None:
    clf = quick(steps=1).fit(*blobs()).set_params(steps=None)
    steps = {count: clf._ours(count, False)["run"]["steps"] for count in (64, 1280, 5000, 100_000)}
    assert steps == {64: 300, 1280: 600, 5000: 2343, 100_000: 3000}


def test_a_recipe_of_ours_is_the_start() -> None:
    X, y = blobs()
    named = Classifier(recipe="folder:ce-drw", net="mlp", steps=2)
    recipe = named.fit(X, y).recipe_
    assert (recipe.method.weighting, recipe.method.optim.lr) == ("drw", 0.05)
    assert recipe.method.net.name == "mlp"
    x, k = pictures(side=16)
    sized = Classifier(recipe="folder", steps=1, options={"data.size": 12, "data.normalise": "data"}).fit(x, k)
    assert sized.model_.facts.size == [12, 12]
    assert len(sized.predict(x)) == len(x)


def test_features_of_a_frozen_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    torch.save(build_net("small-cnn", num_classes=2).state_dict(), tmp_path / "cnn.pt")
    x, y = pictures()
    clf = quick(features=f"small-cnn:{tmp_path / 'cnn.pt'}").fit(x, y)
    assert (clf.recipe_.method.net.name, clf.model_.facts.kind) == ("mlp", "vectors")
    assert clf.score(x, y) == 1
    np.testing.assert_allclose(clf.predict_proba(x[:1]), clf.predict_proba(x)[:1], atol=1e-5)


def test_held_out_samples_are_measured_and_not_trained_on() -> None:
    X, y = blobs()
    clf = quick(validation=0.2).fit(X, y)
    assert sum(clf.measured_["train_counts"]) < 60
    assert clf.measured_["split"] == "val"
    assert quick(steps=2).fit(X, y).measured_ == {}
    own = quick(steps=2).fit(X, y, X_val=X[:10], y_val=y[:10])
    assert (sum(own.measured_["train_counts"]), own.measured_["split"]) == (60, "val")
    with pytest.raises(UserError, match=r"y_val has the label 'fir'"):
        quick(steps=2).fit(X, y, X_val=X[:1], y_val=["fir"])
    with pytest.raises(UserError, match=r"validation = 2 is no share"):
        quick(validation=2).fit(X, y)


def test_unlabelled_samples_are_learnt_from() -> None:
    X, y = blobs()
    more = blobs(seed=3)[0]
    with_them = quick(steps=20).fit(X, y, X_unlabelled=more)
    assert with_them.recipe_.method.name == "fixmatch"
    other = quick(steps=20).fit(X, y, X_unlabelled=more[:20])
    assert not np.array_equal(with_them.predict_proba(X), other.predict_proba(X))
    csst = quick(steps=3, method="csst", validation=0.2).fit(X, y, more)
    assert csst.recipe_.method.name == "csst"
    with pytest.raises(UserError, match=r"'classifier' does not use X_unlabelled: leave it out"):
        quick(method="classifier").fit(X, y, more)
    with pytest.raises(UserError, match=r"'fixmatch' needs X_unlabelled"):
        quick(method="fixmatch").fit(X, y)


def test_a_folder_is_a_run_with_a_report(tmp_path: Path) -> None:
    X, y = blobs()
    clf = quick(folder=tmp_path / "trees", validation=0.2).fit(X, y)
    page = write_report([tmp_path / "trees"], tmp_path / "report.html")
    text = Path(page).read_text()
    assert "oak" in text
    assert f"{100 * clf.measured_['mean_recall']:.1f}" in text
    loaded = evenhand.load(tmp_path / "trees")
    np.testing.assert_allclose(loaded.probabilities(X.astype(np.float32)).numpy(), clf.predict_proba(X), atol=1e-6)
    with pytest.raises(UserError, match=r"already holds a run"):
        quick(folder=tmp_path / "trees").fit(X, y)
    with pytest.raises(UserError, match=r"were arrays of a Python program: save them as \.npz"):
        evenhand.run.open_run(tmp_path / "trees").data()


MISTAKES: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "one class": ({}, np.zeros((3, 2)), [1, 1, 1], "y has one class, .*1"),
    "no label": ({}, np.zeros((3, 2)), None, "requires y"),
    "fewer labels": ({}, np.zeros((3, 2)), [1, 0], "X has 3 samples and y 2"),
    "measurements": ({}, np.zeros((3, 2)), [0.5, 1.5, 2.5], "Unknown label type: continuous"),
    "a gap": ({}, np.array([[0.0, np.nan], [1, 2]]), [0, 1], "contains NaN: fill it in"),
    "one text": ({}, "a fine film", ["good"], "give a list of texts"),
    "loss": ({"loss": "balance"}, np.eye(4), [0, 1, 0, 1], "did you mean 'balanced'"),
    "net": ({"net": "mpl"}, np.eye(4), [0, 1, 0, 1], "did you mean 'mlp'"),
    "images' net": ({"net": "resnet8"}, np.eye(4), [0, 1, 0, 1], "'resnet8' does not read vectors; .* such as 'mlp'"),
    "vectors' net": ({"net": "mlp"}, np.zeros((4, 8, 8, 3), np.uint8), [0, 1, 0, 1], "'mlp' does not read images"),
    "method": ({"method": "clasifier"}, np.eye(4), [0, 1, 0, 1], "did you mean 'classifier'"),
    "option": ({"options": {"run.step": 3}}, np.eye(4), [0, 1, 0, 1], "unknown key 'step' in .run."),
    "both": ({"method": "fixmatch", "recipe": "folder"}, np.eye(4), [0, 1, 0, 1], "recipe or method, not both"),
    "domains": ({"recipe": "adapt"}, np.eye(4), [0, 1, 0, 1], "does not learn classes from X and y"),
    "drawing": ({"method": "gan"}, np.eye(4), [0, 1, 0, 1], "does not learn classes"),
    "needs": ({"recipe": "second-stage"}, np.eye(4), [0, 1, 0, 1], "needs another run"),
    "pixels": ({}, np.full((2, 4, 4), 300.0), [0, 1], r"expected 0\.\.255"),
    "axes": ({}, np.zeros((2, 1, 1, 1, 1)), [0, 1], "X has 5 axes"),
}


@pytest.mark.parametrize(("given", "X", "y", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_one_line(given: dict[str, Any], X: Any, y: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        Classifier(**given).fit(X, y)
    assert "\n" not in str(caught.value)


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sklearn", "sklearn.exceptions", "sklearn.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    X, y = np.eye(8), [[0], [1]] * 4
    clf = quick(steps=2)
    with pytest.raises(ValueError, match="call fit first"):
        clf.predict(X)
    with pytest.warns(UserWarning, match="column-vector"):
        clf.fit(X, y)
    assert clf.predict(X).shape == (8,)
    for module in (estimator, handed):
        assert not any(line.startswith(("import sk", "from sk")) for line in inspect.getsource(module).splitlines())


def test_parameters_come_and_go() -> None:
    clf = Classifier(loss="ce", steps=9)
    assert repr(clf) == "Classifier(loss='ce', steps=9)"
    assert clf.set_params(steps=3).get_params()["steps"] == 3
    with pytest.raises(ValueError, match=r"no parameter 'step'; did you mean 'steps'"):
        clf.set_params(step=3)


def test_defaults_look_at_validation_five_times_but_at_most_once_an_epoch() -> None:
    """Forty vectors: 300 steps are 300 epochs; 1000: 468 steps of 64 are 29.952; 20,000: 3000 are 9.6."""
    clf = Classifier()
    clf._inputs, clf.classes_ = handed.Inputs("vectors", (2,)), np.array(["elm", "oak"])
    for count, steps, every in ((40, 300, 300 / 5), (1000, 468, 29.952 / 5), (20_000, 3000, 9.6 / 5)):
        run = clf._ours(count, False)["run"]
        assert run == {"steps": steps, "eval_every": pytest.approx(every)}
    assert clf._ours(10**6, False)["run"]["eval_every"] == 1
    clf.set_params(steps=100)  # of a thousand in batches of 64: 6.4 epochs
    assert clf._ours(1000, False)["run"]["eval_every"] == pytest.approx(6.4 / 5)


def ours(inputs: handed.Inputs, classes: int = 3, *, unlabelled: bool = False, **given: Any) -> dict[str, Any]:
    """The recipe's tree for a hundred such samples."""
    clf = Classifier(**given)
    clf._inputs, clf.classes_ = inputs, np.arange(classes)
    return clf._ours(100, unlabelled)


def test_defaults_follow_the_kind_of_samples() -> None:
    vectors, texts = ours(handed.Inputs("vectors", (2,))), ours(handed.Inputs("texts"))
    assert vectors["data"] == {"augment": [], "strong": [], "groups": "thirds"}
    assert texts["data"] == {"groups": "thirds"}
    assert ours(handed.Inputs("texts"), 2)["data"] == {"groups": "halves"}
    assert [tree["method"]["net"]["name"] for tree in (vectors, texts)] == ["mlp", "text-mean"]
    assert [tree["method"]["optim"]["lr"] for tree in (vectors, texts)] == [0.003, 0.01]
    assert vectors["method"]["optim"]["weight_decay"] == 0.01
    assert (vectors["method"]["batch"], ours(handed.Inputs("texts"), batch=9)["method"]["batch"]) == (64, 9)
    for side, net, augment in ((23, "small-cnn", []), (24, "small-cnn", ["crop"]), (65, "resnet18", ["crop"])):
        tree = ours(handed.Inputs("images", (side, 99)))
        assert (tree["method"]["net"]["name"], tree["method"]["optim"]["lr"]) == (net, 0.003)
        assert tree["data"] == {"augment": augment, "strong": [], "groups": "thirds"}
    assert ours(handed.Inputs("images", (64, 64)))["method"]["net"]["name"] == "small-cnn"
    assert ours(handed.Inputs("images", (64, 64)), features="f")["data"]["augment"] == []


def test_defaults_follow_what_is_learnt_from() -> None:
    images = handed.Inputs("images", (32, 32))
    assert ours(images, unlabelled=True)["data"]["strong"] == DataSettings().strong != []
    assert ours(handed.Inputs("vectors", (2,)), unlabelled=True)["data"]["strong"] == []
    names = [ours(images, unlabelled=told)["method"] for told in (False, True)]
    assert [(method["name"], method["loss"]) for method in names] == [("classifier", "la"), ("fixmatch", "la")]
    other = ours(images, method="csst")["method"]
    assert (other["name"], "loss" in other) == ("csst", False)


def test_a_fresh_classifier_has_these_arguments() -> None:
    given = Classifier().get_params()
    assert (given["validation"], given["seed"], given["progress"], given["device"]) == (0.0, 0, False, "auto")
    assert {key for key, value in given.items() if value is None} == {
        "loss", "method", "net", "augment", "steps", "batch", "lr", "folder", "recipe", "options",
    }  # fmt: skip


@pytest.mark.parametrize(("share", "fine"), [(-0.1, False), (1.0, False), (0.0, True), (0.5, True)])
def test_what_is_held_out_is_a_share_below_one(share: float, fine: bool) -> None:
    X, y = blobs()
    clf = Classifier(validation=share)
    clf._inputs, clf.classes_ = handed.Inputs.of(X), np.unique(y)
    recipe: Any = SimpleNamespace(data=DataSettings())
    if not fine:
        with pytest.raises(UserError, match="is no share"):
            clf._parts(clf._inputs.read(X), y, None, None, None, recipe)
        return
    parts = clf._parts(clf._inputs.read(X), y, X[:7], None, None, recipe)
    assert parts.keys() == {"labelled", "unlabelled"} | ({"val"} if share else set())
    assert (len(parts["unlabelled"]), parts["unlabelled"].labels) == (7, None)
    assert len(parts["labelled"]) + len(parts.get("val", ())) == 60
