"""DeiT-LT's step against its equations written out, option by option; the teacher; bad input."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from evenhand.data.loader import Batch
from evenhand.data.prepared import Data, data_of, prepare_data
from evenhand.data.samplers import Repeated
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.methods.common import Net
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.methods.recognise.deit_lt import DeiTLT, DeiTLTSettings, fitting
from evenhand.methods.recognise.second_stage import SecondStage, SecondStageSettings
from evenhand.methods.recognise.teacher import Teacher, class_order
from evenhand.pieces.losses import class_balanced_weights
from evenhand.pieces.mixing import cutmix, mixup
from evenhand.randomness import dice, mix
from evenhand.run.opening import open_run
from evenhand.run.recipe import load_recipe, validate
from evenhand.run.tables import flatten
from evenhand.run.training import train
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CPU = torch.device("cpu")
NET = {"name": "vit-tiny", "width": 8, "depth": 1, "heads": 2, "drop_path": 0.0}
SGD = {"name": "sgd", "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "warmup": 0,
       "no_decay": [], "warmup_lr": 0.0, "min_lr": 0.0}  # fmt: skip
EARLY, LATE = Progress(3, 2, 20), Progress(19, 2, 20)  # of ten epochs, weights from the ninth on
K = 10


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", n_max=12, imbalance=10))


def seeded_build(make: Any, *given: Any, **needs: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(0, "weights"))
        return make(*given, seed=0, device=CPU, **needs)


@pytest.fixture(scope="module")
def cnn(data: Data) -> LongTailClassifier:
    """A teacher with statistics of its own and BatchNorm, whose answers differ from image to image."""
    settings = ClassifierSettings(net={"name": "resnet8", "width": 4}, loss="ldam")  # type: ignore[arg-type]
    table = DataSettings(set="shapes", normalise=[[0.4] * data.inputs, [0.3] * data.inputs])
    method: LongTailClassifier = seeded_build(LongTailClassifier, settings, other_view(data, table))
    chance = torch.Generator().manual_seed(1)
    for p in method.net.parameters():
        p.data = torch.randn(p.shape, generator=chance)
    images = method.data.see(data.streams["test"].fetch(torch.arange(0, 600, 10)))
    with torch.no_grad():
        method.net.train()(images)  # BatchNorm statistics away from their start
        mean = method.net.eval().features(images).mean(0)
        weight = method.net.head.weight  # what all images have in common decides nothing
        weight -= (weight @ mean)[:, None] * mean / mean.square().sum()
    return method


def other_view(data: Data, table: DataSettings) -> Data:
    mean, std = table.normalise
    return data_of(table, data.facts.model_copy(update={"mean": mean, "std": std}))


def student(data: Data, cnn: Any = None, **settings: Any) -> DeiTLT:
    tree = {"batch": 12, "net": NET, "optim": SGD, "drw_start": 9, "repeats": 1, **settings}
    teacher = {} if cnn is None else {"teacher": cnn}
    method: DeiTLT = seeded_build(DeiTLT, DeiTLTSettings.model_validate(tree), data, **teacher)
    return method


def softmax_loss(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_k t_k log softmax_k, (N,)"""
    return -(target * (logits - logits.exp().sum(1, keepdim=True).log())).sum(1)


def one_hot(y: Tensor, smoothing: float = 0.0) -> Tensor:
    rows = torch.full((len(y), K), smoothing / K)
    for row, label in zip(rows, y.tolist(), strict=True):
        row[label] = 1 - smoothing + smoothing / K
    return rows


def mixed(x: Tensor, y: Tensor, at: Progress, smoothing: float = 0.1, alphas: tuple[float, float] = (0.8, 1.0),
          switch: float = 0.5, chance: Any = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    chance = chance or dice(0, "mixing", at.step, 0)
    cut = float(torch.rand((), generator=chance)) < switch
    return (cutmix if cut else mixup)(x, y, alphas[int(cut)], chance, K, smoothing=smoothing)


def teacher_logits(cnn: LongTailClassifier, data: Data, x: Tensor) -> Tensor:
    """Back to levels, then as the teacher normalises them; eval mode."""
    ours, theirs = data.facts, cnn.data.facts
    shape = (-1, 1, 1)
    levels = x * torch.tensor(ours.std).view(shape) + torch.tensor(ours.mean).view(shape)
    seen = (levels - torch.tensor(theirs.mean).view(shape)) / torch.tensor(theirs.std).view(shape)
    with torch.no_grad():
        return 30 * copy.deepcopy(cnn.net).eval()(seen)


def check(method: DeiTLT, batch: dict[str, Batch], at: Progress, loss: Any) -> dict[str, Tensor]:
    """One step moves the weights by the gradient of ``loss(net)``, and reports it."""
    net: Any = copy.deepcopy(method.net).train()
    value = loss(net)
    value.backward()
    value = value.detach()
    want = {name: p - 0.5 * p.grad if p.grad is not None else p for name, p in net.named_parameters()}
    method.schedule(at)
    said = method.update(batch)
    assert float(said["loss"]) == pytest.approx(float(value), rel=1e-4)
    for name, p in method.net.named_parameters():
        torch.testing.assert_close(
            p.detach(), want[name].detach(), rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}"
        )
    return said


