"""Adaptation runs: selection without target labels, the oracle kept beside it, and what goes wrong said once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.data.views.view import OfSamples
from evenhand.errors import UserError
from evenhand.measure.shift import SCORES, adaptation_troubles
from evenhand.methods import method_class
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.run import checkpoint
from evenhand.run.loop import fit
from evenhand.run.measuring import measure
from evenhand.run.opening import open_run
from evenhand.run.recipe import validate
from evenhand.run.selection import LABEL_FREE, check_selection
from evenhand.run.settings import Run
from evenhand.run.training import fit_recipe, train
from evenhand.tasks.classify import CLASSIFY, some_rows
from evenhand.tasks.generate import GENERATE
from helpers import toy_data

K, D = 3, 5


class Aligner(Recogniser):
    """Says of each sample what its vector says, times a scale that follows a plan, one entry for each step."""

    def __init__(self, plan: list[float], discriminator: bool = True) -> None:
        self.plan, self.scale, self.tells = plan, plan[0], discriminator
        self.data = toy_data("abc")

    embeds = True

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        return {"source": Feed("source", 4, (OfSamples(lambda x, _: x),))}

    def schedule(self, at: Progress) -> None:
        self.scale = self.plan[at.step]

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        return {"loss": torch.tensor(1.0)}

    def predict(self, x: Tensor) -> Tensor:
        return self.scale * x[:, :K]

    def embed(self, x: Tensor) -> Tensor:
        return x

    def tell(self, x: Tensor) -> Tensor:
        return x[:, -1]

    def state(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


def vectors(count: int, last: float, seed: int) -> Stream:
    """Class k has its k-th entry high, and the last entry near ``last``."""
    y = torch.arange(count) % K
    noise = torch.randn(count, D, generator=torch.Generator().manual_seed(seed))
    x = nn.functional.one_hot(y, D).float() * 2 + 0.3 * noise
    x[:, -1] += last
    return Stream(Memory(x), y, ("a", "b", "c"), "some")


@pytest.fixture
def streams() -> Streams:
    target = vectors(60, -4, 1)
    return {"source": vectors(40, 4, 0), "target": target.unlabelled(), "val": vectors(30, 4, 2), "test": target}


def fitted(folder: Path, streams: Streams, plan: list[float], **run: Any) -> list[dict[str, Any]]:
    settings = Run(folder=str(folder), steps=len(plan), eval_every=0.1, progress=False, **run)
    fit(Aligner(plan), streams, settings)
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# rules


@pytest.mark.parametrize("score", LABEL_FREE)
def test_a_label_free_score_chooses_its_best_evaluation(score: str, streams: Streams, tmp_path: Path) -> None:
    log = fitted(tmp_path, streams, [0.5, 3.0, 1.0, -1.0], select=f"label-free:{score}")
    rows = [row for row in log if row["kind"] == ("val" if score == "source-risk" else "target")]
    values = [-row["loss"] if score == "source-risk" else row[score] for row in rows]
    assert checkpoint.load(tmp_path / "best.pt")["step"] == 1 + values.index(max(values))
    assert "test" not in {row["kind"] for row in log}


def test_scores_are_those_of_the_targets_predictions(streams: Streams) -> None:
    method = Aligner([2.0])
    row = CLASSIFY.watch(method, streams, batch=7)["target"]
    logits = method.predict(streams["target"].fetch(torch.arange(60)))
    for name, score in SCORES.items():
        assert row[name] == pytest.approx(score(logits))
    assert row["domain_accuracy"] == 1.0
    assert row["a_distance"] == 2.0
    assert row["largest_share"] == pytest.approx(1 / 3, abs=0.05)
    assert row["effective_classes"] == pytest.approx(3, abs=0.1)
    assert "domain_accuracy" not in CLASSIFY.watch(Aligner([2.0], discriminator=False), streams, batch=7)["target"]
    assert CLASSIFY.watch(method, {"source": streams["source"]}, batch=7) == {}


@pytest.mark.parametrize(("trains_on_target", "compared"), [(True, "source"), (False, "val")])
def test_seen_is_compared_with_seen(trains_on_target: bool, compared: str) -> None:
    """A network knows what it was trained on: here the last entry of a vector says so."""
    domains = {"source": vectors(300, 3, 0), "val": vectors(300, -3, 1)}
    domains["target"] = vectors(300, 3 if trains_on_target else -3, 2).unlabelled()

    class Trained(Aligner):
        def feeds(self, streams: Streams) -> dict[str, Feed]:
            own = super().feeds(streams)
            return own | {"target": own["source"]} if trains_on_target else own

    row = CLASSIFY.watch(Trained([2.0]), domains, batch=7)["target"]
    assert abs(row["a_distance"]) < 0.4
    assert row["domain_accuracy"] == pytest.approx(0.5, abs=0.01)
    told = [domains[name].fetch(torch.arange(300))[:, -1] for name in (compared, "target")]
    loss = (nn.functional.softplus(-told[0]).mean() + nn.functional.softplus(told[1]).mean()) / 2
    assert row["domain_loss"] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(("held_out", "adapted"), [(True, 300), (False, 300), (False, 290)])
def test_at_the_end_unseen_is_compared_with_unseen_where_there_are_both(
    held_out: bool, adapted: int, tmp_path: Path
) -> None:
    """The source's labels were learned, the target's not: seen samples lie apart (3 and 1), others do not.

    Of a target without a test of its own, data.target_max adapts to some of what it is tested on.
    """
    domains = {"source": vectors(300, 3, 0), "val": vectors(300, -3, 1), "target": vectors(300, 1, 2)}
    domains["test"] = vectors(300, -3, 3) if held_out else domains["target"]
    domains["target"] = domains["target"].subset(torch.arange(adapted)).unlabelled()

    class Trained(Aligner):
        def feeds(self, streams: Streams) -> dict[str, Feed]:
            own = super().feeds(streams)
            return own | {"target": own["source"]}

    method = Trained([2.0])
    found = CLASSIFY.finish(method, replace(method.data, streams=domains), tmp_path, batch=16)["adaptation"]
    assert (found["a_distance"] < 0.7) == held_out
    pair = ("val", "test") if held_out else ("source", "target")
    told = [domains[name].fetch(torch.arange(len(domains[name])))[:, -1] for name in pair]
    loss = (nn.functional.softplus(-told[0]).mean() + nn.functional.softplus(told[1]).mean()) / 2
    assert found["domain_loss"] == pytest.approx(float(loss), rel=1e-5)
    shown = domains[pair[0]].labels
    assert shown is not None
    assert found["source_points"]["labels"] == shown.tolist()
    assert found["target_points"]["labels"] == domains["test"].labels.tolist()  # type: ignore[union-attr]


def test_without_held_out_source_an_untrained_target_is_compared_with_nothing() -> None:
    """Trained-on source images lie apart from any that were not: two halves of one set came to 0.6."""
    domains = {"source": vectors(300, 3, 0), "target": vectors(300, -3, 2).unlabelled()}
    row = CLASSIFY.watch(Aligner([2.0]), domains, batch=7)["target"]
    assert not {"a_distance", "domain_accuracy", "domain_loss"} & row.keys()
    assert {"infomax", "largest_share"} <= row.keys()


def test_two_halves_of_one_set_are_one_domain_and_no_alarm_sounds(tmp_path: Path) -> None:
    """Domain-adversarial training on them ends where it should: at chance, at distance 0, and healthy."""
    import numpy as np

    distances = []
    for seed in range(3):
        chance = torch.Generator().manual_seed(seed)
        y = torch.randperm(1600, generator=chance) % 4
        x = nn.functional.one_hot(y, 128) + torch.randn(1600, 128, generator=chance)
        for name, rows in (("a", slice(0, 800)), ("b", slice(800, 1600))):
            np.savez(tmp_path / f"{name}.npz", x=x[rows].numpy(), y=y[rows].numpy())
        recipe = validate(
            {
                "data": {"set": str(tmp_path / "a.npz"), "target": str(tmp_path / "b.npz"), "val_share": 0.5},
                "method": {
                    "name": "domain-adversarial", "batch": 64, "net": {"name": "mlp-bn", "width": 128}, "mcc": 1.0,
                    "bottleneck": 32, "discriminator": {"hidden": 64}, "reversal": {"steps": 20}, "optim": {"lr": 0.05},
                },
                "run": {"steps": 150, "folder": str(tmp_path / str(seed)), "progress": False, "eval_every": 99},
            },
            "halves",
        )  # fmt: skip
        _, data, method = fit_recipe(recipe)
        row = CLASSIFY.watch(method, data.streams)["target"]
        assert row["domain_accuracy"] == pytest.approx(0.5, abs=0.1)
        assert adaptation_troubles(row) == {}
        distances.append(row["a_distance"])
    assert abs(sum(distances) / 3) < 0.2, distances


def test_labels_of_the_target_are_never_read(streams: Streams, tmp_path: Path) -> None:
    """Other labels behind the target's images, the same run."""
    assert streams["test"].labels is not None
    logs = []
    for name, labels in (("a", streams["test"].labels), ("b", streams["test"].labels.flip(0))):
        test = Stream(streams["test"].samples, labels, streams["test"].classes, "test")
        rows = fitted(tmp_path / name, {**streams, "test": test}, [0.5, 3.0, -1.0], select="label-free:infomax")
        logs.append([{k: v for k, v in row.items() if k != "images_per_second"} for row in rows])
    assert logs[0] == logs[1]


