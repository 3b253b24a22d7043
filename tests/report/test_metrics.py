"""Where every number stands in measure.json, how it is written, and which way is better."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.stream import Memory, Stream
from evenhand.measure import finding, latents, memorised, sheet, shift
from evenhand.tasks import Task, classify
from evenhand.tasks.classify import CLASSIFY, _traces, some_rows
from evenhand.tasks.detect import DETECT, _by_group, _known
from evenhand.tasks.generate import GENERATE
from evenhand.tasks.metric import Metric, score

UP, DOWN = True, False
# key: place, factor, digits, whether higher is better, whether the summary has it
CLASSIFIED = {
    "accuracy": ("accuracy", 100, 1, UP, True),
    "mean_recall": ("mean_recall", 100, 1, UP, True),
    "head": ("group_recall.head", 100, 1, UP, True),
    "mid": ("group_recall.mid", 100, 1, UP, True),
    "tail": ("group_recall.tail", 100, 1, UP, True),
    "min_recall": ("min_recall", 100, 1, UP, True),
    "ece": ("ece", 100, 1, DOWN, True),
    "ece_scaled": ("temperature.ece", 100, 1, DOWN, False),
    "g_mean": ("g_mean", 100, 1, UP, False),
    "h_mean": ("h_mean", 100, 1, UP, False),
    "macro_f1": ("macro_f1", 100, 1, UP, False),
    "micro_f1": ("micro_f1", 100, 1, UP, False),
    "top5": ("top5", 100, 1, UP, False),
    "min_coverage": ("min_coverage", 100, 2, UP, False),
    "coverage_violation": ("coverage_violation", 100, 2, DOWN, False),
    "min_head_tail_recall": ("min_head_tail_recall", 100, 1, UP, False),
    "min_head_tail_coverage": ("min_head_tail_coverage", 100, 2, UP, False),
    "loss": ("loss", 1, 3, DOWN, False),
    "cls_mean_recall": ("experts.cls.mean_recall", 100, 1, UP, False),
    "cls_head": ("experts.cls.head", 100, 1, UP, False),
    "cls_mid": ("experts.cls.mid", 100, 1, UP, False),
    "cls_tail": ("experts.cls.tail", 100, 1, UP, False),
    "dist_mean_recall": ("experts.dist.mean_recall", 100, 1, UP, False),
    "dist_head": ("experts.dist.head", 100, 1, UP, False),
    "dist_mid": ("experts.dist.mid", 100, 1, UP, False),
    "dist_tail": ("experts.dist.tail", 100, 1, UP, False),
    "entropy": ("adaptation.entropy", 1, 3, UP, False),
    "infomax": ("adaptation.infomax", 1, 3, UP, False),
    "density": ("adaptation.density", 1, 3, UP, False),
}
DETECTED = {
    "map50": ("map50", 100, 1, UP, True),
    "map50_11": ("map50_11", 100, 1, UP, False),
    "coco": ("coco", 100, 1, UP, True),
    "coco75": ("coco75", 100, 1, UP, True),
    "head": ("group_ap.head", 100, 1, UP, True),
    "mid": ("group_ap.mid", 100, 1, UP, True),
    "tail": ("group_ap.tail", 100, 1, UP, True),
    "small": ("by_size.small", 100, 1, UP, True),
    "medium": ("by_size.medium", 100, 1, UP, True),
    "large": ("by_size.large", 100, 1, UP, True),
}
GENERATED = {
    "fid": ("fid", 1, 2, DOWN, True),
    "kid": ("kid", 1000, 2, DOWN, True),
    "precision": ("precision", 1, 3, UP, True),
    "recall": ("recall", 1, 3, UP, True),
    "density": ("density", 1, 3, UP, True),
    "coverage": ("coverage", 1, 3, UP, True),
    "label_kl": ("label_kl", 1, 3, DOWN, True),
    "inception_score": ("inception_score", 1, 2, UP, True),
    "annotator_score": ("annotator_score", 1, 2, UP, False),
    "annotator_agreement": ("annotator_agreement", 100, 1, UP, True),
    "tail_agreement": ("group_agreement.tail", 100, 1, UP, False),
    "head": ("group_fid.head", 1, 2, DOWN, True),
    "mid": ("group_fid.mid", 1, 2, DOWN, True),
    "tail": ("group_fid.tail", 1, 2, DOWN, True),
    "cas": ("classifier_score.accuracy", 100, 1, UP, True),
    "cas_worst": ("classifier_score.min_recall", 100, 1, UP, True),
    "tail_z_sensitivity": ("group_z_sensitivity.tail", 1, 2, UP, True),
    "tail_patterns": ("group_patterns.tail", 1, 2, UP, False),
}
OF_CLASSES = {
    "class_fid": ("class_fid", 1, 2, DOWN, True),
    "class_shares": ("class_shares", 100, 1, UP, True),
    "class_agreement": ("class_agreement", 100, 1, UP, True),
    "diversity": ("diversity", 1, 2, UP, True),
    "patterns": ("patterns", 1, 2, UP, True),
    "z_sensitivity": ("z_sensitivity", 1, 2, UP, True),
}


def facts(metrics: tuple[Metric, ...]) -> dict[str, Any]:
    return {m.key: (".".join(m.path), m.scale, m.digits, m.higher_is_better, m.shown) for m in metrics}


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (CLASSIFY.metrics, CLASSIFIED),
        (DETECT.metrics, DETECTED),
        (GENERATE.metrics, GENERATED),
        (GENERATE.per_class, OF_CLASSES),
    ],
    ids=["classify", "detect", "generate", "generate, classes"],
)
def test_every_number_has_its_place_scale_and_direction(metrics: tuple[Metric, ...], told: dict[str, Any]) -> None:
    assert facts(metrics) == told


@pytest.mark.parametrize(
    ("task", "headline", "cropped", "boxes"),
    [(CLASSIFY, "mean_recall", True, False), (DETECT, "map50", True, True), (GENERATE, "fid", False, False)],
)
def test_a_task_is_decided_by_its_headline_with_the_tail_beside_it(
    task: Task, headline: str, cropped: bool, boxes: bool
) -> None:
    assert (task.headline.key, task.tail.key, task.whole, task.boxes) == (headline, "tail", not cropped, boxes)


def test_a_metric_is_called_said_and_turned() -> None:
    share, fid = Metric("x", "mean recall"), score("fid", "FID", digits=2, lower=True)
    assert (share.label, fid.label, score("recall").label) == ("mean recall (%)", "FID ↓", "recall ↑")
    assert (share.opening, Metric("m", "mAP@0.5").opening, fid.opening) == ("Mean recall", "mAP@0.5", "FID")
    assert (share.said(61.66), fid.said(9)) == ("61.7 %", "9.00")
    assert (share.better(3), fid.better(3)) == (3, -3)
    assert (share.path, Metric("x", "x", path=("a", "b")).path) == (("x",), ("a", "b"))
    assert score("x") == Metric("x", "x", unit="", scale=1.0, digits=3, higher_is_better=True, shown=True)


def test_samples_for_a_look_are_spread_evenly_over_the_stream() -> None:
    stream = Stream(Memory(torch.zeros(10, 1)), None, ("a",), "target")
    assert some_rows(stream, 4).tolist() == [0, 2, 5, 7]
    assert some_rows(stream, 10).tolist() == some_rows(stream, 99).tolist() == list(range(10))


@pytest.mark.parametrize(("count", "traced"), [(20, range(20)), (22, [*range(10), *range(12, 22)])])
def test_of_many_classes_the_largest_and_the_rarest_are_logged(count: int, traced: Any) -> None:
    """Class 0 has most samples; one more, the largest of all, is absent from the split."""
    data: Any = SimpleNamespace(classes=[f"c{k}" for k in range(count + 1)], counts=[*range(count, 0, -1), 99])
    found = _traces(data, {"recall": torch.arange(count + 1) / 8}, [count])
    assert found == {f"recall:c{k}": k / 8 for k in traced}


def test_classes_of_equal_counts_are_logged_in_their_order() -> None:
    data: Any = SimpleNamespace(classes=[f"c{k}" for k in range(30)], counts=[5] * 30)
    assert list(_traces(data, {"recall": torch.zeros(30)}, [])) == [
        f"recall:c{k}" for k in (*range(10), *range(20, 30))
    ]


def test_what_no_detector_could_score_is_left_out_of_means() -> None:
    assert (_known(float("nan")), _known(0.0)) == (None, 0.0)
    ap = torch.tensor([0.2, float("nan"), 0.6])
    means = _by_group(ap, {"head": [0, 1, 2], "mid": [1], "tail": []})
    assert means == {"head": pytest.approx(0.4), "mid": None, "tail": None}


class Told:
    """A recogniser whose logits and features are its inputs; counts the samples that it is given at once."""

    embeds = tells = True

    def __init__(self) -> None:
        self.data: Any = SimpleNamespace(classes=("a", "b"), counts=[5, 2], groups={"head": [0], "tail": [1]})
        self.seen: list[int] = []

    def predict(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return x

    embed = predict

    def tell(self, x: Tensor) -> Tensor:
        return self.predict(x)[:, 0]

    def feeds(self, streams: Any) -> dict[str, None]:
        return {"target": None}

    def traces(self) -> dict[str, float]:
        return {"own": 1.0}

    details = traces

    def experts(self) -> dict[str, Any]:
        return {"cls": self.predict}


def told() -> Any:
    return Told()


def vectors(name: str, rows: int = 6, shift_by: float = 0.0, labels: bool = True) -> Stream:
    """Logits of two classes, each right half of the time."""
    points = torch.tensor([[2.0, 0.0], [0.0, 1.0]]).repeat(rows, 1)[:rows] + torch.tensor([shift_by, 0.0])
    truth = torch.tensor([0, 0, 1, 1]).repeat(rows)[:rows]
    return Stream(Memory(points), truth if labels else None, ("a", "b"), name)


STREAMS = {
    "labelled": vectors("labelled"),
    "source": vectors("source"),
    "target": vectors("target", shift_by=3.0, labels=False),
    "val": vectors("val", 8, shift_by=-1.0),
    "test": vectors("test", 7),
}


@pytest.mark.parametrize(
    "measured",
    [
        lambda method, _: CLASSIFY.score(method, STREAMS["val"], batch=3),
        lambda method, _: CLASSIFY.table(method, STREAMS["val"], batch=3),
        lambda method, _: CLASSIFY.watch(method, STREAMS, batch=3),
        lambda method, _: CLASSIFY.temperature(method, STREAMS, batch=3),
        lambda method, folder: CLASSIFY.finish(
            method, SimpleNamespace(streams=STREAMS, labelled=STREAMS["labelled"]), folder, batch=3
        ),
    ],
    ids=["score", "table", "watch", "temperature", "finish"],
)
def test_no_more_samples_are_looked_at_at_once_than_asked_for(measured: Any, tmp_path: Path) -> None:
    method = told()
    assert measured(method, tmp_path)
    assert max(method.seen) == 3


def test_scores_traces_and_what_the_method_says_of_itself_are_logged_together() -> None:
    found = CLASSIFY.score(told(), STREAMS["test"])
    assert found["mean_recall"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert (found["recall:a"], found["recall:b"], found["own"]) == pytest.approx((0.5, 1 / 3, 1.0))
    assert (found["head"], found["tail"]) == pytest.approx((0.5, 1 / 3))


@pytest.mark.parametrize("task", [CLASSIFY, DETECT, GENERATE])
def test_a_tail_that_is_measured_at_each_evaluation_can_be_selected_by(task: Task) -> None:
    early = {metric.key for metric in task.metrics if not metric.late}
    assert task.headline.key in early
    assert ("tail" in early) == (task is not GENERATE)  # FIDs of single classes wait for the end


def test_seen_samples_are_compared_with_seen_and_unseen_with_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the source: its training samples where the target is trained on, else the held-out ones, if there are any."""
    compared: list[tuple[int, int]] = []
    monkeypatch.setattr(shift, "proxy_a_distance", lambda one, other: compared.append((len(one), len(other))) or 0.5)
    method = told()
    found = CLASSIFY.watch(method, STREAMS)["target"]
    ours, theirs = STREAMS["source"].samples.fetch(torch.arange(6))[:, 0], torch.tensor([5.0, 3.0] * 3)
    loss = (torch.nn.functional.softplus(-ours).mean() + torch.nn.functional.softplus(theirs).mean()) / 2
    assert found["domain_loss"] == pytest.approx(float(loss))
    assert (found["possible_classes"], found["a_distance"]) == (2, 0.5)
    monkeypatch.setattr(method, "feeds", lambda _: {"labelled": None})
    CLASSIFY.watch(method, STREAMS)
    CLASSIFY.watch(method, {key: STREAMS[key] for key in ("source", "target")})
    assert compared == [(6, 6), (8, 6)]


