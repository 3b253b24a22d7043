"""Self-training beside its step: what is drawn, watched and logged, when things happen, which options reach what."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.methods import method_class
from evenhand.methods.protocol import Progress
from evenhand.methods.unlabelled import csst, fixmatch
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

START = Progress(0, 10, 100)


@pytest.fixture(scope="module")
def data() -> Data:
    set_ = {"set": "shapes", "n_max": 12, "imbalance": 10, "augment": [], "val_per_class": 3, "unlabelled_max": 16}
    return prepare_data(DataSettings(**set_))


def build(name: str, data: Data, seed: int = 0, **method: Any) -> Any:
    cls = method_class(name)
    tree = {"name": name, "batch": 8, "unlabelled_ratio": 2, "net": {"name": "small-cnn", "width": 4}, **method}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = cls(cls.table.model_validate(tree), data, seed=seed, device=torch.device("cpu"))
    made.feeds(data.streams)
    return made


# what is drawn, watched and logged


def test_samples_are_drawn_with_replacement_and_each_alike(data: Data) -> None:
    feeds = build("fixmatch", data).feeds(data.streams)
    N, M = len(data.streams["labelled"]), len(data.streams["unlabelled"])
    found = {key: (feed.batch, feed.views, feed.weights.tolist()) for key, feed in feeds.items()}
    assert found == {
        "labelled": (8, (data.train_view,), [1.0] * N),
        "unlabelled": (16, (data.train_view, data.strong_view), [1.0] * M),
    }


def test_the_share_kept_is_that_of_about_the_last_hundred_steps(data: Data) -> None:
    """Counts of each pseudo-class, and of those kept, decay by 0.99; a soft pseudo-label counts as its largest."""
    method = build("fixmatch", data)
    no, yes = False, True
    assert float(method.watch(torch.tensor([0, 0, 1, 2]), torch.tensor([yes, no, yes, no]))["kept"]) == 0.5
    soft = torch.tensor([[0.1, 0.6, *[0.0] * 7, 0.3], [0.2, 0.1, 0.7, *[0.0] * 7], [0.2, 0.1, 0.7, *[0.0] * 7]])
    assert float(method.watch(soft, torch.tensor([no, yes, yes]))["kept"]) == pytest.approx(2 / 3)
    seen = [0.99 * 2, 0.99 + 1, 0.99 + 2, *[0.0] * 7]
    kept = [0.99, 0.99, 2.0, *[0.0] * 7]
    torch.testing.assert_close(method.tally, torch.tensor([seen, kept]))
    shares = [0.5, 0.99 / 1.99, 2 / 2.99, *[0.0] * 7]
    expected = {f"kept:{name}": share for name, share in zip(data.classes, shares, strict=True)}
    assert method.traces() == pytest.approx(expected, rel=1e-5)


def test_both_losses_are_logged_and_the_second_only_where_it_is(data: Data) -> None:
    method = build("fixmatch", data, threshold=0.1, unlabelled_weight=0.5)
    net, (batch,) = copy.deepcopy(method.net).train(), batches(method, data)
    parts = [batch["labelled"].x, *batch["unlabelled"].views]
    first, weak, strong = net(torch.cat(parts)).detach().split([8, 16, 16])
    one = -sum(float(z.log_softmax(0)[y]) for z, y in zip(first, batch["labelled"].y, strict=True)) / 8
    two = -sum(float(z.log_softmax(0)[w.argmax()]) for z, w in zip(strong, weak, strict=True)) / 16
    method.schedule(START)
    said = {key: float(value) for key, value in method.update(batch).items()}
    wanted = {"loss": one + 0.5 * two, "labelled_loss": one, "consistency_loss": two, "kept": 1.0}
    assert said == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("one_pass", [True, False])
@pytest.mark.parametrize("name", ["fixmatch", "csst"])
def test_without_unlabelled_samples_the_labelled_loss_is_all(data: Data, name: str, one_pass: bool) -> None:
    """The hybrid loss before any feedback is cross-entropy of logits raised by the log-priors."""
    method = build(name, data, unlabelled_weight=0.0, one_pass=one_pass)
    assert method.feeds(data.streams).keys() == {"labelled"}
    net, (batch,) = copy.deepcopy(method.net).train(), batches(method, data)
    logits = net(batch["labelled"].x).detach()
    if name == "csst":
        logits = logits + (torch.tensor(data.counts) / sum(data.counts)).log()
    y = batch["labelled"].y
    method.schedule(START)
    said = {key: float(value) for key, value in method.update(batch).items()}
    loss = -sum(float(z.log_softmax(0)[k]) for z, k in zip(logits, y.tolist(), strict=True)) / 8
    assert said == pytest.approx({"loss": loss, "labelled_loss": loss}, rel=1e-4)
    assert not any(key.startswith("kept") for key in method.traces())


@pytest.mark.parametrize("optim", [{"name": "sam"}, {"name": "adam"}, {"accumulate": 2}], ids=str)
def test_optimisers_that_need_more_than_a_pass_are_refused(data: Data, optim: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="self-training takes one pass per step"):
        build("fixmatch", data, optim=optim)


# FixMatch and what is built on it


def test_memories_begin_with_the_priors_and_with_no_guess(data: Data) -> None:
    method = build("fixmatch", data, refine="labelled", align=True)
    priors = torch.tensor(data.counts) / sum(data.counts)
    for found in (method.predicted, method.wanted, method.marginals):
        torch.testing.assert_close(found, priors)
    assert method.guesses.tolist() == [[pytest.approx(0.1)] * 10] * len(data.streams["unlabelled"])
    assert torch.equal(method.refined, method.guesses)
    method.refined[0] = 7.0
    assert float(method.guesses.max()) < 1  # two memories, not one


def test_refinements_come_every_so_many_steps_from_their_start(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """From epoch 2 on, which is step 20; shares are estimated there and nowhere else."""
    refined, looked = [], []
    at = START
    monkeypatch.setattr(fixmatch, "refine_to_marginals", lambda guesses, _: refined.append(at.step) or guesses)

    def look(*_: Any) -> Any:
        looked.append(at.step)
        return SimpleNamespace(confusion=torch.eye(10))

    monkeypatch.setattr(fixmatch, "evaluate", look)
    for refine, wanted in (("labelled", []), ("estimated", [20])):
        method = build("fixmatch", data, refine=refine, refine_start=2, refine_every=3)
        refined.clear()
        for step in range(18, 30):
            at = Progress(step, 10, 100)
            method.refresh(at, data.streams)
            assert method.refines is (step >= 20)
        assert (refined, looked) == ([20, 23, 26, 29], wanted)
    plain = build("fixmatch", data)
    plain.refresh(Progress(50, 10, 100), data.streams)
    assert not plain.refines


def test_two_corrections_of_pseudo_labels_are_refused(data: Data) -> None:
    with pytest.raises(ValueError, match="flexmatch and DARP both correct pseudo-labels"):
        build("fixmatch", data, thresholds="flexmatch", refine="labelled")


def test_flexmatch_counts_the_unlabelled_samples(data: Data) -> None:
    method = build("fixmatch", data, thresholds="flexmatch", threshold=0.7)
    assert (method.flex.threshold, len(method.flex.last)) == (0.7, len(data.streams["unlabelled"]))
    again = build("fixmatch", data, thresholds="flexmatch", threshold=0.7)
    method.flex.last[3] = 5
    again.load_state(method.state())
    assert (again.flex.threshold, again.flex.last[3]) == (0.7, 5)
    before = again.flex
    again.feeds(data.streams)
    assert again.flex is before  # asked again, it forgets nothing
    assert build("fixmatch", data).flex is None


# CReST


def test_generations_share_the_steps_and_the_last_is_no_longer(data: Data) -> None:
    """Ten steps of three generations: four, four and two; each has the learning rates of a whole run of four."""
    method = build("crest", data, generations=3)
    rates = []
    for step in range(10):
        method.schedule(Progress(step, 5, 10))
        rates.append(method.player.optimizer.param_groups[0]["lr"])
    one = [0.03 * math.cos(7 * math.pi * k / 4 / 16) for k in range(4)]
    assert rates == pytest.approx([*one, *one, *one[:2]])


@pytest.mark.parametrize(("generations", "powers"), [(1, [1.0]), (2, [1.0, 0.2]), (3, [1.0, 0.6, 0.2])])
def test_the_last_generation_has_the_flattest_shares(data: Data, generations: int, powers: list[float]) -> None:
    method = build("crest", data, generations=generations, align=True, align_last=0.2)
    for number, power in enumerate(powers):
        method.schedule(Progress(6 * number, 10, 6 * generations))
        shares = (torch.tensor(data.counts) / sum(data.counts)) ** power
        torch.testing.assert_close(method.wanted, shares / shares.sum())


def test_a_new_generation_has_weights_of_its_own_and_its_memories_anew(data: Data) -> None:
    found = {}
    for seed in (0, 1):
        for generation in (1, 2):
            method = build("crest", data, seed=seed, generations=3, thresholds="flexmatch", threshold=0.11)
            method.flex.last.fill_(4)
            method.tally.fill_(3.0)
            method.refresh(Progress(4 * generation, 10, 12), data.streams)
            assert len(method.flex.last) == len(data.streams["unlabelled"])
            assert (method.flex.last == -1).all()
            assert not method.tally.any()
            found[seed, generation] = method.net.fc.weight.detach().clone()
    for one, other in (((0, 1), (0, 2)), ((0, 1), (1, 1))):
        assert not torch.equal(found[one], found[other])
    again = build("crest", data, generations=3)
    again.refresh(Progress(4, 10, 12), data.streams)
    assert torch.equal(again.net.fc.weight, found[0, 1])


def test_nothing_is_taken_over_at_first_nor_inside_a_generation(data: Data) -> None:
    method = build("crest", data, generations=3)
    for step in (0, 1, 3):
        method.refresh(Progress(step, 10, 12), data.streams)
        assert (method.added == -1).all()
    assert len(method.added) == len(data.streams["unlabelled"])


def test_refining_begins_anew_in_each_generation(data: Data) -> None:
    """At half of it: DARP on top of CReST."""
    method = build("crest", data, generations=2, refine="labelled", refine_start=0.5)
    seen = []
    for step in range(8):
        method.refresh(Progress(step, 10, 8), data.streams)
        seen.append(method.refines)
    assert seen == [False, False, True, True] * 2


@pytest.mark.parametrize("alpha", [1.0, 0.05])
def test_rates_of_taking_over_follow_alpha(data: Data, alpha: float) -> None:
    """(count of the class as rare as this one is frequent, over the largest) to the power alpha."""
    method = build("crest", data, generations=2, alpha=alpha)
    for net in (method.net, method.player.judged()):
        net.fc.weight.data = torch.randn(net.fc.weight.shape, generator=torch.Generator().manual_seed(1))
    stream = data.streams["unlabelled"]
    guess = method.predict(stream.fetch(torch.arange(len(stream)))).argmax(1).tolist()
    order = sorted(range(10), key=lambda k: -data.counts[k])
    rate = {k: (data.counts[order[9 - place]] / max(data.counts)) ** alpha for place, k in enumerate(order)}
    wanted = [round(rate[k] * guess.count(k)) for k in range(10)]
    method.refresh(Progress(4, 10, 8), data.streams)
    assert [int((method.added == k).sum()) for k in range(10)] == wanted
    assert 0 < sum(wanted) < len(guess)


@pytest.mark.parametrize("option", [{"one_pass": False}, {"unlabelled_weight": 0.0}], ids=str)
def test_crest_keeps_the_weak_view(data: Data, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="CReST learns from weak views of unlabelled samples"):
        build("crest", data, **option)


# CSST: from a confusion matrix to multipliers and gain

RECALL = [0.9, 0.8, 0.75, 0.7, 0.6, 0.55, 0.5, 0.4, 0.3, 0.25]
SEEN = torch.diag(torch.tensor(RECALL)) + torch.tensor([[1 - r if k == (i + 1) % 10 else 0.0 for k in range(10)]
                                                        for i, r in enumerate(RECALL)])  # fmt: skip
COVERED = [(RECALL[k] + 1 - RECALL[k - 1]) / 10 for k in range(10)]  # who is missed is taken for the next class


def steered(data: Data, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """After one look at validation of SEEN's recalls, seven samples a class."""
    monkeypatch.setattr(csst, "evaluate", lambda *_: SimpleNamespace(confusion=7 * SEEN))
    method = build("csst", data, **settings)
    method.refresh(START, data.streams)
    return method


