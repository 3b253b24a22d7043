"""Self-training steps against the equations of spec 06, written out sample by sample."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from evenhand.data.loader import Batch
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.splits import longtail_counts
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure.confusion import confusion_matrix, coverages
from evenhand.methods import method_class
from evenhand.methods.protocol import Progress
from evenhand.methods.unlabelled.crest import CReST
from evenhand.methods.unlabelled.csst import CSST, CSSTSettings
from evenhand.methods.unlabelled.fixmatch import FixMatch
from evenhand.methods.unlabelled.selftraining import SelfTrainingOptim
from evenhand.pieces.gain import Gain
from evenhand.pieces.objectives import AnyMetric, MinRecall
from evenhand.run.recipe import load_recipe
from evenhand.run.training import prepare_method
from helpers import batches

CPU = torch.device("cpu")
START = Progress(0, 10, 100)


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(
        DataSettings(set="shapes", n_max=20, unlabelled_max=30, imbalance=10, val_per_class=5)  # 10 classes
    )


def build(name: str, data: Data, **method: Any) -> Any:
    """A method that has told the loop what it feeds on."""
    made = construct(name, data, **method)
    made.feeds(data.streams)
    return made


def construct(name: str, data: Data, **method: Any) -> Any:
    tree = {"name": name, "batch": 8, "net": {"name": "small-cnn", "width": 4}, **method}
    cls = method_class(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(cls.table(**tree), data, seed=0, device=CPU)


def ask(method: Any, data: Data, at: Progress = START) -> None:
    """What the loop asks before a step."""
    method.refresh(at, data.streams)
    method.schedule(at)


def gradients(net: torch.nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()]


def halving(method: Any, batch: dict[str, Batch], score: Callable[[Tensor], float]) -> float:
    """A threshold between two samples of the batch: half of them pass."""
    _, weak, _ = literal_logits(copy.deepcopy(method.net), batch)
    scores = sorted(score(w.softmax(0)) for w in weak)
    middle = len(scores) // 2
    return (scores[middle - 1] + scores[middle]) / 2


def changed(method: Any, **settings: Any) -> None:
    method.settings = method.settings.model_copy(update=settings)


def step_and_gradients(method: Any, batch: dict[str, Batch]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """One update whose optimiser only looks."""
    found: list[Tensor] = []
    method.player.step = lambda: found.extend(gradients(method.net))
    said = method.update(batch)
    del method.player.step
    method.net.zero_grad()
    return said, found


def literal_logits(net: torch.nn.Module, batch: dict[str, Batch]) -> tuple[Tensor, Tensor, Tensor]:
    x, (weak, strong) = batch["labelled"].x, batch["unlabelled"].views
    logits = net.train()(torch.cat([x, weak, strong]))
    return logits[: len(x)], logits[len(x) : len(x) + len(weak)].detach(), logits[len(x) + len(weak) :]


def agree(said: dict[str, Tensor], found: list[Tensor], loss: Tensor, net: torch.nn.Module) -> None:
    net.zero_grad()
    loss.backward()
    torch.testing.assert_close(said["loss"], loss.detach(), rtol=1e-5, atol=1e-6)
    for mine, literal in zip(found, gradients(net), strict=True):
        torch.testing.assert_close(mine, literal, rtol=1e-4, atol=1e-6)


def hybrid(y: Tensor | int, z: Tensor, G: Tensor) -> Tensor:
    """``-sum_i (M^T p)_i log softmax(z - log D)_i`` of one sample, by loops over classes."""
    D = G.diagonal()
    K = len(D)
    target = [float(y == k) for k in range(K)] if isinstance(y, int) else y.tolist()
    adjusted = z - D.log()
    total = sum((adjusted[k].exp() for k in range(K)), start=z.new_zeros(()))
    loss = z.new_zeros(())
    for i in range(K):
        reward = sum(target[j] * float(G[j, i]) / float(D[i]) for j in range(K))
        loss = loss - reward * (adjusted[i] - total.log())
    return loss


def divergence(target: Tensor, probs: Tensor, G: Tensor) -> float:
    best = G.T @ target
    best = best / best.sum()
    return sum(float(b * (b / p).log()) for b, p in zip(best, probs, strict=True) if b > 0)


@pytest.mark.parametrize("consistency", ["fixmatch", "uda"])
@pytest.mark.parametrize("loss", ["ce", "la"])
def test_fixmatch_step_is_the_equation(data: Data, consistency: str, loss: str) -> None:
    method = build("fixmatch", data, consistency=consistency, loss=loss, unlabelled_weight=0.7)
    net, (batch,) = copy.deepcopy(method.net), batches(method, data)
    threshold = halving(method, batch, lambda p: float(p.max()))
    changed(method, threshold=threshold)
    ask(method, data)
    said, found = step_and_gradients(method, batch)
    first, weak, strong = literal_logits(net, batch)
    shift = method.priors.log() if loss == "la" else 0.0
    expected = torch.stack(
        [-(z + shift).log_softmax(0)[y] for z, y in zip(first, batch["labelled"].y, strict=True)]
    ).mean()
    kept, terms = 0, []
    for w, z in zip(weak, strong, strict=True):
        p = w.softmax(0)
        if p.max() < threshold:
            continue
        kept += 1
        if consistency == "fixmatch":
            terms.append(-z.log_softmax(0)[p.argmax()])
        else:
            q = p ** (1 / 0.4) / (p ** (1 / 0.4)).sum()
            terms.append((q * (q.log() - z.log_softmax(0))).sum())
    assert kept == len(weak) // 2
    assert float(said["kept"]) == pytest.approx(kept / len(weak))
    agree(said, found, expected + 0.7 * torch.stack(terms).sum() / len(weak), net)  # by the whole batch


@pytest.mark.parametrize(
    ("objective", "consistency"),
    [("min-recall", "fixmatch"), ("coverage", "fixmatch"), ("coverage", "uda"), ("min-head-tail-recall", "uda")],
)
def test_csst_step_is_the_equation(data: Data, objective: str, consistency: str) -> None:
    method = build("csst", data, objective=objective, consistency=consistency)
    ask(method, data)
    net, (batch,) = copy.deepcopy(method.net), batches(method, data)
    G = method.gain.dense()

    def label(p: Tensor) -> Tensor:
        hard = torch.nn.functional.one_hot(p.argmax(), len(p)).float()
        return hard if consistency == "fixmatch" else p**2.5 / (p**2.5).sum()

    threshold = halving(method, batch, lambda p: divergence(label(p), p, G))
    changed(method, threshold=threshold)
    said, found = step_and_gradients(method, batch)
    first, weak, strong = literal_logits(net, batch)
    expected = torch.stack([hybrid(int(y), z, G) for z, y in zip(first, batch["labelled"].y, strict=True)]).mean()
    kept, total = 0, torch.zeros(())
    for w, z in zip(weak, strong, strict=True):
        p = w.softmax(0)
        if divergence(label(p), p, G) <= threshold:
            kept += 1
            total = total + hybrid(label(p), z, G)
    assert kept == len(weak) // 2
    assert float(said["kept"]) == pytest.approx(kept / len(weak))
    agree(said, found, expected + total / len(weak), net)


def test_nothing_flows_through_the_weak_view(data: Data) -> None:
    """The gradient at the weak logits is exactly zero, in every method but CReST, which learns from added ones."""
    for name, options in {"fixmatch": {"threshold": 0.2}, "csst": {"threshold": 5.0}}.items():
        method = build(name, data, **options)
        ask(method, data)
        caught: list[Tensor] = []
        passes = method.passes

        def spied(batch: Any, passes: Any = passes, caught: list[Tensor] = caught) -> Any:
            first, weak, strong = passes(batch)
            caught.append(weak)
            weak.retain_grad()
            return first, weak, strong

        method.passes = spied
        said, _ = step_and_gradients(method, batches(method, data)[0])
        assert said["kept"] > 0
        assert caught[0].grad is None or not caught[0].grad.any()


def test_one_pass_or_two_agree_without_batchnorm(data: Data) -> None:
    losses = []
    for one_pass in (True, False):
        method = build("csst", data, threshold=5.0, one_pass=one_pass)
        for module in method.net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.forward = lambda x: x  # type: ignore[method-assign]
        ask(method, data)
        said, found = step_and_gradients(method, batches(method, data)[0])
        losses.append((said["loss"], found))
    torch.testing.assert_close(losses[0][0], losses[1][0])
    for a, b in zip(losses[0][1], losses[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_diagonal_gain_makes_kl_and_confidence_masks_one(data: Data) -> None:
    """Spec 06, 10a.5: the whole training is the same, step for step."""
    runs = []
    for mask in ("kl", "confidence"):
        method = build("csst", data, mask=mask, threshold=1.5, confidence=math.exp(-1.5), feedback_every=2)
        written = []
        for step, batch in enumerate(batches(method, data, 4)):
            ask(method, data, Progress(step, 10, 100))
            written.append({key: float(value) for key, value in method.update(batch).items()})
        runs.append(written)
    assert runs[0] == runs[1]
    assert any(row["kept"] > 0 for row in runs[0])


def test_identity_gain_is_fixmatch(data: Data) -> None:
    """Spec 06, 10a.4: ``G = I`` is FixMatch with confidence ``exp(-tau)``."""
    eye = torch.eye(len(data.classes)).tolist()
    plain = build("fixmatch", data, threshold=math.exp(-1.8))
    steered = build("csst", data, objective="gain", gain=eye, threshold=1.8)
    (batch,) = batches(plain, data)
    results = []
    for method in (plain, steered):
        ask(method, data)
        results.append(step_and_gradients(method, batch))
    torch.testing.assert_close(results[0][0]["loss"], results[1][0]["loss"])
    assert results[0][0]["kept"] == results[1][0]["kept"] > 0
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_uniform_multipliers_are_logit_adjustment(data: Data) -> None:
    """CSL before anything was learnt apart equals LA: one loss, ``G = diag(1 / prior)``."""
    la = build("fixmatch", data, loss="la", unlabelled_weight=0.0)
    csl = build("csst", data, unlabelled_weight=0.0)  # not yet asked: even multipliers
    assert set(csl.feeds(data.streams)) == {"labelled"}
    (batch,) = batches(la, data)
    (a, _), (b, _) = step_and_gradients(la, batch), step_and_gradients(csl, batch)
    torch.testing.assert_close(a["loss"], b["loss"])


def test_feedback_comes_every_so_many_steps_from_the_averaged_net(data: Data) -> None:
    method = build("csst", data, feedback_every=3, optim={"ema": 0.5})
    seen = []
    for step, batch in enumerate(batches(method, data, 7)):
        before = method.duals.clone()
        ask(method, data, Progress(step, 10, 100))
        if step % 3 == 0:
            logits = method.player.average.eval()(method.data.eval_view(data.streams["val"].fetch(torch.arange(50))))
            right = logits.argmax(1) == data.streams["val"].labels
            recalls = torch.stack([right[data.streams["val"].labels == k].float().mean() for k in range(10)])
            expected = before * (-0.25 * recalls).exp()
            torch.testing.assert_close(method.duals, expected / expected.sum())
        seen.append(not torch.equal(before, method.duals))
        method.update(batch)
    assert [i for i, moved in enumerate(seen) if moved] == [0, 3, 6]


def test_parts_of_validation_together_are_validation(data: Data) -> None:
    whole, parts = (
        build("csst", data, objective="coverage"),
        build("csst", data, objective="coverage", feedback_parts=5),
    )
    ask(whole, data)
    for turn in range(5):
        ask(parts, data, Progress(32 * turn, 10, 100))
    torch.testing.assert_close(parts.confusion, whole.confusion)


def test_a_metric_of_ones_own_becomes_the_gain(data: Data) -> None:
    method = build("csst", data)
    method.pursue(AnyMetric(lambda C: C[3, 3] / C[3].sum(), data.counts))
    ask(method, data)
    assert method.gain.diagonal().argmax() == 3
    assert [key for key in method.task.score(method, data.streams["val"]) if key.startswith("multiplier")] == [
        "multiplier:0"
    ]


@pytest.mark.parametrize("objective", [*get_args(CSSTSettings.model_fields["objective"].annotation)])
def test_every_objective_is_steered_and_judged(data: Data, objective: str) -> None:
    gain = torch.eye(len(data.classes)).tolist() if objective == "gain" else []
    method = build("csst", data, objective=objective, gain=gain)
    ask(method, data)
    found = [key for key in method.task.score(method, data.streams["val"]) if key.startswith("multiplier")]
    assert len(found) == len(method.duals)
    method.pursue(MinRecall(data.counts))
    assert sum(key.startswith("multiplier") for key in method.task.score(method, data.streams["val"])) == len(
        data.classes
    )


@pytest.mark.parametrize("gain", [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0]]])
def test_a_gain_of_another_size_is_refused(data: Data, gain: list[list[float]]) -> None:
    with pytest.raises(UserError, match=r"method\.gain has rows of 2, [12] numbers; .* give 10 rows of 10"):
        build("csst", data, objective="gain", gain=gain)


def test_classes_weigh_alike_in_uneven_validation(data: Data) -> None:
    """Coverage is measured as on balanced validation, which the gain supposes."""
    val = data.streams["val"]
    rows = torch.cat([torch.arange(len(val)), *[(val.labels == 0).nonzero()[:, 0]] * 3])
    found = []
    for each in (val, val.subset(rows)):
        mine = with_stream(data, "val", each)
        found.append(build("csst", mine, objective="coverage"))
        ask(found[-1], mine)
    even, uneven = found
    torch.testing.assert_close(even.confusion, uneven.confusion)
    torch.testing.assert_close(even.duals, uneven.duals)


def test_watching_names_every_class(data: Data) -> None:
    method = build("csst", data, threshold=1.0)
    for step, batch in enumerate(batches(method, data, 2)):
        ask(method, data, Progress(step, 10, 100))
        method.update(batch)
    found = method.task.score(method, data.streams["val"])
    for name in data.classes:
        assert {f"{key}:{name}" for key in ("recall", "coverage", "kept", "multiplier")} <= found.keys()
    assert sum(found[f"multiplier:{name}"] for name in data.classes) == pytest.approx(1)
    assert sum(found[f"coverage:{name}"] for name in data.classes) == pytest.approx(1)
    assert all(0 <= found[f"kept:{name}"] <= 1 for name in data.classes)


def test_crest_takes_over_most_of_rare_classes_and_starts_afresh(data: Data) -> None:
    method: CReST = build("crest", data, generations=2)
    (batch,) = batches(method, data)
    ask(method, data, Progress(0, 10, 8))
    method.update(batch)
    trained = [p.clone() for p in method.net.parameters()]
    ask(method, data, Progress(4, 10, 8))
    assert (method.added >= 0).any()
    assert not any(torch.equal(a, b) for a, b in zip(trained, method.net.parameters(), strict=True) if a.ndim > 1)
    assert method.player.optimizer.param_groups[0]["lr"] == pytest.approx(0.03)  # the schedule starts afresh too


def test_crest_labelled_loss_is_the_mean_over_the_union(data: Data) -> None:
    """With every unlabelled sample in the batch once, the estimate is the union's mean exactly."""
    method: CReST = build("crest", data)
    K, N, M = len(data.classes), len(data.labelled), len(data.streams["unlabelled"])
    chance = torch.Generator().manual_seed(0)
    first, weak = torch.randn(N, K, generator=chance), torch.randn(M, K, generator=chance)
    y = data.labelled.labels
    method.added = torch.randint(-1, K, (M,), generator=chance)
    found = method._joint_loss(first, y, weak, method.added)
    logits = torch.cat([first, weak[method.added >= 0]])
    labels = torch.cat([y, method.added[method.added >= 0]])
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(logits, labels))