# the step


def hard(cnn: Any, data: Data, x: Tensor, target: Tensor, weights: Tensor, alpha: float = 0.5) -> Any:
    label = teacher_logits(cnn, data, x).argmax(1)
    assert len(label.unique()) > 1

    def loss(net: Any) -> Tensor:
        cls, dist = net.heads(x)
        own, learnt = softmax_loss(cls, target).mean(), softmax_loss(dist, one_hot(label))
        return (1 - alpha) * own + alpha * (weights[label] * learnt).sum() / weights[label].sum()

    return loss


def test_before_the_weights_begin(data: Data, cnn: Any) -> None:
    """1/2 CE(CLS, mixed and smoothed labels) + 1/2 CE(DIST, teacher's label of the same mixed tensor)."""
    method = student(data, cnn)
    (batch,) = batches(method, data)
    x, target = mixed(batch["labelled"].x, batch["labelled"].y, EARLY)
    said = check(method, batch, EARLY, hard(cnn, data, x, target, torch.ones(K)))
    label = teacher_logits(cnn, data, x).argmax(1)
    assert float(said["teacher_accuracy"]) == pytest.approx(float((label == batch["labelled"].y).float().mean()))
    assert float(said["loss"]) == pytest.approx(float(said["loss_cls"] + said["loss_dist"]) / 2, rel=1e-5)


def test_once_they_have_begun(data: Data, cnn: Any) -> None:
    """Neither mixing nor smoothing; the weighted mean by the teacher's label, not by the truth."""
    method = student(data, cnn)
    (batch,) = batches(method, data)
    x, y = batch["labelled"].x, batch["labelled"].y
    weights = class_balanced_weights(data.counts)
    check(method, batch, LATE, hard(cnn, data, x, one_hot(y), weights))
    assert float(weights.sum()) == pytest.approx(K)
    plain = class_balanced_weights(data.counts, 0.5)
    other = student(data, cnn, beta=0.5)
    check(other, batch, LATE, hard(cnn, data, x, one_hot(y), plain))


def test_weights_begin_at_their_epoch(data: Data, cnn: Any) -> None:
    method = student(data, cnn)
    for step, on in ((17, False), (18, True)):
        method.schedule(Progress(step, 2, 20))
        assert (len(method.weights.unique()) > 1) is on
        assert method.mixes is not on
    with pytest.warns(UserWarning, match=r"10 epochs, before method.drw_start = 1100, which"):
        student(data, cnn, drw_start=1100).schedule(Progress(0, 2, 20))
    method = student(data, cnn, drw_start=0.5)
    for step, on in ((9, False), (10, True)):
        for an_epoch in (2, 40):  # or a run of half an epoch
            method.schedule(Progress(step, an_epoch, 20))
            assert method.mixes is not on


@pytest.mark.parametrize(
    ("options", "late", "smoothing", "mixes", "weighted", "alpha"),
    [
        ({"weighting": "none"}, True, 0.0, False, False, 0.5),
        ({"mix_late": True}, True, 0.1, True, True, 0.5),
        ({"mix": False}, False, 0.0, False, False, 0.5),
        ({"smoothing": 0.3}, False, 0.3, True, False, 0.5),
        ({"alpha": 0.2}, False, 0.1, True, False, 0.2),
    ],
)
def test_options_of_the_step(
    data: Data, cnn: Any, options: dict[str, Any], late: bool, smoothing: float, mixes: bool, weighted: bool,
    alpha: float,
) -> None:  # fmt: skip
    method, at = student(data, cnn, **options), LATE if late else EARLY
    (batch,) = batches(method, data)
    x, y = batch["labelled"].x, batch["labelled"].y
    x, target = mixed(x, y, at, smoothing) if mixes else (x, one_hot(y))
    weights = class_balanced_weights(data.counts) if weighted else torch.ones(K)
    check(method, batch, at, hard(cnn, data, x, target, weights, alpha))


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({"switch": 1.0, "cutmix": 0.3}, {"switch": 1.0, "alphas": (0.8, 0.3)}),
        ({"switch": 0.0, "mixup": 0.2}, {"switch": 0.0, "alphas": (0.2, 1.0)}),
    ],
)
def test_how_images_are_mixed(data: Data, cnn: Any, options: dict[str, Any], how: dict[str, Any]) -> None:
    method = student(data, cnn, **options)
    (batch,) = batches(method, data)
    x, target = mixed(batch["labelled"].x, batch["labelled"].y, EARLY, **how)
    check(method, batch, EARLY, hard(cnn, data, x, target, torch.ones(K)))