def test_a_target_of_one_sample_has_no_distance_nor_scores_of_many() -> None:
    streams = {**STREAMS, "target": vectors("target", 1, labels=False)}
    found = CLASSIFY.watch(told(), streams)["target"]
    assert not {"a_distance", "domain_loss", "infomax", "density"} & found.keys()
    assert (found["largest_share"], found["possible_classes"]) == (1, 1)
    two = CLASSIFY.watch(told(), {**STREAMS, "target": vectors("target", 2, labels=False)})
    assert {"a_distance", "domain_loss", "infomax"} <= two["target"].keys()


def test_the_picture_of_domains_has_held_out_samples_with_their_labels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(classify, "PICTURED", 4)
    data: Any = SimpleNamespace(streams=STREAMS, labelled=STREAMS["labelled"])
    found = CLASSIFY.finish(told(), data, tmp_path)["adaptation"]
    assert found["source_points"]["labels"] == [0, 1, 0, 1]  # rows 0, 2, 4 and 6 of validation
    assert found["target_points"]["labels"] == [0, 0, 1, 0]  # rows 0, 1, 3 and 5 of the test
    points = torch.tensor(found["source_points"]["xy"] + found["target_points"]["xy"])
    features = [STREAMS["val"].samples.fetch(torch.tensor([0, 2, 4, 6]))]
    features += [STREAMS["test"].samples.fetch(torch.tensor([0, 1, 3, 5]))]
    assert torch.allclose(torch.cdist(points, points), torch.cdist(torch.cat(features), torch.cat(features)), atol=1e-4)
    bare: Any = SimpleNamespace(
        streams={key: STREAMS[key] for key in ("source", "target")}, labelled=STREAMS["labelled"]
    )
    unlabelled = CLASSIFY.finish(told(), bare, tmp_path)["adaptation"]
    assert (unlabelled["target_points"]["labels"], unlabelled["source_points"]["labels"]) == (None, [0, 0, 1, 0])


