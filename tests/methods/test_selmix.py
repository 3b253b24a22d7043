"""SelMix: its step from the equations, its pairs from validation and pseudo-labels, and what it refuses."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evenhand.data.loader import Batch
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure.confusion import accuracy, confusion_matrix, h_mean, mean_recall
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.methods.recognise.second_stage import SecondStage, SecondStageSettings
from evenhand.methods.unlabelled import selmix
from evenhand.methods.unlabelled.selmix import SelMix
from evenhand.methods.unlabelled.selmix_table import SelMixSettings
from evenhand.nets import ScaledHead
from evenhand.pieces.mixing import paste
from evenhand.pieces.selmix import pair_distribution, pair_entropy, pair_gain
from evenhand.pieces.selmix_aim import Aim
from evenhand.pieces.selmix_objectives import smoothed, soft_min_recall, under_coverage
from evenhand.randomness import dice, mix
from evenhand.run.recipe import validate
from evenhand.run.training import fit_recipe
from helpers import batches, save_picture

pytestmark = [
    pytest.mark.usefixtures("global_randomness_untouched"),
    pytest.mark.filterwarnings("ignore:validation has . samples of a class"),
]

CPU = torch.device("cpu")
SET: dict[str, Any] = {"set": "shapes", "n_max": 12, "imbalance": 10, "augment": [], "val_per_class": 4}
AT = Progress(0, 2, 40)


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(**SET, unlabelled_max=24))


@pytest.fixture(scope="module")
def labelled_only() -> Data:
    return prepare_data(DataSettings(**SET))


def built(make: Any, *args: Any, **needs: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(0, "weights"))
        return make(*args, seed=0, device=CPU, **needs)


def trained(data: Data, **settings: Any) -> LongTailClassifier:
    """A classifier after a few steps, with BatchNorm statistics and an average of its own."""
    tree = {"net": {"name": "small-cnn", "width": 4}, "optim": {"ema": 0.5}, "batch": 16, **settings}
    method: LongTailClassifier = built(LongTailClassifier, ClassifierSettings.model_validate(tree), data)
    for step, batch in enumerate(batches(method, data, 6)):
        method.schedule(Progress(step, 2, 10))
        method.update(batch)
    return method


@pytest.fixture(scope="module")
def first(data: Data) -> LongTailClassifier:
    return trained(data)


def make(data: Data, first: Any, **settings: Any) -> SelMix:
    tree = {"batch": 8, "fidelity": 2, "optim": {"lr": 0.1, "schedule": "constant"}, **settings}
    method: SelMix = built(SelMix, SelMixSettings.model_validate(tree), data, first=first)
    return method


def looked(data: Data, first: Any, **settings: Any) -> SelMix:
    method = make(data, first, **settings)
    method.refresh(AT, data.streams)
    method.schedule(AT)
    return method


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


# the step


def by_hand(method: SelMix, batch: dict[str, Batch], mixed: Any) -> dict[str, Tensor]:
    """Every parameter after ``w <- w - lr (gradient + decay w)``; BatchNorm's stay, the backbone's rate is a tenth."""
    net = copy.deepcopy(method.net).eval().requires_grad_(True)
    x, y, other = batch["labelled"].x, batch["labelled"].y, batch["unlabelled"].x
    loss = cross_entropy(mixed(net, x, other), y)
    found = weights(net)
    norms = {
        f"{name}.{p}" for name, m in net.named_modules() if isinstance(m, nn.BatchNorm2d) for p in ("weight", "bias")
    }
    for (name, p), g in zip(net.named_parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
        lr = 0.1 if name.startswith("fc.") else 0.01
        decay = 0.0 if name.endswith("bias") else 5e-4
        if name not in norms:
            found[name] = p.detach() - lr * (g + decay * p.detach())
    return found


def kept(count: int, least: float = 0.6) -> Tensor:
    return (least + (1 - least) * torch.rand(count, generator=dice(0, "kept", 0)))[:, None]


@pytest.mark.parametrize("least", [0.6, 0.2])
def test_step_is_sgd_on_mixed_features_under_the_first_label(
    data: Data, first: LongTailClassifier, least: float
) -> None:
    """Spec 2.2.7 and 10a.14: statistics and weights of BatchNorm to the bit, the backbone at a tenth."""
    method = looked(data, first, least_kept=least)
    (batch,) = batches(method, data)
    b = kept(8, least)
    expected = by_hand(method, batch, lambda net, x, o: net.head(b * net.features(x) + (1 - b) * net.features(o)))
    before = weights(method.net)
    method.update(batch)
    for name, value in weights(method.net).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7, msg=name)
        if "running" in name or "tracked" in name or ".bn" in name:
            assert torch.equal(value, before[name])
    assert sum(not torch.equal(value, before[name]) for name, value in weights(method.net).items()) >= 4


def test_without_mixing_the_step_is_plain_cross_entropy(data: Data, first: LongTailClassifier) -> None:
    """Spec 10a.15."""
    method = looked(data, first, least_kept=1.0)
    (batch,) = batches(method, data)
    expected = by_hand(method, batch, lambda net, x, _: net(x))
    method.update(batch)
    for name, value in weights(method.net).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)


def test_cutmix_pastes_a_box_and_keeps_the_label(data: Data, first: LongTailClassifier) -> None:
    method = looked(data, first, mix="cutmix")
    (batch,) = batches(method, data)
    expected = by_hand(method, batch, lambda net, x, o: net(paste(x, o, 1.0, dice(0, "cutmix", 0, 0))))
    method.update(batch)
    for name, value in weights(method.net).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)


def test_paste_takes_a_box_of_the_other() -> None:
    x, other = torch.zeros(64, 3, 16, 16), torch.ones(64, 3, 16, 16)
    found = paste(x, other, 1.0, torch.Generator().manual_seed(0))
    share = found.mean((1, 2, 3))
    assert ((found == 0) | (found == 1)).all()
    assert torch.equal(found[:, 0], found[:, 1])
    assert 0.15 < float(share.mean()) < 0.5
    assert len(share.unique()) > 20


def test_a_frozen_backbone_stays_to_the_bit(data: Data, first: LongTailClassifier) -> None:
    method = looked(data, first, freeze_backbone=True)
    before = weights(method.net)
    method.update(batches(method, data)[0])
    moved = {name for name, value in weights(method.net).items() if not torch.equal(value, before[name])}
    assert moved == {"fc.weight", "fc.bias"}
    assert method.size() == sum(p.numel() for p in method.net.head.parameters())


def test_backbone_factor_is_obeyed(data: Data, first: LongTailClassifier) -> None:
    moves = []
    for factor in (0.1, 0.4):
        method = looked(data, first, backbone_factor=factor)
        before = weights(method.net)
        method.update(batches(method, data)[0])
        name = next(name for name in before if not name.startswith("fc.") and "weight" in name)
        moves.append(weights(method.net)[name] - before[name])
    torch.testing.assert_close(moves[1], 4 * moves[0], rtol=1e-3, atol=1e-7)


def test_one_stream_gives_both_sides_when_supervised(labelled_only: Data) -> None:
    """Firsts, then seconds; both by their true labels, as the distribution says, and augmented apart."""
    method = looked(labelled_only, trained(labelled_only))
    method.distribution = torch.zeros(10, 10)
    method.distribution[3, 7] = 1.0
    (batch,) = batches(method, labelled_only)
    assert batch.keys() == {"labelled"}
    assert batch["labelled"].y.tolist() == [3] * 8 + [7] * 8
    net, b = copy.deepcopy(method.net).eval(), kept(8)
    x, other = batch["labelled"].x.chunk(2)
    wanted = cross_entropy(net.head(b * net.features(x) + (1 - b) * net.features(other)), torch.full((8,), 3))
    assert float(method.update(batch)["loss"]) == pytest.approx(wanted.item(), rel=1e-5)


def test_it_starts_where_the_first_run_ended(data: Data, first: LongTailClassifier) -> None:
    x = data.streams["test"].fetch(torch.arange(20))
    torch.testing.assert_close(make(data, first).predict(x), first.predict(x))
    before = copy.deepcopy(first.state())
    method = looked(data, first)
    method.update(batches(method, data)[0])
    for part in ("net", "average"):
        assert all(torch.equal(before[part][name], value) for name, value in first.state()[part].items())


def test_a_scaled_head_is_folded(data: Data, first: LongTailClassifier) -> None:
    stage: SecondStage = built(SecondStage, SecondStageSettings(rule="mislas", batch=16), data, first=first)
    assert isinstance(stage.net.head, ScaledHead)
    stage.net.head.scale.data = torch.linspace(0.5, 2, 10)
    x = data.streams["test"].fetch(torch.arange(20))
    method = make(data, stage)
    assert type(method.net.head) is nn.Linear
    torch.testing.assert_close(method.predict(x), stage.predict(x))


# validation -> gains -> distribution


def validation(method: SelMix, val: Stream, flip: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and predicted classes in evaluation mode, by hand."""
    assert val.labels is not None
    x = val.fetch(torch.arange(len(val)))
    shown = [method.data.see(x)] + [method.data.see(x.flip(-1))] * flip
    net = copy.deepcopy(method.net).eval()
    with torch.no_grad():
        features = torch.cat([net.features(part) for part in shown])
    return features, val.labels.repeat(len(shown)), net.head(features).argmax(1)