def test_soft_distillation(data: Data, cnn: Any) -> None:
    """tau^2 KL(teacher / tau || DIST / tau), each image by the weight of the teacher's label."""
    method = student(data, cnn, distil="soft", temperature=2.0)
    (batch,) = batches(method, data)
    x, y = batch["labelled"].x, batch["labelled"].y
    logits, weights = teacher_logits(cnn, data, x), class_balanced_weights(data.counts)
    p, w = (logits / 2).softmax(1), weights[logits.argmax(1)]

    def loss(net: Any) -> Tensor:
        cls, dist = net.heads(x)
        apart = (p * ((p + 1e-30).log() - (dist / 2).log_softmax(1))).sum(1)
        return (softmax_loss(cls, one_hot(y)).mean() + 4 * (w * apart).sum() / w.sum()) / 2

    check(method, batch, LATE, loss)


def test_weak_views_are_the_teachers_own(data: Data, cnn: Any) -> None:
    """Neither mixed nor in the student's statistics: what the teacher was trained on."""
    method = student(data, cnn, teacher_view="weak")
    (batch,) = batches(method, data)
    strong, weak = batch["labelled"].views
    assert not torch.equal(strong, weak)
    with torch.no_grad():
        label = copy.deepcopy(cnn.net).eval()(weak).argmax(1)
    x, target = mixed(strong, batch["labelled"].y, EARLY)

    def loss(net: Any) -> Tensor:
        cls, dist = net.heads(x)
        return (softmax_loss(cls, target).mean() + softmax_loss(dist, one_hot(label)).mean()) / 2

    check(method, batch, EARLY, loss)
    assert not torch.equal(label, teacher_logits(cnn, data, x).argmax(1))
    assert len(student(data, cnn).feeds(data.streams)["labelled"].views) == 1


@pytest.mark.parametrize("at", [EARLY, LATE])
def test_without_a_teacher_dist_learns_the_truth(data: Data, at: Progress) -> None:
    method = student(data, distil="truth")
    (batch,) = batches(method, data)
    x, y = batch["labelled"].x, batch["labelled"].y
    weights = class_balanced_weights(data.counts) if at is LATE else torch.ones(K)
    x, target = mixed(x, y, at) if at is EARLY else (x, one_hot(y))

    def loss(net: Any) -> Tensor:
        cls, dist = net.heads(x)
        return (
            softmax_loss(cls, target).mean() + softmax_loss(dist, target * weights).sum() / (target @ weights).sum()
        ) / 2

    said = check(method, batch, at, loss)
    assert "teacher_accuracy" not in said


def test_a_plain_transformer_or_any_net(data: Data) -> None:
    for net in (NET, {"name": "small-cnn", "width": 2}):
        method = student(data, distil="off", weighting="none", mix_late=True, net=net)
        (batch,) = batches(method, data)
        x, target = mixed(batch["labelled"].x, batch["labelled"].y, LATE)
        check(method, batch, LATE, lambda net, x=x, target=target: softmax_loss(net(x), target).mean())
        assert method.experts() == {}


def test_binary_cross_entropy_as_in_deit_iii(data: Data) -> None:
    method = student(data, distil="off", weighting="none", loss="bce")
    (batch,) = batches(method, data)
    x, target = mixed(batch["labelled"].x, batch["labelled"].y, EARLY)

    def loss(net: Any) -> Tensor:
        p = net(x).sigmoid()
        return -(target * p.log() + (1 - target) * (1 - p).log()).mean()

    check(method, batch, EARLY, loss)