def test_a_temperature_is_fitted_on_validation_and_measured_on_the_test(tmp_path: Path) -> None:
    streams = {key: STREAMS[key] for key in ("val", "test")}
    data: Any = SimpleNamespace(streams=streams, labelled=STREAMS["labelled"])
    found = CLASSIFY.finish(told(), data, tmp_path)["temperature"]
    fitted = CLASSIFY.temperature(told(), streams)
    assert (found["value"], found["fitted_on"]) == (fitted, "val")
    scaled = Stream(Memory(streams["test"].samples.fetch(torch.arange(7)) / fitted), streams["test"].target, ("a", "b"))
    numbers = CLASSIFY.score(told(), scaled)
    assert (found["ece"], found["loss"]) == pytest.approx((numbers["ece"], numbers["loss"]))
    assert sum(found["reliability"]["count"]) == 7
    for lost in ({"val": streams["val"]}, {"test": streams["test"]}):
        data.streams = lost
        assert CLASSIFY.finish(told(), data, tmp_path) == {}


def test_heads_are_measured_alone_beside_their_average() -> None:
    found = CLASSIFY.table(told(), STREAMS["test"])
    alone = found["experts"]["cls"]
    assert alone["recall"] == pytest.approx([0.5, 1 / 3])
    assert (alone["head"], alone["tail"], alone["min_recall"]) == pytest.approx((0.5, 1 / 3, 1 / 3))
    assert found["own"] == 1.0