def test_the_oracles_choice_is_kept_beside_the_honest_one(streams: Streams, tmp_path: Path) -> None:
    plan = [1.0, -3.0]  # wrong and sure: the entropy likes it
    fitted(tmp_path, streams, plan, select="label-free:entropy", select_also=["oracle:accuracy", "val:loss"])
    chosen = {path.name: checkpoint.load(path)["step"] for path in tmp_path.glob("best*.pt")}
    assert chosen == {"best.pt": 2, "best-oracle-accuracy.pt": 1, "best-val-loss.pt": 1}


def test_further_rules_survive_a_pause(streams: Streams, tmp_path: Path) -> None:
    plan, how = [3.0, 1.0, 0.5, 0.2], {"select": "last", "select_also": ["label-free:infomax", "oracle:loss"]}
    fitted(tmp_path, streams, plan, stop_after=2, **how)
    fitted(tmp_path, streams, plan, resume=True, **how)
    content = checkpoint.load(tmp_path / "last.pt")
    assert checkpoint.load(tmp_path / "best-label-free-infomax.pt")["step"] == 1
    assert content["best_also"].keys() == {"label-free:infomax", "oracle:loss"}
    assert all(math.isfinite(score) for score in content["best_also"].values())


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ({"select": "label-free:entrpy"}, "'entrpy' is no label-free score; did you mean 'entropy'"),
        ({"select": "label-free"}, "is not a rule; use last, val:<metric>, label-free:<score>"),
        ({"select_also": ["oracle"]}, "'oracle' is not a rule"),
        ({"select_also": ["last"]}, "kept anyway"),
        ({"select": "val:loss", "select_also": ["val:loss"]}, "kept anyway"),
    ],
)
def test_unknown_rules_are_refused_when_the_recipe_is_read(run: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        validate({"method": {"name": "classifier"}, "run": run}, "mine")


def test_rules_without_their_stream_are_refused(streams: Streams) -> None:
    bare = {"source": streams["source"]}
    with pytest.raises(UserError, match=r"'label-free:infomax' needs a 'target' stream; name one in data\.target"):
        check_selection(Aligner([1.0]), bare, "label-free:infomax")
    with pytest.raises(UserError, match="'label-free:source-risk' needs a 'val' stream"):
        check_selection(Aligner([1.0]), bare, "last", ["label-free:source-risk"])


@pytest.mark.parametrize("name", ["ece_scaled", "cls_tail", "entropy"])
def test_what_is_measured_at_the_end_alone_chooses_no_checkpoint(name: str, streams: Streams) -> None:
    with pytest.raises(UserError, match=f"'{name}' is measured once, at the end of a run; use one of accuracy, mean_"):
        check_selection(Aligner([1.0]), streams, f"val:{name}")


def test_what_an_annotator_would_tell_chooses_no_checkpoint_without_one(streams: Streams) -> None:
    method: Any = SimpleNamespace(task=GENERATE, judge=SimpleNamespace(annotator=None))
    with pytest.raises(UserError, match=r"'val:label_kl': nobody names the classes .* set needs.annotator, or select"):
        check_selection(method, streams, "val:label_kl")
    check_selection(method, streams, "val:fid")
    method.judge.annotator = object()
    check_selection(method, streams, "val:label_kl")


@pytest.mark.parametrize("run", [{"select": "val:mid"}, {"select_also": ["val:mid"]}])
def test_a_group_that_the_rule_does_not_make_chooses_no_checkpoint(run: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'val:mid': data.groups makes no mid, only head and tail; select another"):
        fit_recipe(grouped(tmp_path, "9/1", **run))


def test_a_group_without_samples_chooses_no_checkpoint(streams: Streams) -> None:
    method = Aligner([1.0])
    method.data = toy_data("abc", groups={"head": [0, 1], "tail": [2]})
    val = streams["val"]
    no_tail = {**streams, "val": val.subset(torch.arange(len(val))[val.labels != 2])}
    with pytest.raises(UserError, match="'val:tail': 'val' has no sample of tail; hold some out, or select another"):
        check_selection(method, no_tail, "val:tail")
    check_selection(method, no_tail, "val:min_head_tail_recall", ["oracle:tail", "val:head"])  # the rest is enough


@pytest.mark.parametrize("select", ["val:tail", "val:min_head_tail_coverage"])
def test_groups_that_are_there_choose(select: str, tmp_path: Path) -> None:
    fit_recipe(grouped(tmp_path, "9/1", select=select))
    assert (tmp_path / "best.pt").is_file()


def grouped(folder: Path, groups: str, **run: Any) -> Any:
    return validate(
        {
            "data": {"set": "shapes", "n_max": 4, "val_per_class": 1, "groups": groups},
            "method": {"name": "classifier", "batch": 8, "net": {"name": "small-cnn", "width": 2}},
            "run": {"steps": 1, "folder": str(folder), "progress": False, **run},
        },
        "groups",
    )


def test_measured_beside_never_in_place_of(tmp_path: Path) -> None:
    recipe = {
        "data": {"set": "shapes", "n_max": 12, "val_per_class": 5},
        "method": {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 4}, "optim": {"lr": 0.5}},
        "run": {
            "folder": str(tmp_path / "run"), "epochs": 4, "progress": False, "select": "last",
            "select_also": ["oracle:accuracy", "val:loss"],
        },
    }  # fmt: skip
    folder = train(validate(recipe, "mine"))
    found = json.loads((folder / "measure.json").read_text())
    for rule, with_labels in (("oracle:accuracy", True), ("val:loss", False)):
        also = found["also"][rule]
        other = open_run(folder, name=also["checkpoint"])
        judged = other.method.task.score(other.method, other.data().streams["test"], batch=512)
        assert (also["accuracy"], also["step"]) == (pytest.approx(judged["accuracy"]), other.step)
        assert also["chosen_with_target_labels"] is with_labels
    own = open_run(folder)
    assert found["accuracy"] == pytest.approx(
        own.method.task.score(own.method, own.data().streams["test"], batch=512)["accuracy"]
    )
    assert found["also"]["oracle:accuracy"]["accuracy"] >= found["accuracy"]
    assert measure(folder) == found


# health


HEALTHY = {
    "domain_accuracy": 0.6, "domain_loss": 0.65, "a_distance": 1.0, "largest_share": 0.2,
    "effective_classes": 8.0, "possible_classes": 10.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, []),
        ({"domain_accuracy": 0.98}, ["wins"]),
        ({"domain_accuracy": 0.51, "domain_loss": math.log(2), "a_distance": 1.1}, ["dead"]),
        ({"domain_accuracy": 0.51, "domain_loss": math.log(2), "a_distance": 0.1}, []),  # they do mix
        ({"domain_accuracy": 0.51, "domain_loss": math.log(2), "a_distance": 0.8}, []),  # as well as in a good run
        ({"domain_accuracy": 0.51, "domain_loss": 0.9, "a_distance": 1.1}, []),
        ({"domain_accuracy": 0.58, "domain_loss": math.log(2), "a_distance": 1.1}, []),
        ({"effective_classes": 1.3, "largest_share": 0.95}, ["collapse"]),
        ({"effective_classes": 1.2, "possible_classes": 1.0}, []),  # one sample
    ],
)
def test_troubles(change: dict[str, float], kinds: list[str]) -> None:
    found = adaptation_troubles({**HEALTHY, **change})
    assert list(found) == kinds
    assert all("method." in said and "\n" not in said for said in found.values())
    assert adaptation_troubles({}) == {}