def test_parts_mix_each_for_itself_and_share_one_weighted_mean(data: Data, cnn: Any) -> None:
    method = student(data, cnn, optim={**SGD, "accumulate": 3}, mix_late=True)
    (batch,) = batches(method, data)
    chance, parts = dice(0, "mixing", LATE.step, 0), []
    for i in range(3):
        x, y = batch["labelled"].x[i::3], batch["labelled"].y[i::3]
        parts.append(mixed(x, y, LATE, chance=chance))
    x, target = (torch.cat(side) for side in zip(*parts, strict=True))
    check(method, batch, LATE, hard(cnn, data, x, target, class_balanced_weights(data.counts)))


@pytest.mark.parametrize("parts", [1, 3, 20])
def test_what_is_logged_is_of_the_whole_batch(data: Data, cnn: Any, parts: int) -> None:
    """Whatever the parts, of which there are no more than images; the teacher is right about half of them."""
    method = student(data, cnn, optim={**SGD, "accumulate": parts})
    (batch,) = batches(method, data)
    x, rows = batch["labelled"].x, torch.arange(12)
    label = teacher_logits(cnn, data, x).argmax(1)
    y = torch.where(rows < 6, label, (label + 1) % K)
    w = class_balanced_weights(data.counts)[label]
    with torch.no_grad():
        net: Any = copy.deepcopy(method.net).train()
        cls, dist = net.heads(x)
        a, b = net.tokens(x)[:, 0], net.tokens(x)[:, 1]
    own, learnt = softmax_loss(cls, one_hot(y)).mean(), (w * softmax_loss(dist, one_hot(label))).sum() / w.sum()
    method.schedule(LATE)
    said = method.update({"labelled": replace(batch["labelled"], targets=(y,))})
    found = [float(said[key]) for key in ("teacher_accuracy", "loss_cls", "loss_dist", "loss", "cosine")]
    alike = ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean()
    assert found == pytest.approx([0.5, *map(float, (own, learnt, (own + learnt) / 2, alike))], rel=1e-4)


def test_cosine_of_the_two_tokens_is_logged(data: Data, cnn: Any) -> None:
    method = student(data, cnn)
    (batch,) = batches(method, data)
    method.schedule(LATE)
    with torch.no_grad():
        tokens = method.net.tokens(batch["labelled"].x)  # type: ignore[operator]
    a, b = tokens[:, 0], tokens[:, 1]
    want = ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean()
    assert float(method.update(batch)["cosine"]) == pytest.approx(float(want), rel=1e-4)


def test_repeated_views_stand_in_a_batch(data: Data, cnn: Any) -> None:
    feed = student(data, cnn, repeats=3).feeds(data.streams)["labelled"]
    assert isinstance(feed.picks, Repeated)
    rows = feed.picks.batch(0).tolist()
    assert all(rows.count(row) == 3 for row in rows)
    assert (len(rows), feed.batch) == (12, 12)
    twice = student(data, cnn, repeats=2).feeds(data.streams)["labelled"].picks
    assert isinstance(twice, Repeated)
    assert twice.repeats == 2
    other = student(data, cnn, repeats=3)
    other.seed = 1
    assert other.feeds(data.streams)["labelled"].picks.batch(0).tolist() != rows  # type: ignore[union-attr]
    assert student(data, cnn).feeds(data.streams)["labelled"].picks is None


# the teacher


def test_trap_the_teacher_stays_as_it_was(data: Data, cnn: Any) -> None:
    """Neither weights nor BatchNorm statistics move, though its net is left in train mode by somebody."""
    before = copy.deepcopy(cnn.net.state_dict())
    method = student(data, cnn)
    for step, batch in enumerate(batches(method, data, 3)):
        assert method.teacher is not None
        method.teacher.net.train()
        method.schedule(Progress(step, 2, 20))
        method.update(batch)
    for name, value in cnn.net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None and not p.requires_grad for p in cnn.net.parameters())
    assert method.size() == sum(p.numel() for p in method.net.parameters())


@pytest.mark.parametrize("statistics", ["own", "student"])
@pytest.mark.parametrize("antialias", [False, True])
def test_the_teacher_sees_its_own_size_and_statistics(data: Data, cnn: Any, statistics: Any, antialias: bool) -> None:
    chance = torch.Generator().manual_seed(0)
    large = torch.randn(4, data.inputs, 2 * data.side, 2 * data.side, generator=chance)
    small = interpolate(large, (data.side, data.side), mode="bicubic", antialias=antialias)
    with torch.no_grad():
        raw = 30 * copy.deepcopy(cnn.net).eval()(small)
    want = teacher_logits(cnn, data, small) if statistics == "own" else raw
    got = Teacher(cnn, data, statistics=statistics, antialias=antialias)(large)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(want, raw) or statistics == "student"