def test_detections_are_scored_class_by_class_and_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """One car and one bus, the car found, the bus not; no cow anywhere."""
    box = torch.tensor([[0.0, 0.0, 40.0, 40.0]])
    truths = [(box, torch.tensor([0])), (box, torch.tensor([1]))]
    found = [(box, torch.tensor([0.9]), torch.tensor([0])), (box[:0], torch.zeros(0), torch.zeros(0, dtype=torch.long))]
    asked: list[int] = []
    monkeypatch.setattr(finding, "find_all", lambda *_, batch: asked.append(batch) or (found, truths))
    data = SimpleNamespace(groups={"head": [0, 2], "tail": [1], "mid": [2]})
    method: Any = SimpleNamespace(detect=None, data=data, details=lambda: {"own": 1}, traces=lambda: {"step": 2.0})
    stream: Any = SimpleNamespace(classes=("car", "bus", "cow"))
    assert DETECT.score(method, stream, batch=5) == {"map50": 0.5, "head": 1.0, "tail": 0.0, "step": 2.0}
    table = DETECT.table(method, stream, batch=6)
    assert asked == [5, 6]
    assert (table["ap50"], table["group_ap"]) == ([1.0, 0.0, None], {"head": 1.0, "tail": 0.0, "mid": None})
    assert (table["map50"], table["map50_11"], table["coco75"], table["objects"], table["own"]) == (0.5, 0.5, 0.5, 2, 1)
    assert table["by_size"] == {"small": None, "medium": pytest.approx(0.5), "large": None}


