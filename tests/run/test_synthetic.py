"""``evenhand synthetic``: the same classifier on real and on generated images, and what its table may conclude."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from evenhand.cli import app
from evenhand.errors import UserError
from evenhand.run import synthetic as module
from evenhand.run.filling import fill
from evenhand.run.opening import open_run
from evenhand.run.recipe import Recipe, load_recipe, validate
from evenhand.run.synthetic import synthetic
from evenhand.run.synthetic_table import AUGMENTED, BASE, REWEIGHTED, USUAL, conclusion, drawn_file, of_drawn
from evenhand.run.training import train
from evenhand.tasks.generate import GENERATE
from helpers import seeded

pytestmark = pytest.mark.filterwarnings("ignore:drawn images of class", "ignore:class ", "ignore:one training image")

DATA = {"set": "shapes", "n_max": 12, "imbalance": 4, "val_per_class": 2, "augment": [], "groups": "3/4/3"}
CLASSIFIER = """
[data]
augment = ["flip"]
[method]
name = "classifier"
batch = 16
net = { name = "small-cnn", width = 2 }
optim = { schedule = "cosine", schedule_by = "step" }
[run]
steps = 3
threads = 1
progress = false
"""


def generator(folder: Path, annotator: Path, data: dict[str, Any] = DATA, **method: Any) -> Path:
    net = {"base": 64, "widest": 4, "latent": 4, "style": 4, "group": 2, "mapping_layers": 2}
    small = {"batch": 4, "net": net, "measure": {"judge_samples": 20, "samples": 20}}
    tree = {
        "data": data, "method": {"name": "stylegan2", **small, **method}, "needs": {"annotator": str(annotator)},
        "run": {"steps": 1, "progress": False, "threads": 1, "folder": str(folder)},
    }  # fmt: skip
    return train(validate(tree, "g"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("synthetic")


@pytest.fixture(scope="module")
def recipe(root: Path) -> str:
    (root / "plain.toml").write_text(CLASSIFIER)
    return str(root / "plain.toml")


@pytest.fixture(scope="module")
def annotator(root: Path, recipe: str) -> Path:
    base = load_recipe(recipe, {"run.folder": str(root / "annotator"), "run.steps": 8})
    return train(base.changed({f"data.{key}": value for key, value in DATA.items()}))


@pytest.fixture(scope="module")
def conditional(root: Path, annotator: Path) -> Path:
    return generator(root / "conditional", annotator)


@pytest.fixture(scope="module")
def unconditional(root: Path, annotator: Path) -> Path:
    return generator(root / "unconditional", annotator, condition="none")


@pytest.fixture(scope="module")
def compared(root: Path, recipe: str, conditional: Path) -> Path:
    return synthetic([conditional], recipe=recipe, seeds=2, out=root / "compared")


ROWS = ["real", "augmented", "reweighted", "usual", "conditional", "conditional-usual"]


def test_rows_differ_in_what_they_say_alone(compared: Path, conditional: Path) -> None:
    recipes = {name: load_recipe(compared / f"{name}-0" / "recipe.toml") for name in ROWS}
    assert {name: r.data.augment for name, r in recipes.items() if r.data.augment} == {
        name: ["flip"] for name in ("augmented", "usual", "conditional-usual")
    }
    losses = {name for name, r in recipes.items() if r.method.loss == "la"}
    assert losses == {"reweighted", "usual", "conditional-usual"}
    assert {name for name, r in recipes.items() if r.data.added} == {"conditional", "conditional-usual"}
    assert {r.run.steps for r in recipes.values()} == {3}
    theirs = json.loads((conditional / "streams.json").read_text())
    for name in ROWS:
        streams = json.loads((compared / f"{name}-0" / "streams.json").read_text())
        assert streams["test"]["digest"] == theirs["test"]["digest"]
        assert (streams["labelled"]["digest"] == theirs["labelled"]["digest"]) == (not recipes[name].data.added)
    counts = json.loads((compared / "conditional-0" / "streams.json").read_text())["labelled"]["counts"]
    assert counts == [12] * 10  # filled up to the largest class


def test_the_table_and_its_numbers(compared: Path) -> None:
    found = json.loads((compared / "synthetic.json").read_text())
    assert list(found["rows"]) == ["real", "augmented", "reweighted", "usual", "conditional", "conditional, usual"]
    tail = found["rows"]["conditional"]["tail"]
    measured = [
        100 * json.loads((compared / f"{row}-{seed}" / "measure.json").read_text())["group_recall"]["tail"]
        for row in ("conditional", "real") for seed in (0, 1)
    ]  # fmt: skip
    assert tail["seeds"] == pytest.approx({"0": measured[0], "1": measured[1]})
    apart = [measured[0] - measured[2], measured[1] - measured[3]]
    assert tail["difference"]["mean"] == pytest.approx(sum(apart) / 2)
    assert tail["difference"]["error"] == pytest.approx(abs(apart[0] - apart[1]) / 2)
    text = (compared / "table.md").read_text()
    for said in (found["conclusion"][0], "mid recall", "± "):
        assert said in text
    assert "drawn images, labels: asked; the annotator agrees with" in text
    assert (compared / "report.html").is_file()
    one, two = (np.load(compared / "drawn" / f"conditional-{seed}.npz")["x"] for seed in (0, 1))
    assert (one != two).any()  # each seed has images of its own


def test_it_goes_on_where_it_stopped_and_takes_more_seeds(
    compared: Path, recipe: str, conditional: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(module, "train_all", lambda recipes, _: asked.extend(r.run.folder for r in recipes))
    monkeypatch.setattr(module, "conclude", lambda *_: None)
    synthetic([conditional], recipe=recipe, seeds=2, out=compared)
    assert asked == []
    synthetic([conditional], recipe=recipe, seeds=3, out=compared)
    assert [Path(folder).name for folder in asked] == [f"{name}-2" for name in ROWS]
    with pytest.raises(UserError, match="differs in filled up to: choose another --out"):
        synthetic([conditional], recipe=recipe, seeds=2, out=compared, per_class=20)
    with pytest.raises(UserError, match=r"differs in classifier.method.batch"):
        synthetic([conditional], recipe=recipe, out=compared, overrides=["method.batch=8"])


def test_generators_of_any_kind_are_labelled_by_one_rule(
    root: Path, recipe: str, conditional: Path, unconditional: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="use --labels annotator for all"):
        synthetic([conditional, unconditional], recipe=recipe, seeds=1, out=root / "refused")
    trained: list[Recipe] = []
    monkeypatch.setattr(module, "train_all", lambda recipes, _: trained.extend(recipes))
    told: list[Any] = []
    monkeypatch.setattr(module, "conclude", lambda *given: told.extend(given))
    synthetic([conditional, unconditional], recipe=recipe, seeds=1, labels="annotator", per_class=14, out=root / "both")
    assert len(trained) == 8
    judge: Any = open_run(conditional).method
    for name in ("conditional", "unconditional"):
        drawn = np.load(root / "both" / "drawn" / f"{name}-0.npz")
        images = torch.from_numpy(drawn["x"])
        assert torch.equal(judge.judge.label(images), torch.from_numpy(drawn["y"]))
        facts = json.loads((root / "both" / "drawn" / f"{name}-0.json").read_text())
        assert facts["wanted"] == [14 - n for n in open_run(conditional).model.facts.counts]
    assert any("were wanted, but not found among" in line for line in told[3])  # of classes hardly drawn


def test_one_annotator_for_all(
    root: Path, recipe: str, annotator: Path, conditional: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = train(load_recipe(annotator, {"run.folder": str(root / "other"), "run.seed": 5}))
    second = generator(root / "second", other)
    with pytest.raises(UserError, match="different annotators: give one for all as --annotator"):
        synthetic([conditional, second], recipe=recipe, labels="annotator", out=root / "apart")
    monkeypatch.setattr(module, "train_all", lambda *_: None)
    monkeypatch.setattr(module, "conclude", lambda *_: None)
    out = synthetic(
        [conditional, second], recipe=recipe, labels="annotator", annotator=other, seeds=1, out=root / "together"
    )
    drawn = np.load(out / "drawn" / "conditional-0.npz")
    judge: Any = open_run(second).method
    assert torch.equal(judge.judge.label(torch.from_numpy(drawn["x"])), torch.from_numpy(drawn["y"]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("method.loss=vs", "re-weights by itself"),
        ("method.sampling=class-balanced", "re-weights by itself"),
        ("method.optim.warmup=2", "schedules by epochs"),
        ("data.augment=[]", "no augmentation to compare with"),
        ("data.n_max=5", "the data are the generators'"),
    ],
)
def test_a_classifier_that_would_not_compare_is_refused(
    root: Path, recipe: str, conditional: Path, change: str, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        synthetic([conditional], recipe=recipe, overrides=[change], out=root / "none")


def test_generators_that_do_not_compare_are_refused(
    root: Path, recipe: str, annotator: Path, conditional: Path
) -> None:
    with pytest.raises(UserError, match="draws no images"):
        synthetic([annotator], recipe=recipe)
    with pytest.raises(UserError, match="two rows would be called"):
        synthetic([conditional, conditional], recipe=recipe)
    with pytest.raises(UserError, match="nothing to fill up"):
        synthetic([conditional], recipe=recipe, per_class=1)
    fewer = generator(root / "fewer", annotator, {**DATA, "n_max": 8})
    with pytest.raises(UserError, match="on other data than conditional"):
        synthetic([conditional, fewer], recipe=recipe)


class Painter:
    """Draws the label asked for, or as many of each of the first three classes, as brightness."""

    task = GENERATE

    def __init__(self, *, labelled: bool) -> None:
        self.labelled = labelled

    def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
        labels = torch.arange(count) % 3 if labels is None else labels
        return labels.byte().view(-1, 1, 1, 1).expand(count, 1, 4, 4)


def named(images: Tensor) -> Tensor:
    return images[:, 0, 0, 0].long().clamp_max(2)  # who sees no fourth class


def test_filling_as_asked_says_how_far_the_labeller_agrees() -> None:
    found = fill(Painter(labelled=True), [1, 0, 2, 4], "asked", named, seeded())  # type: ignore[arg-type]
    assert found.labels.tolist() == [0, 2, 2, 3, 3, 3, 3]
    assert found.agreement == [1.0, None, 1.0, 0.0]


@pytest.mark.parametrize("labelled", [True, False])
def test_filling_by_the_labeller_leaves_short_what_it_does_not_find(labelled: bool) -> None:
    found = fill(Painter(labelled=labelled), [5, 0, 900, 4], "annotator", named, seeded())  # type: ignore[arg-type]
    assert found.labels.bincount(minlength=4).tolist() == [5, 0, 900, 0]
    assert torch.equal(named(found.images), found.labels)
    assert found.tried >= 20 * 909
    with pytest.raises(UserError, match="needs one: give --annotator"):
        fill(Painter(labelled=labelled), [1], "annotator", None, seeded())  # type: ignore[arg-type]


def values(*numbers: float) -> dict[str, dict[int, float]]:
    return {"mean_recall": dict(enumerate(numbers))}


def test_the_sentence_follows_from_the_numbers() -> None:
    found = {
        "real": values(60.0, 62.0, 64.0), "augmented": values(61.0, 63.5, 64.5), "reweighted": values(66.0, 68.0, 70.0),
        "usual": values(70.0, 71.0, 72.0), "G": values(63.0, 65.2, 66.9), "G, usual": values(70.5, 71.0, 71.8),
        "H": values(58.0, 60.1, 62.0), "H, usual": values(60.0, 61.0, 62.0),
    }  # fmt: skip
    first, second = conclusion(found, ["G", "H"])
    assert first == (
        "What G draws helps: mean recall +3.0 ± 0.1 points against real images alone, where augmentation makes "
        "+1.0 ± 0.3 and re-weighting +6.0 ± 0.0; beside both of these it makes no difference that 3 seeds can show "
        "(+0.1 ± 0.2)."
    )
    assert "H draws hurts: mean recall -2.0 ± 0.0" in second
    assert "it hurts (-10.0 ± 0.0)" in second
    alone = {name: values(*list(row["mean_recall"].values())[:1]) for name, row in found.items()}
    assert "What G draws is not judged by one seed: mean recall +3.0 points" in conclusion(alone, ["G"])[0]


def test_the_command_says_it(recipe: str, conditional: Path, compared: Path) -> None:
    (compared / "table.md").unlink()
    typed = ["synthetic", str(conditional), "--recipe", recipe, "--seeds", "2", "--out", str(compared)]
    said = CliRunner().invoke(app, typed)
    assert said.exit_code == 0, said.output
    assert json.loads((compared / "synthetic.json").read_text())["conclusion"][0] in said.output
    assert (compared / "table.md").is_file()
    assert CliRunner().invoke(app, [*typed, "--labels", "guessed"]).exit_code == 2
    for option in (["--labels", "annotator"], ["--per-class", "20"], ["--set", "method.batch=8"]):  # each is heard
        assert "choose another --out" in str(CliRunner().invoke(app, [*typed, *option]).exception)


def test_the_command_hands_on_all_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(module, "synthetic", lambda runs, **told: heard.append((runs, told)))
    typed = ["--recipe", "r", "--seeds", "5", "--first-seed", "2", "--labels", "annotator", "--annotator", "a"]
    typed += ["--per-class", "9", "--set", "x=1", "--out", "o", "--jobs", "3"]
    assert CliRunner().invoke(app, ["synthetic", "g", "h", *typed]).exit_code == 0
    assert heard == [(
        [Path("g"), Path("h")],
        {
            "recipe": "r", "seeds": 5, "first_seed": 2, "labels": "annotator", "annotator": Path("a"), "per_class": 9,
            "overrides": ["x=1"], "out": Path("o"), "jobs": 3,
        },
    )]  # fmt: skip


def test_defaults_are_three_seeds_from_nought_on_one_at_a_time() -> None:
    known = inspect.signature(synthetic).parameters
    assert [known[key].default for key in ("seeds", "first_seed", "jobs")] == [3, 0, 1]
    assert [known[key].default for key in ("recipe", "labels")] == ["synthetic", "asked"]


def test_rows_differ_in_views_and_weights() -> None:
    assert [(row.name, row.augmented, row.reweighted, row.drawn) for row in (BASE, AUGMENTED, REWEIGHTED, USUAL)] == [
        ("real", False, False, ""), ("augmented", True, False, ""), ("reweighted", False, True, ""),
        ("usual", True, True, ""),
    ]  # fmt: skip


def test_without_a_labeller_agreement_is_not_known() -> None:
    found = fill(Painter(labelled=True), [1, 0, 2], "asked", None, seeded())  # type: ignore[arg-type]
    assert (found.labels.tolist(), found.tried, found.agreement) == ([0, 2, 2], 3, [None] * 3)


class Recording(Painter):
    """Remembers which labels it was asked for."""

    def __init__(self) -> None:
        super().__init__(labelled=True)
        self.asked: list[Tensor] = []

    def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
        assert labels is not None
        self.asked.append(labels)
        return super().sample(count, labels, chance=chance)


def test_only_classes_that_are_missing_are_asked_for() -> None:
    drawer = Recording()
    found = fill(drawer, [700, 0, 1500], "annotator", named, seeded())  # type: ignore[arg-type]
    assert [labels.bincount(minlength=3).tolist() for labels in drawer.asked] == [[1024, 0, 1024], [0, 0, 2048]]
    assert (found.tried, found.labels.bincount(minlength=3).tolist()) == (4096, [700, 0, 1500])
    assert found.agreement == [None] * 3


def told(folder: Path, seed: int, **values: Any) -> None:
    path = drawn_file(folder, "G", seed).with_suffix(".json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"drawn": [2, 3], "wanted": [2, 3], "tried": 9, "agreement": [None, None], **values}))


def test_how_far_labels_can_be_trusted_is_said_as_means_over_seeds(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"labels": "asked", "labeller": None}
    told(tmp_path, 0)
    assert drawn_file(tmp_path, "G", 0) == tmp_path / "drawn" / "G-0.npz"
    assert of_drawn(tmp_path, ["G"], [0], [600, 500], plan) == ["G: 1,100 real and 5 drawn images, labels: asked."]
    told(tmp_path, 0, wanted=[2, 9], agreement=[1.0, 0.5])
    told(tmp_path, 1, wanted=[2, 9], agreement=[None, 0.25], tried=11)
    assert of_drawn(tmp_path, ["G"], [0, 1], [600, 500], plan) == [
        "G: 1,100 real and 5 drawn images, labels: asked; 6 more were wanted, but not found among 10; the annotator "
        "agrees with 50.0% of them, in the worst class 37.5%."
    ]
    for seen, rule, more in ((1101, "annotator", 1), (1100, "annotator", 0), (1101, "asked", 0)):
        plan = {"labels": rule, "labeller": {"trained on": seen}}
        assert len(of_drawn(tmp_path, ["G"], [0], [600, 500], plan)) == 1 + more