def test_darp_refines_to_the_estimated_shares(data: Data) -> None:
    method: FixMatch = build("fixmatch", data, refine="labelled", refine_start=0, refine_every=1, threshold=0.1)
    for step, batch in enumerate(batches(method, data, 12)):
        ask(method, data, Progress(step, 10, 100))
        method.update(batch)
    torch.testing.assert_close(method.refined.mean(0), method.priors, rtol=0, atol=1e-4)


def test_weight_decay_spares_normalisation(data: Data) -> None:
    method = build("fixmatch", data)
    decayed, spared = method.player.optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (5e-4, 0.0)
    assert len(spared["params"]) == 8  # gain and bias of four BatchNorm layers
    assert {p.ndim for p in decayed["params"]} == {1, 2, 4}  # the head's bias decays


def with_stream(data: Data, name: str, stream: Stream | None) -> Data:
    streams = {key: value for key, value in data.streams.items() if key != name}
    return replace(data, streams=streams if stream is None else {**streams, name: stream})


def refused(name: str, data: Data, message: str, **options: Any) -> None:
    """The method can be made, as a finished one opens without data, but not fed."""
    method = construct(name, data, **options)
    with pytest.raises(UserError, match=message):
        method.feeds(data.streams)


def test_missing_streams_are_named_before_training(data: Data) -> None:
    empty = data.streams["unlabelled"].subset(torch.arange(0))
    small = Stream(Memory(torch.zeros(4, 3, 8, 8, dtype=torch.uint8)), None, data.classes)
    for other, message in ((None, "is not there"), (empty, "is empty"), (small, r"\(3, 8, 8\), labelled ones")):
        refused("fixmatch", with_stream(data, "unlabelled", other), message)
        build("fixmatch", with_stream(data, "unlabelled", other), unlabelled_weight=0.0)
    refused("csst", with_stream(data, "val", None), "val_per_class")
    refused("fixmatch", with_stream(data, "val", None), "val_per_class", refine="estimated")
    refused("csst", data, "feedback_parts = 6", feedback_parts=6)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"objective": "coverage", "floor": 0.2}, "total coverage of 2"),
        ({"objective": "gain", "gain": [[0.0] * 10] * 10}, "diagonal must be positive"),
    ],
)
def test_impossible_objectives_are_named_before_training(method: dict[str, Any], message: str) -> None:
    tree = {f"method.{key}": value for key, value in {"name": "csst", **method}.items()}
    smoke = {"data.set": "shapes", "data.n_max": 20, "data.unlabelled_max": 30, "data.imbalance": 10}
    recipe = load_recipe("csst-fashion", {**tree, **smoke, "data.groups": "thirds", "data.val_per_class": 5})
    with pytest.raises(UserError, match=message):
        prepare_method(recipe, prepare_data(recipe.data), CPU)