@pytest.mark.parametrize(("writer", "drawn"), [(True, 1), (False, 0)])
def test_24_faults_are_kept_and_the_writer_draws_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, writer: bool, drawn: int
) -> None:
    find, surest, draw = Mock(return_value=("found", "truths")), Mock(return_value="faults"), Mock()
    for name, stand_in in (("find_all", find), ("surest_faults", surest), ("draw_faults", draw)):
        monkeypatch.setattr(finding, name, stand_in)
    monkeypatch.setattr(parallel, "is_writer", lambda: writer)
    stream, method = SimpleNamespace(target="boxes"), Mock()
    data: Any = SimpleNamespace(streams={"test": stream})
    assert DETECT.finish(method, data, tmp_path, batch=5) == {"faults": "faults"}
    find.assert_called_once_with(method.detect, stream, batch=5)
    surest.assert_called_once_with("found", "truths", stream, 24)
    assert draw.call_count == drawn
    for streams in ({}, {"test": SimpleNamespace(target=None)}):
        data.streams = streams
        assert DETECT.finish(method, data, tmp_path) == {}


@pytest.fixture
def drawer() -> Any:
    """A generator whose exhibits are words, before a judge that keeps what it was shown."""
    method = Mock()
    method.exhibit.side_effect = lambda count, purpose: (f"{count} to {purpose}", "labels")
    method.traces.return_value, method.data.groups = {"own": 1.0}, {"head": [0, 1], "tail": [2]}
    method.details.return_value = {"z_sensitivity": [0.25, 0.5, 0.75]}
    method.judge.settings = SimpleNamespace(judge_samples=20, samples=40)
    for name in ("scalars", "table", "watch"):
        getattr(method.judge, name).return_value = {"fid": 2.0}
    return method


def test_a_generator_is_judged_by_what_it_exhibits(drawer: Any) -> None:
    val: Any = "val"
    assert GENERATE.score(drawer, val, batch=7) == {"fid": 2.0, "own": 1.0}
    drawer.judge.scalars.assert_called_once_with("20 to judge", "labels", "val", batch=7)
    table = GENERATE.table(drawer, val, batch=7)
    assert table["group_z_sensitivity"] == {"head": pytest.approx(0.375), "tail": pytest.approx(0.75)}
    drawer.judge.table.assert_called_once_with("40 to examine", "labels", "val", drawer.data.groups, batch=7)
    drawer.details.return_value = {}
    assert GENERATE.table(drawer, val) == {"fid": 2.0}


def test_without_validation_a_generator_is_watched_beside_training_images(drawer: Any) -> None:
    streams: Any = {"labelled": "images"}
    assert GENERATE.watch(drawer, streams, batch=7) == {"traces": {"fid": 2.0, "own": 1.0}}
    drawer.judge.watch.assert_called_once_with("20 to judge", "labels", "images", batch=7)
    assert GENERATE.watch(drawer, {**streams, "val": "images"}) == {}
    drawer.judge.annotator = None
    assert GENERATE.watch(drawer, streams)["traces"]  # of the classes asked for
    drawer.labelled = False
    assert GENERATE.watch(drawer, streams) == {}


@pytest.mark.parametrize(
    ("streams", "latent", "writer", "written"),
    [
        (("labelled", "test"), True, True, ["latents.png", "sheet.png", "copying"]),
        (("labelled", "test"), True, False, ["sheet.png", "copying"]),
        (("labelled", "test"), False, True, ["sheet.png", "copying"]),
        (("test",), False, True, ["sheet.png"]),
        (("labelled",), False, True, []),
    ],
)
def test_a_finished_generator_leaves_pictures_and_a_measure_of_copying(
    drawer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, streams: Any, latent: bool, writer: bool, written: Any
) -> None:
    done: list[str] = []
    copying = Mock(side_effect=lambda *_, **__: done.append("copying") or {"near": 0.5})
    monkeypatch.setattr(latents, "write_plane", lambda path, *_: done.append(path.name))
    monkeypatch.setattr(sheet, "write_sheet", lambda path, *_: done.append(path.name))
    monkeypatch.setattr(memorised, "copying_of", copying)
    monkeypatch.setattr(parallel, "is_writer", lambda: writer)
    drawer.latents.return_value = ("styles", "labels") if latent else None
    data: Any = SimpleNamespace(
        streams={name: name for name in streams}, counts=[1], train_view=SimpleNamespace(mirrors=True)
    )
    found = GENERATE.finish(drawer, data, tmp_path, batch=7)
    assert done == written
    assert found == ({"copying": {"near": 0.5}} if "copying" in written else {})
    if "copying" in written:
        copying.assert_called_once_with(
            drawer.judge.extractor, "20 to copying", "labelled", "test", batch=7, mirrored=True
        )