@pytest.mark.parametrize("name", ["vaada", "mme", "domain-adversarial"])
def test_remedies_are_keys_of_the_method(name: str) -> None:
    """In training as in a report, which knows the table as it was written, without what is left at None."""
    table = method_class(name).table
    bad = {**HEALTHY, "effective_classes": 1.3}
    states = [{**bad, "domain_accuracy": 0.98}, {**bad, "domain_accuracy": 0.5, "domain_loss": math.log(2)}]
    for keys in (table.model_fields, table().model_dump(exclude_none=True)):
        for state in states:
            said = " ".join(CLASSIFY.troubles({"target": state}, keys).values())
            named = {word.strip(",").split(".")[1] for word in said.split() if word.startswith("method.")}
            assert named
            assert named <= table.model_fields.keys()


def test_warnings_come_late_and_once(streams: Streams, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = fitted(tmp_path, streams, [1.0] * 8)
    events = [row for row in log if row["kind"] == "event"]
    assert [(row["step"], row["event"]) for row in events] == [(4, "warning")]
    assert "the discriminator wins (domain accuracy 1.00" in events[0]["warning"]
    assert capfd.readouterr().err.count("the discriminator wins") == 1


def test_a_warning_is_not_logged_again_after_a_pause(streams: Streams, tmp_path: Path) -> None:
    whole = fitted(tmp_path / "whole", streams, [1.0] * 8)
    for pause in range(1, 8):
        folder = tmp_path / str(pause)
        fitted(folder, streams, [1.0] * 8, stop_after=pause)
        log = fitted(folder, streams, [1.0] * 8, resume=True)
        warned = [[row for row in rows if row.get("event") == "warning"] for rows in (whole, log)]
        assert warned[0] == warned[1]


def test_picture_of_both_domains(streams: Streams, tmp_path: Path) -> None:
    method = Aligner([1.0])
    found = CLASSIFY.finish(method, replace(method.data, streams=streams), tmp_path, batch=16)["adaptation"]
    assert found["source_points"]["labels"] == (torch.arange(30) % K).tolist()
    xs = [torch.tensor(found[f"{name}_points"]["xy"])[:, 0] for name in ("source", "target")]
    assert xs[0].min() > xs[1].max()  # the last entry varies most
    unlabelled = {name: stream for name, stream in streams.items() if name != "test"}
    found = CLASSIFY.finish(method, replace(method.data, streams=unlabelled), tmp_path, batch=16)["adaptation"]
    assert found["target_points"]["labels"] is None


def test_rows_are_spread_over_the_stream() -> None:
    stream = vectors(10, 0, 0)
    assert some_rows(stream, 4).tolist() == [0, 2, 5, 7]
    assert some_rows(stream, 99).tolist() == list(range(10))


def test_data_of_vectors_with_several_sources(tmp_path: Path) -> None:
    import numpy as np

    for seed, name in enumerate(("s1", "s2", "t")):
        part = vectors(30, 0, seed)
        assert part.labels is not None
        np.savez(tmp_path / f"{name}.npz", x=part.fetch(torch.arange(30)).numpy(), y=part.labels.numpy())
    names = [str(tmp_path / f"{name}.npz") for name in ("s1", "s2")]
    data = prepare_data(DataSettings(set=names[0], source=names, target=str(tmp_path / "t.npz"), val_share=0.2))
    assert {name: len(stream) for name, stream in data.streams.items()} == {
        "source": 48, "target": 30, "val": 12, "test": 30,
    }  # fmt: skip
    fit(Aligner([1.0, 2.0]), data.streams, Run(folder=str(tmp_path / "run"), steps=2, progress=False))