def test_trap_09_a_class_absent_from_validation_counts_as_missed_and_is_said(data: Data) -> None:
    val = data.streams["val"]
    some = val.subset((val.labels != 4).nonzero()[:, 0])
    short = with_stream(data, "val", some)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        method: CSST = build("csst", short)
        method.feeds(short.streams)  # the loop asks twice
    assert [(w.category, data.classes[4] in str(w.message)) for w in said] == [(UserWarning, True)]  # said once
    ask(method, short)
    assert method.duals[4] == method.duals.max()
    assert isinstance(method.gain, Gain)
    assert method.gain.own.isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(method, short)


def test_trap_16_feedback_sees_held_out_images_unaugmented(data: Data) -> None:
    pools = [data.streams[name] for name in ("labelled", "unlabelled", "val", "test")]
    images = [{image.numpy().tobytes() for image in pool.fetch(torch.arange(len(pool)))} for pool in pools]
    val = images.pop(2)
    assert not any(val & other for other in images)
    method = build("csst", data)
    x = data.streams["val"].fetch(torch.arange(20))
    expected = method.player.judged()(data.eval_view(x, torch.Generator()))
    assert torch.equal(method.predict(x), expected)


def test_unlabelled_batches_carry_no_labels(data: Data) -> None:
    method = build("csst", data)
    with pytest.raises(ValueError, match="no labels"):
        _ = batches(method, data)[0]["unlabelled"].y