def test_settings_reach_the_teacher(data: Data, cnn: Any) -> None:
    teacher = student(data, cnn, teacher_statistics="student", teacher_antialias=True).teacher
    assert teacher is not None
    assert (teacher.views, teacher.antialias) == (None, True)
    teacher = student(data, cnn).teacher
    assert teacher is not None
    assert teacher.views is not None
    assert not teacher.antialias


def test_answers_come_in_the_students_order(data: Data, cnn: Any) -> None:
    """An oracle with its classes in another order stays an oracle."""
    order = torch.randperm(K, generator=torch.Generator().manual_seed(4))
    names = tuple(data.classes[k] for k in order.tolist())
    place = class_order(names, data.classes)
    truth = torch.arange(K)
    theirs = torch.eye(K)[order.argsort()]  # their logits for an image of each of our classes
    assert torch.equal(theirs.index_select(1, place).argmax(1), truth)
    turned = copy.copy(cnn)
    turned.data = replace(cnn.data, facts=cnn.data.facts.model_copy(update={"classes": names}))
    x = torch.randn(3, data.inputs, data.side, data.side, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Teacher(turned, data)(x), Teacher(cnn, data)(x)[:, place])


def test_classes_that_differ_are_named_and_none_may_come_twice(data: Data, cnn: Any) -> None:
    with pytest.raises(UserError, match=r"knows 2 classes, the student's data have 3, and they differ \(a, b, c\)"):
        class_order(("a", "b"), ("c", "d", "e"))
    with pytest.raises(UserError, match=r"they differ \(a name twice\)"):
        class_order(("a", "a", "b"), ("a", "b", "a"))
    assert class_order(("b", "c", "a"), ("a", "b", "c")).tolist() == [2, 0, 1]
    assert not Teacher(cnn, data).antialias


def test_a_teacher_of_other_samples_is_refused(data: Data, cnn: Any) -> None:
    vectors = copy.copy(cnn)
    vectors.data = replace(cnn.data, facts=cnn.data.facts.model_copy(update={"kind": "vectors"}))
    with pytest.raises(UserError, match="the teacher's kind of samples: vectors, the student's: images"):
        Teacher(vectors, data)


# the student's network


def test_positions_are_learned_for_the_images_at_hand() -> None:
    """Patches are 4 pixels wide in vit-tiny and 16 in all others, unless the recipe says otherwise."""

    def images(side: int, kind: str = "images") -> Any:
        return SimpleNamespace(side=side, facts=SimpleNamespace(kind=kind))

    assert fitting(Net(name="vit-tiny"), images(20)).size == 20
    assert fitting(Net(name="vit-b16"), images(48)).size == 48
    assert fitting(Net(name="vit-b16", patch=10), images(20)).size == 20
    assert fitting(Net(name="vit-b16", size=32), images(48)).size == 32  # those of the weights at hand
    assert fitting(Net(name="resnet8"), images(7)) == Net(name="resnet8")
    for net, given, said in (
        (Net(name="vit-b16"), images(20), "images of 20 x 20 .* patches of 16: .* such as to 32"),
        (Net(name="vit-tiny"), images(22), "images of 22 x 22 .* patches of 4: .* such as to 24"),
        (Net(name="vit-b16"), images(48, "vectors"), "cannot be cut into patches"),
    ):
        with pytest.raises(UserError, match=said):
            fitting(net, given)


# read-outs


def test_prediction_averages_logits_and_each_expert_answers_alone(data: Data, cnn: Any) -> None:
    method = student(data, cnn)
    images = data.streams["test"].fetch(torch.arange(5))
    with torch.no_grad():
        cls, dist = method.net.eval().heads(data.see(images))  # type: ignore[operator]
    torch.testing.assert_close(method.predict(images), (cls + dist) / 2)
    experts = method.experts()
    torch.testing.assert_close(experts["cls"](images), cls)
    torch.testing.assert_close(experts["dist"](images), dist)