def gain_of(method: Any) -> Tensor:
    return method.gain if isinstance(method.gain, Tensor) else method.gain.dense()


@pytest.mark.parametrize("step", [2.0, 0.5])
def test_the_step_of_the_multipliers_is_obeyed(data: Data, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    pi = [n / sum(data.counts) for n in data.counts]
    method = steered(data, monkeypatch, objective="min-recall", step=step)
    duals = [math.exp(-step * r) for r in RECALL]
    duals = [d / sum(duals) for d in duals]
    assert method.duals.tolist() == pytest.approx(duals, rel=1e-4)
    torch.testing.assert_close(
        gain_of(method), torch.diag(torch.tensor([d / p for d, p in zip(duals, pi, strict=True)]))
    )


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("floor", [None, 0.08])
def test_coverage_has_its_floor_step_and_form(
    data: Data, monkeypatch: pytest.MonkeyPatch, floor: float | None, balanced: bool
) -> None:
    """lambda <- max(0, lambda - step (coverage - floor)) from 1/K, and G = diag(1 / K pi) + lambda_j, or that times
    1 / (K pi_i); the floor is 0.95 / K unless given."""
    pi = [n / sum(data.counts) for n in data.counts]
    settings = {"step": 2.0, "floor": floor, "balanced_gain": balanced}
    method = steered(data, monkeypatch, objective="coverage", **settings)
    least = 0.095 if floor is None else floor
    duals = [max(0.0, 0.1 - 2.0 * (c - least)) for c in COVERED]
    assert method.duals.tolist() == pytest.approx(duals, abs=1e-6)
    assert len({round(d, 4) for d in duals}) == 3
    G = [[(i == j) / (10 * pi[i]) + duals[j] * (1 / (10 * pi[i]) if balanced else 1) for j in range(10)]
         for i in range(10)]  # fmt: skip
    torch.testing.assert_close(gain_of(method), torch.tensor(G), rtol=1e-4, atol=1e-5)
    halves = steered(data, monkeypatch, objective="head-tail-coverage", tail=0.5, **settings)
    seen = [sum(COVERED[:5]) / 5, sum(COVERED[5:]) / 5]
    both = [max(0.0, 0.1 - 2.0 * (c - least)) for c in seen]
    assert halves.duals.tolist() == pytest.approx(both, abs=1e-6)
    G = [[(i == j) / (10 * pi[i]) + both[j // 5] / 5 * (1 / (10 * pi[i]) if balanced else 1) for j in range(10)]
         for i in range(10)]  # fmt: skip
    torch.testing.assert_close(gain_of(halves), torch.tensor(G), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("objective", ["mean-recall", "g-mean", "h-mean", "q-mean"])
def test_a_mean_of_recalls_rewards_each_class_by_its_slope(
    data: Data, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    """G = diag(d mean / d recall_i / pi_i): what a class is worth, over how often it is seen."""
    pi = [n / sum(data.counts) for n in data.counts]
    h, q = 10 / sum(1 / r for r in RECALL), math.sqrt(sum((1 - r) ** 2 for r in RECALL) / 10)
    slope = {
        "mean-recall": [0.1] * 10,
        "g-mean": [math.prod(RECALL) ** 0.1 / (10 * r) for r in RECALL],
        "h-mean": [h**2 / (10 * r**2) for r in RECALL],
        "q-mean": [(1 - r) / (10 * q) for r in RECALL],
    }[objective]
    found = gain_of(steered(data, monkeypatch, objective=objective))
    wanted = torch.diag(torch.tensor([s / p for s, p in zip(slope, pi, strict=True)]))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_f_beta_has_its_beta(data: Data, monkeypatch: pytest.MonkeyPatch, beta: float) -> None:
    """Mean of (1 + b^2) C_kk / (b^2 row_k + column_k), differentiated by hand; each row less its least entry."""
    pi, b = [n / sum(data.counts) for n in data.counts], beta**2
    C = (SEEN / 10).tolist()
    below = [b * 0.1 + COVERED[k] for k in range(10)]
    term = [(1 + b) / 10 * C[k][k] / below[k] ** 2 for k in range(10)]
    rows = []
    for i in range(10):
        row = [(i == j) * (1 + b) / 10 / below[i] - b * term[i] - term[j] for j in range(10)]
        rows.append([(value - min(row)) * 0.1 / pi[i] for value in row])
    found = gain_of(steered(data, monkeypatch, objective="f-beta", beta=beta))
    torch.testing.assert_close(found, torch.tensor(rows), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("tail", "cut"), [(0.01, 9), (0.16, 8), (0.34, 7), (0.5, 5)])
def test_the_tail_is_a_share_of_the_classes_and_at_least_one(data: Data, tail: float, cut: int) -> None:
    method = build("csst", data, objective="min-head-tail-recall", tail=tail)
    assert method.objective.groups == [[*range(cut)], [*range(cut, 10)]]


def test_multipliers_are_named_by_class_group_or_number(data: Data) -> None:
    groups = {"many": [0, 1], "some": [2, 3, 4], "few": [5, 6, 7, 8, 9]}
    grouped = replace(data, facts=data.facts.model_copy(update={"groups": groups}))
    for objective, names in (
        ("min-recall", data.classes), ("min-head-tail-recall", ("head", "tail")),
        ("head-tail-coverage", ("head", "tail")), ("min-group-recall", ("many", "some", "few")), ("h-mean", ("0",)),
    ):  # fmt: skip
        said = build("csst", grouped, objective=objective).traces()
        assert [key for key in said if key.startswith("multiplier")] == [f"multiplier:{name}" for name in names]


def test_multipliers_of_as_many_groups_as_classes_have_the_groups_names(data: Data) -> None:
    """The largest class need not be the first: its multiplier under the first one's name would be another's."""
    few = {name: s.subset((s.labels < 2).nonzero()[:, 0]) for name, s in data.streams.items() if s.labels is not None}
    streams = {name: replace(s, classes=("few", "many")) for name, s in few.items()}
    facts = data.facts.model_copy(
        update={"classes": ("few", "many"), "counts": [4, 9], "groups": {"head": [1], "tail": [0]}}
    )
    two = replace(data, facts=facts, streams=streams | {"unlabelled": streams["labelled"].unlabelled()})
    assert build("csst", two, objective="min-recall").names == ("few", "many")
    for objective in ("min-head-tail-recall", "min-group-recall"):
        assert build("csst", two, objective=objective).names == ("head", "tail")


def test_of_parts_of_validation_only_those_seen_count(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has every class; the second look is remembered beside the first, and the fourth replaces the first."""
    answers = iter([2 * torch.eye(10), SEEN, SEEN.T.contiguous(), SEEN])
    seen: list[Any] = []

    def look(_: Any, stream: Any) -> Any:
        seen.append(stream)
        return SimpleNamespace(confusion=next(answers))

    monkeypatch.setattr(csst, "evaluate", look)
    method = build("csst", data, feedback_parts=3, feedback_every=4)
    wanted = [torch.eye(10), (torch.eye(10) + SEEN) / 2]
    for turn, C in enumerate(wanted):
        method.refresh(Progress(4 * turn, 10, 100), data.streams)
        torch.testing.assert_close(method.confusion, C / 10)
    even = SEEN.T / SEEN.T.sum(1, keepdim=True)
    for turn, C in ((2, (torch.eye(10) + SEEN + even) / 3), (3, (SEEN + SEEN + even) / 3)):
        method.refresh(Progress(4 * turn, 10, 100), data.streams)
        torch.testing.assert_close(method.confusion, C / 10)
    assert [list(part.counts) for part in seen] == [[1] * 10] * 4
    rows = [sorted(image.numpy().tobytes() for image in part.fetch(torch.arange(10))) for part in seen]
    assert rows[0] == rows[3]
    assert not set(rows[0]) & set(rows[1])


def test_every_part_of_validation_needs_every_class(data: Data) -> None:
    val = data.streams["val"]
    assert val.labels is not None
    single = val.subset(torch.cat([(val.labels == k).nonzero()[: 1 if k == 6 else 3, 0] for k in range(10)]))
    streams = {**data.streams, "val": single}
    build("csst", data, feedback_parts=1).feeds(streams)
    with pytest.raises(UserError, match="feedback_parts = 2 leaves parts of validation without a class"):
        build("csst", data, feedback_parts=2).feeds(streams)


def test_a_gain_and_its_objective_belong_together(data: Data) -> None:
    for settings in ({"objective": "gain"}, {"gain": [[1.0]]}):
        with pytest.raises(ValueError, match="objective = 'gain' and the matrix gain belong together"):
            build("csst", data, **settings)


def test_of_absent_classes_five_are_named(data: Data) -> None:
    val = data.streams["val"]
    assert val.labels is not None
    few = {**data.streams, "val": val.subset((val.labels < 4).nonzero()[:, 0])}
    names = ", ".join(data.classes[4:9])
    with pytest.warns(UserWarning, match=f"validation has no {names}: to csst's feedback recall is 0 there"):
        build("csst", data).feeds(few)


@pytest.mark.parametrize(
    ("name", "aims"),
    [
        ("csst", {"objective": "min-head-tail-recall"}),
        ("csst", {"objective": "head-tail-coverage"}),
        ("selmix", {"objective": "min-head-tail-recall"}),
        ("selmix", {"floors": "head-tail-coverage"}),
    ],
)
def test_a_tail_that_is_not_the_tables_is_told_of(name: str, aims: dict[str, Any]) -> None:
    """Tables show, and selection goes by, the worse of head and tail by data.groups: here three classes, not one."""
    for groups, told in (("thirds", True), ("9/1", False), ("3/6/1", True)):  # the last has that tail, another head
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            feeds_of(name, groups, aims)
        found = [str(one.message) for one in said if "set data.groups = '9/1'" in str(one.message)]
        assert bool(found) == told
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        feeds_of(name, "thirds", {"objective": "mean-recall"})
    assert not any("data.groups" in str(one.message) for one in said)


@pytest.mark.parametrize("groups", ["5/5", "5/5/0"])
def test_the_groups_of_the_tables_are_aimed_at_without_a_word(groups: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        feeds_of("csst", groups, {"objective": "min-group-recall"})
    assert not any("data.groups" in str(one.message) for one in said)


def feeds_of(name: str, groups: str, method: dict[str, Any]) -> None:
    """What a method says when it is asked for its feeds."""
    set_ = {"set": "shapes", "n_max": 12, "imbalance": 10, "augment": [], "val_per_class": 4, "unlabelled_max": 24}
    data = prepare_data(DataSettings(**set_, groups=groups))
    net, needs = {"net": {"name": "small-cnn", "width": 4}}, {}
    with torch.random.fork_rng(devices=[]):
        if name == "selmix":
            table = method_class("classifier").table
            first = method_class("classifier")(table(**net), data, seed=0, device=torch.device("cpu"))
            net, needs = {}, {"first": first}
        cls = method_class(name)
        cls(cls.table(**net, **method), data, seed=0, device=torch.device("cpu"), **needs).feeds(data.streams)