TAIL = [[0, 1, 2, 3, 4, 5, 6, 7, 8], [9]]
COVERED = {"floors": "coverage", "cap": 30.0, "tolerance": 0.2, "floor": 0.09}
OPTIONS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {  # settings, metric, of the distribution
    "plain": ({}, mean_recall, {}),
    "h-mean": ({"objective": "h-mean"}, h_mean, {}),
    "min-recall": ({"objective": "min-recall", "sharpness": 5.0}, lambda C: soft_min_recall(C, sharpness=5.0), {}),
    "min-head-tail": (
        {"objective": "min-head-tail-recall", "sharpness": 5.0},
        lambda C: soft_min_recall(C, sharpness=5.0, groups=TAIL), {},
    ),
    "tail-of-three": (
        {"objective": "min-head-tail-recall", "sharpness": 5.0, "tail": 0.3},
        lambda C: soft_min_recall(C, sharpness=5.0, groups=[[0, 1, 2, 3, 4, 5, 6], [7, 8, 9]]), {},
    ),
    "coverage": (COVERED, under_coverage(mean_recall, cap=30.0, tolerance=0.2, floor=0.09), {}),
    "tail-coverage": (
        {**COVERED, "floors": "head-tail-coverage", "objective": "h-mean"},
        under_coverage(h_mean, cap=30.0, tolerance=0.2, floor=0.09, groups=TAIL), {},
    ),
    "scale": ({"scale": 3.0}, mean_recall, {"scale": 3.0}),
    "absolute": ({"relative": False}, mean_recall, {"relative": False}),
    "no-floor": ({"explore": 0.0}, mean_recall, {"floor": 0.0}),
    "own-floor": ({"explore": 0.01}, mean_recall, {"floor": 0.01}),
    "legacy": ({"legacy": True}, mean_recall, {}),
    "smoothing": ({"smoothing": 3.0, "objective": "h-mean"}, h_mean, {}),
    "least-kept": ({"least_kept": 0.2}, mean_recall, {}),
    "flips": ({"flip_val": True}, mean_recall, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_pairs_follow_the_gain_on_validation(name: str, data: Data, first: LongTailClassifier) -> None:
    settings, metric, of_pairs = OPTIONS[name]
    method = looked(data, first, **settings)
    x, y, guess = validation(method, data.streams["val"], flip=name == "flips")
    C = smoothed(confusion_matrix(guess, y, 10), len(y), 3.0 if name == "smoothing" else 1.0)
    Z = torch.stack([x[y == k].double().mean(0) for k in range(10)])
    head, keep = method.net.head, 0.6 if name == "least-kept" else 0.8
    G = pair_gain(metric, C, Z, head.weight, bias=head.bias, keep=keep, legacy=name == "legacy")
    expected = pair_distribution(G, **({"scale": 10.0, "relative": True, "floor": 1e-3} | of_pairs))
    torch.testing.assert_close(method.distribution, expected.float(), rtol=1e-4, atol=1e-7)
    if settings:
        assert not torch.allclose(method.distribution, looked(data, first).distribution, atol=1e-6)
    traced = method.traces()
    assert traced["largest_gain"] == pytest.approx(float(G.max()), rel=1e-4)
    assert traced["pair_entropy"] == pytest.approx(float(pair_entropy(expected)), rel=1e-4)


@pytest.mark.parametrize("policy", ["uniform", "greedy", "accumulated", "hedge"])
def test_policies_are_used(policy: str, data: Data, first: LongTailClassifier) -> None:
    method = looked(data, first, policy=policy)
    P = method.distribution
    if policy in ("uniform", "hedge"):  # hedge has seen nothing in its first round
        torch.testing.assert_close(P, torch.full((10, 10), 0.01))
    elif policy == "greedy":
        assert float(P.max()) == 1
    else:
        assert (P > 0).all()
        assert float(P.max()) > 0.01
    method.refresh(Progress(50, 2, 100), data.streams)
    assert torch.equal(method.distribution, P) == (policy in ("uniform", "greedy"))  # the network has not moved


def test_multipliers_with_memory_go_on_and_without_do_not(data: Data, first: LongTailClassifier) -> None:
    for memory in (False, True):
        method = looked(data, first, objective="min-recall", sharpness=2.0, floors="coverage", memory=memory)
        once = {key: value.clone() for key, value in method.duals.items()}
        method.refresh(Progress(50, 2, 100), data.streams)
        for key, value in method.duals.items():
            assert torch.equal(value, once[key]) != memory, key
        said = method.traces()
        assert said[f"multiplier:{data.classes[0]}"] == pytest.approx(float(method.duals["recall"][0]))
        assert said[f"coverage_multiplier:{data.classes[3]}"] == pytest.approx(float(method.duals["coverage"][3]))


def test_validation_keeps_its_own_priors(data: Data, first: LongTailClassifier) -> None:
    """Accuracy weighs classes as validation has them; CSST's re-balancing would change the gain."""
    val = data.streams["val"]
    uneven = val.subset(torch.tensor([k for k in range(len(val)) if int(val.labels[k]) < 3 or k % 2]))
    method = make(data, first)
    method.pursue(Aim(accuracy))
    method.refresh(AT, {**data.streams, "val": uneven})
    x, y, guess = validation(method, uneven)
    C = smoothed(confusion_matrix(guess, y, 10), len(y))
    Z = torch.stack([x[y == k].double().mean(0) for k in range(10)])
    assert len(set(C.sum(1).mul(len(y)).round().tolist())) > 1
    gains = [
        pair_gain(accuracy, used, Z, method.net.head.weight, bias=method.net.head.bias)
        for used in (C, C / C.sum(1, keepdim=True) / 10)
    ]
    wanted, balanced = (pair_distribution(G, 10.0, relative=True, floor=1e-3).float() for G in gains)
    torch.testing.assert_close(method.distribution, wanted, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(wanted, balanced, atol=1e-4)


# pseudo-labels


def test_trap_15_partners_are_chosen_by_pseudo_label(data: Data, first: LongTailClassifier) -> None:
    """The stream has no labels to read; pairs hold the classes that the network predicts, renewed each cycle."""
    assert data.streams["unlabelled"].labels is None
    method = looked(data, first)
    x = data.streams["unlabelled"].fetch(torch.arange(len(data.streams["unlabelled"])))
    assert torch.equal(method.pseudo, method.predict(x).argmax(1))
    method.pseudo = torch.where(torch.arange(len(method.pseudo)) < 9, 5, 1)
    method.distribution = torch.zeros(10, 10)
    method.distribution[2, 5] = 1.0
    (batch,) = batches(method, data)
    assert batch["labelled"].y.tolist() == [2] * 8
    assert (batch["unlabelled"].indices < 9).all()
    assert len(batch["unlabelled"].indices.unique()) > 1
    before = method.pseudo.clone()
    method.net.head.bias.data[0] += 1e3
    method.refresh(Progress(25, 2, 40), data.streams)  # inside a cycle
    assert torch.equal(method.pseudo, before)
    feeds = method.refresh(Progress(50, 2, 100), data.streams)
    assert (method.pseudo == 0).all()
    assert feeds is not None
    assert set(method.pseudo[feeds["unlabelled"].picks.batch(50)].tolist()) == {0}  # type: ignore[union-attr]


def test_pseudo_labels_may_be_renewed_less_often(data: Data, first: LongTailClassifier) -> None:
    method = looked(data, first, cycle=10, pseudo_every=2)
    before = method.pseudo.clone()
    method.net.head.bias.data[0] += 1e3
    method.refresh(Progress(10, 2, 40), data.streams)
    assert torch.equal(method.pseudo, before)
    method.refresh(Progress(20, 2, 40), data.streams)
    assert (method.pseudo == 0).all()


def test_partners_may_be_labelled_though_others_are_there(data: Data, first: LongTailClassifier) -> None:
    assert looked(data, first, partners="labelled").feeds(data.streams).keys() == {"labelled"}
    assert looked(data, first).feeds(data.streams).keys() == {"labelled", "unlabelled"}


# stopping, watching


def test_it_learns_no_more_once_the_gain_has_settled(data: Data, first: LongTailClassifier) -> None:
    for asked in (True, False):
        method = looked(data, first, early_stop=asked)
        method.diary.kept["largest"] = method.diary.largest.repeat(9)
        method.refresh(Progress(50, 2, 100), data.streams)  # the tenth, and the same
        before = weights(method.net)
        said = method.update(batches(method, data)[0])
        assert (method.stopped == 50) == asked == ("stopped" in said)
        assert torch.equal(weights(method.net)["fc.weight"], before["fc.weight"]) == asked
        assert method.details()["selmix"].get("stopped") == (50 if asked else None)
    again = make(data, first, early_stop=True)
    method.stopped = 50
    again.load_state(copy.deepcopy(method.state()))
    assert again.stopped == 50


def test_gains_are_tried_with_the_mean_share_that_is_mixed(
    data: Data, first: LongTailClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares are uniform from ``least_kept`` to 1."""
    seen: list[float] = []
    tried = selmix.gain_fidelity
    monkeypatch.setattr(
        selmix, "gain_fidelity", lambda *a, keep=-1.0, **k: seen.append(keep) or tried(*a, keep=keep, **k)
    )
    make(data, first, fidelity=1, least_kept=0.2).refresh(Progress(0, 2, 9), data.streams)
    assert seen == [pytest.approx(0.6)]


def test_samples_are_seen_as_the_first_stage_saw_them(first: LongTailClassifier) -> None:
    other = prepare_data(DataSettings(set="shapes", n_max=20, imbalance=10, normalise=[[0.1] * 3, [2.0] * 3]))
    seen = make(other, first).data
    assert seen.eval_view is first.data.eval_view
    assert seen.train_view is first.data.train_view


def test_matrices_of_some_looks_are_kept_for_the_report(data: Data, first: LongTailClassifier) -> None:
    method = make(data, first, cycle=1, fidelity=3)
    for step in range(9):
        method.refresh(Progress(step, 2, 9), data.streams)
    found = method.details()
    assert found["selmix"]["shown"] == [0, 2, 4, 6, 8]
    assert found["selmix"]["steps"] == list(range(9))
    assert found["pair_gain"].shape == found["pair_distribution"].shape == (5, 10, 10)
    assert found["pair_fidelity"].shape == (5, 3, 3)
    assert found["pair_distribution"].sum((1, 2)) == pytest.approx([1.0] * 5, rel=1e-4)
    torch.testing.assert_close(torch.from_numpy(found["pair_distribution"][-1]), method.distribution)
    assert make(data, first, fidelity=0).details()["pair_fidelity"].shape == (0, 0, 3)


def test_many_classes_share_rows_of_the_kept_matrices() -> None:
    from evenhand.methods.unlabelled.selmix_watch import BLOCKS, Diary

    diary = Diary([1, *range(300, 181, -1)])  # 120 classes, the first one the rarest
    gain, P = torch.zeros(120, 120), torch.zeros(120, 120)
    gain[0, 1], P[0, 1] = 6.0, 1.0
    diary.show(0, gain, P, torch.empty(0, 3))
    kept = diary.details()
    assert kept["pair_gain"].shape == (1, BLOCKS, BLOCKS)
    assert kept["pair_distribution"][0, -1, 0] == pytest.approx(1)
    assert kept["pair_gain"][0, -1, 0] == pytest.approx(6 / (2 * 3))  # a mean over 2 rare and 3 frequent classes


# files and workers


def test_files_are_read_by_workers_alike(tmp_path: Path) -> None:
    """Feeds that change reopen the loader processes: with and without them, the same weights."""
    for split, counts in {"train": 4, "val": 2, "test": 1}.items():
        for k, name in enumerate("ab"):
            for i in range(counts):
                save_picture(tmp_path / "set" / split / name / f"{i}.png", 96, 96, seed=7 * i + k)
    for i in range(6):
        save_picture(tmp_path / "set" / "unlabelled" / f"{i}.png", 96, 96, seed=50 + i)
    base = {"data": {"set": str(tmp_path / "set"), "size": 80}, "run": {"steps": 2, "progress": False}}
    net = {"name": "small-cnn", "width": 4}
    tree = {**base, "method": {"name": "classifier", "batch": 4, "net": net}}
    fit_recipe(validate({**tree, "run": {**base["run"], "folder": str(tmp_path / "first")}}, "first"))
    found = []
    for workers in (0, 2):
        run = {**base["run"], "steps": 4, "workers": workers, "folder": str(tmp_path / str(workers))}
        method = {"name": "selmix", "batch": 4, "cycle": 2, "fidelity": 0, "optim": {"lr": 0.1}}
        tree = {**base, "method": method, "run": run, "needs": {"first": str(tmp_path / "first")}}
        found.append(fit_recipe(validate(tree, "selmix"))[2].state())
    assert torch.equal(found[0]["pseudo"], found[1]["pseudo"])
    for name, value in found[0]["player"]["net"].items():
        assert torch.equal(value, found[1]["player"]["net"][name])


# what it refuses


def without_class(stream: Stream, label: int, keep: int = 0) -> Stream:
    assert stream.labels is not None
    rows = [int(k) for k in (stream.labels == label).nonzero()[keep:, 0]]
    return stream.subset(torch.tensor([k for k in range(len(stream)) if k not in rows]))


def test_validation_must_have_every_class_twice(data: Data, first: LongTailClassifier) -> None:
    val = data.streams["val"]
    method = make(data, first)
    given = {"first"}
    for streams, said in (
        ({k: v for k, v in data.streams.items() if k != "val"}, "steered by validation, which the data do not have"),
        ({**data.streams, "val": without_class(val, 4)}, f"fewer than 2 samples of {data.classes[4]}: every class"),
        ({**data.streams, "val": without_class(val, 4, keep=1)}, f"fewer than 2 samples of {data.classes[4]}"),
    ):
        with pytest.raises(UserError, match=said):
            method.feeds(streams)
        with pytest.raises(UserError, match=said):
            SelMix.check(method.settings, replace(data, streams=streams), given)
    two = {**data.streams, "val": without_class(val, 4, keep=2)}
    with pytest.warns(UserWarning, match="validation has 2 samples of a class: a recall moves in steps of 1/2"):
        method.feeds(two)
    method.refresh(AT, two)


def test_what_cannot_be_fine_tuned_is_refused(data: Data, first: LongTailClassifier) -> None:
    cosine = trained(data, loss="ldam")
    two = trained(data)
    two.player.judged().head_dist = nn.Identity()
    other = SimpleNamespace(network=first.network, data=replace(data, facts=data.facts.model_copy(
        update={"classes": tuple("abcdefghij")})), logit_scale=1.0)  # fmt: skip
    for given, said in (
        (cosine, "needs.first, for SelMix: the head is a CosineHead, not linear"),
        (two, "needs.first has two heads"),
        (None, "set needs.first to a classifier's recipe or folder"),
        (SimpleNamespace(network=lambda: None, data=data), "set needs.first to a classifier's recipe or folder"),
        (other, "the first run knows other classes than the data"),
    ):
        with pytest.raises(UserError, match=said):
            make(data, given)
    with pytest.raises(UserError, match=r"set needs\.first"):
        SelMix.check(SelMixSettings(), data, ())


def test_settings_that_cannot_work_are_refused(data: Data, labelled_only: Data, first: LongTailClassifier) -> None:
    with pytest.raises(UserError, match="partners = 'unlabelled' but the data have none"):
        make(labelled_only, trained(labelled_only), partners="unlabelled").feeds(labelled_only.streams)
    with pytest.raises(UserError, match="partners = 'unlabelled' but the data have none"):
        SelMix.check(SelMixSettings(partners="unlabelled"), labelled_only, {"first"})
    for settings, said in (
        ({"objective": "h-means"}, "'h-means' is no objective; did you mean 'h-mean'"),
        ({"optim": {"name": "sam"}}, "selmix takes one pass per step"),
        ({"optim": {"accumulate": 2}}, "selmix takes one pass per step"),
    ):
        with pytest.raises(ValueError, match=said):
            SelMixSettings.model_validate(settings)
    with pytest.raises(UserError, match="objective = 'nowhere:psi' cannot be imported"):
        make(data, first, objective="nowhere:psi")


def test_vectors_are_neither_cut_nor_mirrored() -> None:
    facts = SimpleNamespace(kind="vectors")
    settings = SelMixSettings(mix="cutmix")
    some = SimpleNamespace(facts=facts, classes=("a", "b"), counts=[1, 1])
    given = SimpleNamespace(network=nn.Identity, data=some, logit_scale=1.0)
    with pytest.raises(UserError, match="mix = 'cutmix' cuts images, the data are vectors"):
        SelMix(settings, some, seed=0, device=CPU, first=given)  # type: ignore[arg-type]


def test_mirrored_vectors_are_refused(data: Data, first: LongTailClassifier) -> None:
    method = make(data, first, flip_val=True)
    val = data.streams["val"]
    vectors = Stream(Memory(torch.zeros(len(val), 3)), val.labels, val.classes, "val")
    method.embed = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(UserError, match="flip_val mirrors images, the data are vectors"):
        method.refresh(AT, {**data.streams, "val": vectors})


OWN = """
import torch
def fine(C): return C[9, 9] / C[9].sum()
def lost(C): return C.trace() * float("nan")
def absent(C): return C[12, 12]
def plain(C): return float(C.trace())
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lost", "objective 'own_metrics:lost': metric returned nan: guard its division or root"),
        ("absent", "objective 'own_metrics:absent': it fails on a confusion matrix of 10 classes .*correct it"),
        ("plain", "objective 'own_metrics:plain': metric returned .*: expected one number"),
    ],
)
def test_a_metric_of_ones_own(
    name: str, said: str, data: Data, first: LongTailClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metrics.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "own_metrics", raising=False)
    method = looked(data, first, objective="own_metrics:fine", explore=0.0)
    assert float(method.distribution[9].sum()) > 0.5  # recall of class 9 alone
    with pytest.raises(UserError, match=said) as error:
        looked(data, first, objective=f"own_metrics:{name}")
    assert "\n" not in str(error.value)