def test_the_final_table_has_all_three(data: Data, cnn: Any) -> None:
    method = student(data, cnn)
    stream = data.streams["test"].subset(torch.arange(0, len(data.streams["test"]), 10))
    table = method.task.table(method, stream, batch=64)
    assert set(table["experts"]) == {"cls", "dist"}
    found = table["experts"]["dist"]
    right = [[] for _ in range(K)]  # type: ignore[var-annotated]
    predicted = method.experts()["dist"](stream.fetch(torch.arange(len(stream)))).argmax(1)
    for label, said in zip(stream.labels.tolist(), predicted.tolist(), strict=True):  # type: ignore[union-attr]
        right[label].append(float(label == said))
    recall = [sum(part) / len(part) for part in right]
    assert found["recall"] == pytest.approx(recall)
    assert found["mean_recall"] == pytest.approx(sum(recall) / K)
    tail = [recall[k] for k in data.groups["tail"]]
    assert found["tail"] == pytest.approx(sum(tail) / len(tail))
    assert method.task.metric("dist_tail").path == ("experts", "dist", "tail")
    assert "experts" not in student(data, distil="off", weighting="none").task.table(cnn, stream, batch=64)


# bad input


def test_bad_input_is_one_line(data: Data, cnn: Any) -> None:
    with pytest.raises(UserError, match=r"needs a teacher: set needs.teacher"):
        student(data)
    with pytest.raises(UserError, match=r"'truth' asks no teacher: remove needs.teacher"):
        student(data, cnn, distil="truth")
    with pytest.raises(UserError, match=r"cannot be cut into patches of 5: set method.net.patch"):
        student(data, cnn, net={**NET, "patch": 5})
    with pytest.raises(UserError, match=r"'resnet8' has no DIST token"):
        student(data, cnn, net={"name": "resnet8"})
    with pytest.raises(ValueError, match=r"has no DIST loss to weight: set weighting = 'none'"):
        student(data, distil="off")
    for name in ("sam", "lpf-sgd"):
        with pytest.raises(ValueError, match=f"optim.name = '{name}' takes passes of its own: use adamw"):
            student(data, cnn, optim={"name": name})
    strange = copy.copy(cnn)
    facts = cnn.data.facts
    strange.data = replace(cnn.data, facts=facts.model_copy(update={"classes": (*facts.classes[:-1], "lynx")}))
    with pytest.raises(UserError, match=r"they differ .*lynx.*: train the teacher on the same classes"):
        student(data, strange)
    fewer = copy.copy(cnn)
    fewer.data = replace(cnn.data, facts=facts.model_copy(update={"classes": facts.classes[:-1]}))
    with pytest.raises(UserError, match=r"the teacher knows 9 classes, the student's data have 10"):
        student(data, fewer)
    grey = copy.copy(cnn)
    grey.data = replace(cnn.data, facts=facts.model_copy(update={"inputs": 7}))
    with pytest.raises(UserError, match=r"the teacher's channels: 7"):
        student(data, grey)
    two = student(data, distil="truth")
    with pytest.raises(UserError, match=r"the first run has two heads"):
        SecondStage(SecondStageSettings(), data, seed=0, device=CPU, first=two)
    with pytest.raises(UserError, match=r"must be a run that classifies by a network"):
        student(data, object())


def test_a_finished_student_opens_without_its_teacher(tmp_path: Path) -> None:
    tiny = {"set": "shapes", "n_max": 12, "imbalance": 10, "test_per_class": 3}
    run = {"steps": 2, "progress": False}
    first = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 2}}
    cnn = train(validate({"data": tiny, "method": first, "run": {**run, "folder": str(tmp_path / "cnn")}}, "cnn"))
    method = {"name": "deit-lt", "batch": 16, "net": NET}
    tree = {"data": tiny, "method": method, "needs": {"teacher": str(cnn)}}
    folder = train(validate({**tree, "run": {**run, "folder": str(tmp_path / "vit")}}, "vit"))
    assert {"cls", "dist"} == json.loads((folder / "measure.json").read_text())["experts"].keys()
    shutil.rmtree(cnn)
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    opened = open_run(moved)
    images = opened.data().streams["test"].fetch(torch.arange(2))
    assert opened.method.predict(images).shape == (2, K)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"no recipe"):
        train(validate({**tree, "run": {**run, "folder": str(tmp_path / "another")}}, "vit"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose runs share their teachers."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("variant", load_recipe("deit-cifar10-small").variants)
def test_every_small_variant_trains(variant: str, runs: Path) -> None:
    smoke = flatten(load_recipe("deit-cifar10-small").smoke)
    few = {"run.folder": str(runs / variant), "run.progress": False, "run.steps": 2, "data.test_per_class": 3}
    folder = train(load_recipe(f"deit-cifar10-small:{variant}", smoke | few), smoke=True)
    assert json.loads((folder / "measure.json").read_text())["samples"] == 30