@pytest.mark.parametrize("name", ["csst-cifar10", "csst-cifar100", "csst-imagenet100", "csst-fashion"])
def test_recipes_keep_validation(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.data.val_per_class >= 25
    assert recipe.data.unlabelled_max == 4 * recipe.data.n_max


def test_numbers_of_spec_06_on_gain_and_error() -> None:
    """10a.10, 10a.11, 10a.13: shifts of rows, gain against weighted error, coverages."""
    chance = torch.Generator().manual_seed(0)
    G, eta = torch.rand(4, 4, generator=chance), torch.rand(50, 4, generator=chance)
    eta = eta / eta.sum(1, keepdim=True)
    shifted = G + torch.rand(4, 1, generator=chance)
    assert torch.equal((eta @ G).argmax(1), (eta @ shifted).argmax(1))
    y, predicted = torch.randint(4, (2, 400), generator=chance)
    C = confusion_matrix(predicted, y, 4).float()
    priors = C.sum(1)
    error = torch.zeros(())
    for i in range(4):
        for j in range(4):
            error += G[i, j] * priors[i] * (predicted[y == i] != j).float().mean()
    torch.testing.assert_close((G * C).sum(), (G * priors[:, None]).sum() - error)
    assert float(coverages(C).sum()) == pytest.approx(1)
    assert coverages(confusion_matrix(torch.arange(4), torch.arange(4), 4)).tolist() == [0.25] * 4


def test_split_and_schedule_of_spec_06() -> None:
    """10a.15 and section 4: counts of the two pools, and the last learning rate."""
    assert [sum(longtail_counts(n, 10, 100)) for n in (1000, 4000)] == [2478, 9922]
    # The spec's 3875 and 15650 lose one each to rounding: 100 / 10 is 9.99... in floating point.
    assert [sum(longtail_counts(n, 100, 10)) for n in (100, 400)] == [3876, 15651]
    method = SelfTrainingOptim()
    assert method.factor(Progress(100, 10, 100)) == pytest.approx(0.19509, abs=1e-5)
