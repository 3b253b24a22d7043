"""What domain-adversarial methods are built of, say, average and feed: numbers made by hand."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.methods.adapt import adversarial
from evenhand.methods.adapt.adversarial import DomainAdversarial
from evenhand.methods.adapt.labelled import Mixed, TargetFirst, two_feeds, wrapped
from evenhand.methods.adapt.mme import MME
from evenhand.methods.adapt.sdat import SDAT
from evenhand.methods.adapt.sdat_ablations import SDATAblation
from evenhand.methods.adapt.tables import LabelledTable
from evenhand.methods.adapt.vaada import VAADA
from evenhand.methods.protocol import Progress
from evenhand.randomness import dice
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", target="shapes-negative", n_max=12, imbalance=10, augment=[]))


def make(cls: Any, data: Data, **tree: Any) -> Any:
    small: dict[str, Any] = {"batch": 16, "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8}
    small |= {} if cls in (MME, VAADA) else {"discriminator": {"hidden": 16}}
    small |= {"hidden": 16} if cls is VAADA else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(cls.table.model_validate({**small, **tree}), data, seed=0, device=CPU)


def kinds(net: Any) -> list[str]:
    return [type(module).__name__ for module in net]


def length(tensors: Any) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


# what is built


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["Linear", "BatchNorm1d", "ReLU"]),
        ({"bottleneck_batchnorm": False}, ["Linear", "ReLU"]),
        ({"bottleneck_linear": True}, ["Linear"]),
        ({"head_hidden": 6}, ["Linear", "BatchNorm1d", "ReLU", "Dropout"]),
    ],
)
def test_the_bottleneck_is_as_the_table_says(data: Data, settings: dict[str, Any], expected: list[str]) -> None:
    method = make(DomainAdversarial, data, bottleneck=5, **settings)
    assert kinds(method.net.bottleneck) == expected
    assert method.net.bottleneck[0].out_features == 5
    assert [module.p for module in method.net.bottleneck if isinstance(module, nn.Dropout)] == [0.5] * (
        "head_hidden" in settings
    )


@pytest.mark.parametrize(
    ("judge", "between"),
    [
        ({}, ["BatchNorm1d", "ReLU"]),
        ({"dropout": False}, ["BatchNorm1d", "ReLU"]),
        ({"batchnorm": False}, ["ReLU", "Dropout"]),
        ({"batchnorm": False, "dropout": False}, ["ReLU"]),
    ],
)
def test_the_discriminator_is_as_the_table_says(data: Data, judge: dict[str, Any], between: list[str]) -> None:
    net = make(DomainAdversarial, data, discriminator={"hidden": 7, **judge}).adversary.net
    assert kinds(net) == ["Linear", *between, "Linear", *between, "Linear"]
    assert [(m.in_features, m.out_features) for m in net if isinstance(m, nn.Linear)] == [(80, 7), (7, 7), (7, 1)]


@pytest.mark.parametrize(
    ("settings", "inputs"), [({"adversary": "dann"}, 8), ({}, 8 * 10), ({"map_size": 6}, 6), ({"adversary": "mdd"}, 8)]
)
def test_what_the_adversary_looks_at(data: Data, settings: dict[str, Any], inputs: int) -> None:
    method = make(DomainAdversarial, data, head_hidden=0, **settings)
    assert method.adversary.net[0].in_features == inputs
    assert method.adversary.net[-1].out_features == (10 if "mdd" in settings.values() else 1)
    assert method.tells is (settings.get("adversary") != "mdd")
    assert (method.map is not None) is ("map_size" in settings)


@pytest.mark.parametrize("cls", [DomainAdversarial, VAADA, MME])
def test_a_batch_that_processes_cannot_share_is_refused(cls: Any, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "world", lambda: 3)
    with pytest.raises(ValueError, match="batch = 16 cannot be shared by 3 processes alike; round it"):
        make(cls, data)


def test_a_single_row_is_enough_where_the_target_adds_another(data: Data) -> None:
    assert make(DomainAdversarial, data, batch=1, adversary="none", mcc=1.0).settings.batch == 1


# what is said


def test_the_reversal_grows_as_its_table_says(data: Data) -> None:
    method = make(DomainAdversarial, data, reversal={"alpha": 2.0, "steps": 10, "high": 0.5})
    method.schedule(Progress(7, 2, 20))
    assert method.reversal == pytest.approx(0.5 * 0.6043678)  # tanh(2 * 7 / 20)


def test_the_discriminator_is_right_where_it_leans_to_the_side_a_row_comes_from(data: Data) -> None:
    """2 of 2 source rows, of which one undecided, and 1 of 4 target rows."""
    method = make(DomainAdversarial, data, adversary="dann")
    method.adversary = SimpleNamespace(net=lambda x: x[:, 0])
    features = torch.tensor([[0.0], [2.0], [-3.0], [1.0], [0.0], [5.0]])
    loss, said = method.adversarial_loss(features, torch.zeros(6, 10), 2)
    assert float(said["domain_accuracy"]) == pytest.approx((1 + 0.25) / 2)
    own = (math.log(2) + math.log(1 + math.exp(-2))) / 2
    others = (math.log(1 + math.exp(-3)) + math.log(1 + math.exp(1)) + math.log(2) + math.log(1 + math.exp(5))) / 4
    assert float(loss) == pytest.approx((own + others) / 2, rel=1e-5)


def test_the_entropy_told_is_that_of_target_rows(data: Data) -> None:
    method = make(DomainAdversarial, data)
    logits = torch.zeros(3, 10)
    logits[0, 0] = 3.0  # a source row
    logits[1, 4] = 100.0  # a sure target row; the other is undecided between ten classes
    _, said = method.task_loss(torch.zeros(1), logits, torch.tensor([0]))
    assert float(said["target_entropy"]) == pytest.approx(math.log(10) / 2)


@pytest.mark.parametrize("cls", [SDAT, SDATAblation])
def test_norms_told_are_those_of_the_first_gradient_and_of_the_weights_before_the_step(cls: Any, data: Data) -> None:
    method = make(cls, data, rho=0.3)
    (batch,) = batches(method, data, 1)
    x, y = torch.cat([batch["source"].x, batch["target"].x]), batch["source"].y
    twin = copy.deepcopy(method.net).train()
    loss = -twin(x)[:16].log_softmax(1)[torch.arange(16), y].mean()
    slopes = torch.autograd.grad(loss, list(twin.parameters()))
    method.schedule(Progress(0, 2, 20))
    said = method.update(batch)
    assert float(said["gradient_norm"]) == pytest.approx(length(slopes), rel=1e-4)
    assert float(said["weight_norm"]) == pytest.approx(length(p.detach() for p in twin.parameters()), rel=1e-5)


@pytest.mark.parametrize("extra", [{"adversary": "dann"}, {"adversary": "cdan"}, {"adversary": "cdan", "map_size": 6}])
def test_tell_is_the_discriminator_in_evaluation_of_what_training_shows_it(data: Data, extra: dict[str, Any]) -> None:
    method = make(DomainAdversarial, data, **extra)
    for step, batch in enumerate(batches(method, data, 2)):
        method.schedule(Progress(step, 2, 20))
        method.update(batch)
    raw = data.streams["target"].fetch(torch.arange(0, 600, 100))
    told = method.tell(raw)
    f = method.net.eval().features(data.see(raw)).detach()
    g = method.net.head(f).softmax(1).detach()
    shown = f
    if extra["adversary"] == "cdan":
        shown = torch.stack([torch.outer(b, a).flatten() for a, b in zip(f, g, strict=True)])
    if "map_size" in extra:
        shown = (f @ method.map.features_matrix) * (g @ method.map.probs_matrix) / 6**0.5
    torch.testing.assert_close(told, method.adversary.net.eval()(shown).detach(), rtol=1e-4, atol=1e-5)


# SWAD


def test_snapshots_are_taken_every_so_often_from_a_share_of_the_run_on(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third step of twenty, from the sixth on: after the steps 8, 11, 14 and 17."""
    monkeypatch.setattr(adversarial, "REFRESH", 1)
    method = make(DomainAdversarial, data, adversary="none", average_every=3, average_start=0.3)
    (batch,) = batches(method, data, 1)
    taken = []
    for step in range(20):
        method.schedule(Progress(step, 2, 20))
        assert method.network() is (method.average.module if taken else method.net)
        before = int(method.average.n_averaged)
        method.update(batch)
        taken += [step] * (int(method.average.n_averaged) - before)
    assert taken == [8, 11, 14, 17]
    assert not method.network().training


def test_statistics_of_the_average_are_of_new_batches_of_both_domains(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Tensor]] = []
    monkeypatch.setattr(adversarial, "update_bn", lambda rows, _: seen.append(list(rows)))
    method = make(DomainAdversarial, data, average_every=1, average_start=0.0)
    drawn = batches(method, data, 2)
    for step, batch in enumerate(drawn):
        method.schedule(Progress(step, 2, 20))
        method.update(batch)
    assert [len(rows) for rows in seen] == [16, 16]
    assert {len(x) for rows in seen for x in rows} == {32}
    assert not torch.equal(seen[0][0], seen[1][0])  # others at every snapshot
    for name, half in (("source", seen[0][0][:16]), ("target", seen[0][0][16:])):
        stream = data.streams[name]
        domain = data.eval_view(stream.fetch(torch.arange(len(stream))))
        assert torch.cdist(half.flatten(1), domain.flatten(1)).amin(1).max() < 1.0  # other images are 70 away


# labelled target among the source


def row(count: int, first: int = 0) -> Stream:
    """Samples that say where they are from."""
    return Stream(Memory(torch.arange(first, first + count)[:, None]), torch.zeros(count).long(), ("a",), "some")


def fed(streams: Streams, *, short: bool = False, batch: int = 8, seed: int = 3, **settings: Any) -> dict[str, Any]:
    view: Any = SimpleNamespace(name="the view")
    feeds = two_feeds(LabelledTable(**settings), streams, batch, view, seed, short=short)
    assert [feed.batch for feed in feeds.values()] == [batch, batch]
    assert [feed.views for feed in feeds.values()] == [(view,), (view,)]
    assert list(feeds) == ["source", "target"]
    assert feeds["target"].stream == "target"
    return feeds


def test_without_labels_of_the_target_the_source_is_fed_alone() -> None:
    streams = {"source": row(20), "target": row(30)}
    known = {**streams, "target_labelled": row(5, 100)}
    for found in (fed(streams), fed(streams, short=True, target_share=0.5), fed(known, target_labels=False)):
        assert (found["source"].stream, found["source"].picks) == ("source", None)


def test_without_labels_of_the_target_an_epoch_may_end_with_the_shorter_domain() -> None:
    """Spec 08, 2.6: min(ceil(20 / 8), ceil(pool / 8)) steps, all of them the source's."""
    for pool, steps in ((30, 3), (9, 2)):
        feed = fed({"source": row(20), "target": row(pool)}, short=True)["source"]
        assert len(feed.stream) == 20
        assert feed.picks.steps_per_epoch == steps
        assert set(torch.cat([feed.picks.batch(step) for step in range(3)]).tolist()) <= set(range(20))
    ignored = {"source": row(20), "target": row(9), "target_labelled": row(5, 100)}
    assert fed(ignored, short=True, target_labels=False)["source"].picks.steps_per_epoch == 2


def test_labels_of_the_target_come_first_or_as_a_share() -> None:
    streams = {"source": row(20), "target": row(17), "target_labelled": row(5, 100)}
    turns = fed(streams)["source"]
    assert turns.stream.fetch(torch.tensor([0, 4, 5, 24])).flatten().tolist() == [100, 104, 0, 19]
    assert turns.picks.steps_per_epoch == 3  # of 1 + 3; the unlabelled ones have ended
    assert [bool((turns.picks.batch(step) < 5).all()) for step in range(3)] == [True, False, False]
    share = fed(streams, target_share=0.5)["source"]
    assert share.stream.fetch(torch.tensor([0, 24])).flatten().tolist() == [100, 19]
    assert share.picks.steps_per_epoch == 5  # four of the twenty in each batch
    assert {int((share.picks.batch(step) < 5).sum()) for step in range(6)} == {4}


def test_where_no_target_is_read_an_epoch_ends_with_the_labelled_rows() -> None:
    """ceil((1 + 17) / 8), less than ceil(1 / 8) + ceil(17 / 8)."""
    streams = {"source": row(17), "target_labelled": row(1, 100)}
    assert fed(streams)["source"].picks.steps_per_epoch == 3


def test_labelled_rows_are_drawn_by_the_seed() -> None:
    streams = {"source": row(20), "target": row(90), "target_labelled": row(5, 100)}
    for more in ({}, {"target_share": 0.5}):
        drawn = [fed(streams, seed=seed, **more)["source"].picks.batch(2).tolist() for seed in (3, 3, 4)]
        assert drawn[0] == drawn[1] != drawn[2]


def test_the_centre_is_asked_for_in_every_feed() -> None:
    plain = {"source": row(20), "target": row(17)}
    known = {**plain, "target_labelled": row(5, 100)}
    for streams in (plain, known):
        for centre in (True, False):
            assert [feed.whole for feed in fed(streams, centre=centre).values()] == [centre, centre]


def test_a_pass_ends_at_the_front_of_its_own_permutation() -> None:
    whole = wrapped(5, 0, 5, seed=9).tolist()
    assert sorted(whole) == [0, 1, 2, 3, 4]
    assert wrapped(5, 1, 4, seed=9).tolist() == [whole[4], whole[0], whole[1], whole[2]]


def test_every_pass_has_a_permutation_of_its_own() -> None:
    picks = TargetFirst(8, 12, 1000, 4, seed=0, rank=0, world=1)  # 2 + 3 steps
    first, second = ([picks.batch(step) for step in range(start, start + 5)] for start in (0, 5))
    for epoch in (first, second):
        assert sorted(torch.cat(epoch[:2]).tolist()) == list(range(8))
        assert sorted(torch.cat(epoch[2:]).tolist()) == list(range(8, 20))
    assert not torch.equal(torch.cat(first[:2]), torch.cat(second[:2]))
    assert not torch.equal(torch.cat(first[2:]), torch.cat(second[2:]))
    mixed = Mixed(6, 9, 5, 0.4, seed=0, rank=0, world=1)  # 2 of 6 and 3 of 9 a step
    assert mixed.steps_per_epoch == 3
    passes = [torch.stack([mixed.batch(step) for step in range(start, start + 3)]) for start in (0, 3)]
    for one in passes:
        assert sorted(one[:, :2].flatten().tolist()) == list(range(6))
        assert sorted(one[:, 2:].flatten().tolist()) == list(range(6, 15))
    assert not torch.equal(passes[0][:, :2], passes[1][:, :2])
    assert not torch.equal(passes[0][:, 2:], passes[1][:, 2:])


def test_a_share_of_a_half_row_is_rounded_and_passes_end_apart() -> None:
    """Of 3 known rows 2 a step: a pass of theirs has two steps, while one of the seven others has three."""
    picks = Mixed(3, 7, 5, 0.3, seed=0, rank=0, world=1)
    assert picks.part == 2
    assert picks.steps_per_epoch == 3
    known = [picks.batch(step)[:2].tolist() for step in range(4)]
    assert set(known[0] + known[1]) == set(known[2] + known[3]) == {0, 1, 2}


# VAADA and MME


class Told(nn.Module):
    """A discriminator whose logits are the features."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_vaadas_discriminator_is_right_where_labelled_rows_have_the_larger_first_logit(data: Data) -> None:
    method = make(VAADA, data)
    steps: list[str] = []
    method.critic = SimpleNamespace(
        net=Told().eval(), autocast=torch.no_grad, backward=lambda *_, **__: steps.append("backward"),
        step=lambda: steps.append("step"),
    )  # fmt: skip
    labelled, unlabelled = (
        torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]]),
        torch.tensor([[0.0, 1.0], [5.0, 0.0], [2.0, 0.0], [3.0, 1.0]]),
    )
    said = method._tell_apart(labelled, unlabelled)
    assert steps == ["backward", "step"]
    assert method.critic.net.training
    assert float(said["domain_accuracy"]) == pytest.approx((2 / 3 + 1 / 4) / 2)
    wrong = [math.log(1 + math.exp(margin)) for margin in (-2, 1, -2, -1, 5, 2, 2)]  # of the other side's logit
    assert float(said["domain"]) == pytest.approx(sum(wrong[:3]) / 3 + sum(wrong[3:]) / 4)


@pytest.mark.parametrize(("bottleneck", "sizes"), [(8, [0.3, 1.0, 1.0]), (0, [0.3, 1.0])])
def test_vaadas_parts_are_features_and_classifier(bottleneck: int, sizes: list[float], data: Data) -> None:
    method = make(VAADA, data, bottleneck=bottleneck, backbone_factor=0.3)
    groups = method.player.optimizer.param_groups
    assert [group["lr_factor"] for group in groups] == sizes
    assert [group["part"] for group in groups] == [0] * (len(sizes) - 1) + [1]
    assert set(groups[-1]["params"]) == set(method.net.head.parameters())
    assert sum(len(group["params"]) for group in groups) == len(list(method.net.parameters()))
    if bottleneck:
        assert set(groups[0]["params"]) == set(method.net.backbone.parameters())


def test_vaadas_epochs_alone_end_with_the_shorter_domain_where_no_target_is_labelled(data: Data) -> None:
    """A batch is 16: the source's samples take ceil(n / 16) steps, the target has more."""
    picks = make(VAADA, data).feeds(data.streams)["source"].picks
    assert picks.steps_per_epoch == math.ceil(len(data.streams["source"]) / 16)
    assert len(data.streams["target"]) > len(data.streams["source"])
    for cls in (MME, DomainAdversarial, SDAT):
        assert make(cls, data).feeds(data.streams)["source"].picks is None


def test_only_vaadas_classifier_is_averaged(data: Data) -> None:
    method = make(VAADA, data, optim={"ema": 0.7})
    assert method.player.average is not None
    assert method.critic.average is None


def test_vaada_frees_the_discriminator_after_fooling_it(data: Data) -> None:
    method = make(VAADA, data)
    (batch,) = batches(method, data, 1)
    method.schedule(Progress(0, 2, 20))
    method.update(batch)
    assert all(p.requires_grad for p in method.critic.net.parameters())


def test_processes_start_vaadas_perturbations_apart(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second takes what the first one leaves of the same dice."""
    drawn: list[Tensor] = []
    monkeypatch.setattr(
        "evenhand.methods.adapt.vaada.vat_loss",
        lambda _, x, **given: drawn.append(torch.randn(x.shape, **start(given))),
    )
    method = make(VAADA, data)
    for rank, purpose, step in ((0, "labelled", 3), (1, "labelled", 3), (0, "target", 3), (0, "labelled", 4)):
        monkeypatch.setattr(parallel, "rank", lambda rank=rank: rank)
        method.schedule(Progress(step, 2, 20))
        method._steadiness(torch.zeros(2, 3), purpose)
    joint = torch.randn(2, 2, 3, generator=dice(0, "vat", "labelled", 3))
    assert torch.equal(torch.stack(drawn[:2]), joint)
    assert len(torch.stack(drawn).flatten(1).unique(dim=0)) == 4


def start(given: dict[str, Any]) -> dict[str, Any]:
    assert (given["epsilon"], given["xi"]) == (5.0, None)
    return {"generator": given["generator"]}


def test_mmes_bottleneck_is_linear_and_its_classes_are_cosines(data: Data) -> None:
    method = make(MME, data, temperature=0.25)
    assert kinds(method.net.bottleneck) == ["Linear"]
    assert method.logit_scale == 4.0
    assert type(method.net.head).__name__ == type(make(MME, data, bottleneck=0).net.head).__name__ == "CosineHead"


@pytest.mark.parametrize("bottleneck", [8, 0])
def test_mmes_backbone_is_slowed_with_and_without_a_bottleneck(bottleneck: int, data: Data) -> None:
    method = make(MME, data, bottleneck=bottleneck, backbone_factor=0.3)
    slow, fast = method.player.optimizer.param_groups
    new = [*method.net.head.parameters(), *(method.net.bottleneck.parameters() if bottleneck else ())]
    assert (slow["lr_factor"], fast["lr_factor"]) == (0.3, 1.0)
    assert set(fast["params"]) == set(new)
    assert set(slow["params"]) == set(method.net.parameters()) - set(new)


# SDAT's radius, and its ablations


def test_probes_of_a_radius_see_the_source_alone_and_keep_all_else(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("evenhand.methods.adapt.sdat.search_rho", lambda *given: asked.append(given) or 0.4)
    method = make(
        SDAT, data, rho="auto", auto={"steps": 5}, mcc=1.0, entropy=True, map_size=6, average_every=1, smoothing=0.1,
        batch=8, bottleneck=4, optim={"lr": 0.03},
    )  # fmt: skip
    method.refresh(Progress(0, 2, 20), data.streams)
    method.refresh(Progress(1, 2, 20), data.streams)
    assert method.rho == 0.4
    ((whose, auto, probe, accuracy, streams, clock, unit, chance),) = asked  # once
    assert chance == max(data.streams["val"].counts) / len(data.streams["val"])
    assert (whose, auto.steps, streams) == (method, 5, data.streams)
    assert (clock(3).step, clock(3).steps_per_epoch, clock(3).total_steps) == (3, 5, 5)
    assert unit == pytest.approx(length(p.detach() for p in method.net.parameters()), rel=1e-5)
    with torch.random.fork_rng(devices=[]):
        one = probe(0.25, 7)
    s = one.settings
    assert (one.seed, one.rho, one.adversary, one.map, one.average) == (7, 0.25, None, None, None)
    assert (s.adversary, s.mcc, s.map_size, s.entropy, s.average_every) == ("none", 0.0, 0, False, 0)
    assert (s.smoothing, s.batch, s.bottleneck, s.optim.lr) == (0.1, 8, 4, 0.03)
    raw = data.streams["val"].fetch(torch.arange(len(data.streams["val"])))
    right = [(one.predict(raw).argmax(1) == data.streams["val"].labels)[data.streams["val"].labels == k] for k in
             range(10)]  # fmt: skip
    shares = [float(rows.float().mean()) * len(rows) / len(raw) for rows in right]
    assert accuracy(one) == pytest.approx(sum(shares), abs=1e-6)


@pytest.mark.parametrize(
    ("smooth", "net", "critic"), [("task", 2, 1), ("adversary", 1, 2), ("both", 2, 2), ("all", 2, 2)]
)
def test_statistics_of_every_climber_move_twice_when_asked(smooth: str, net: int, critic: int, data: Data) -> None:
    """Else once; a discriminator that does not climb runs in the second pass alone, such a net in the first."""
    for freeze in (True, False):
        method = make(SDATAblation, data, smooth=smooth, optim={"freeze_bn": freeze})
        (batch,) = batches(method, data, 1)
        method.schedule(Progress(0, 2, 20))
        method.update(batch)
        found = [
            {int(b) for name, b in part.named_buffers() if name.endswith("tracked")}
            for part in (method.net, method.adversary.net)
        ]
        assert found == ([{1}, {1}] if freeze else [{net}, {critic}])


def test_radii_of_the_ablations(data: Data) -> None:
    def radii(**settings: Any) -> list[float]:
        method = make(SDATAblation, data, rho=0.3, rho_adversary=0.07, **settings)
        method.schedule(Progress(0, 2, 20))
        return [float(sam.rho) for sam, _ in method.climbers]

    assert radii() == radii(adversary="none") == radii(smooth="all") == [0.3]
    assert radii(smooth="adversary") == [0.07]
    assert radii(smooth="both") == [0.3, 0.07]


def test_without_an_adversary_the_equation_to_the_letter_is_sdat(data: Data) -> None:
    clean, plain = make(SDATAblation, data, adversary="none", adv_at="clean"), make(SDAT, data, adversary="none")
    (batch,) = batches(plain, data, 1)
    for method in (clean, plain):
        method.schedule(Progress(0, 2, 20))
        method.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(clean.net.parameters(), plain.net.parameters(), strict=True))


# defaults


def test_domain_adversarial_methods_have_the_papers_values_where_nothing_is_said() -> None:
    """Spec 09, 2.4 to 2.6, 3 and 6."""
    for cls in (DomainAdversarial, SDAT, SDATAblation):
        s = cls.table()
        assert (s.batch, s.net.name, s.bottleneck, s.head_hidden, s.backbone_rate) == (32, "resnet50", 256, 0, 1.0)
        assert (s.bottleneck_batchnorm, s.bottleneck_linear, s.target_labels, s.target_share) == (
            True,
            False,
            True,
            None,
        )
        assert (s.adversary, s.trade_off, s.entropy, s.map_size, s.margin) == ("cdan", 1.0, False, 0, 4.0)
        assert (s.discriminator.hidden, s.discriminator.batchnorm, s.discriminator.dropout) == (1024, True, True)
        assert (s.reversal.alpha, s.reversal.steps, s.reversal.high) == (1.0, 1000, 1.0)
        assert (s.mcc, s.temperature, s.smoothing, s.centre) == (0.0, 2.5, 0.0, False)
        assert (s.vat.weight, s.vat.epsilon, s.vat.xi) == (0.0, 15.0, None)
        assert (s.average_every, s.average_start) == (0, 0.5)
        assert (s.optim.lr, s.optim.momentum, s.optim.nesterov, s.optim.weight_decay) == (0.01, 0.9, True, 1e-3)
        assert (s.optim.name, s.optim.schedule, s.optim.freeze_bn, s.optim_d) == ("sgd", "inverse", True, None)
    assert (SDAT.table().rho, SDAT.table().rho_relative) == (0.02, False)
    s = SDATAblation.table()
    assert (s.smooth, s.rho, s.rho_adversary, s.adv_at) == ("task", 0.02, 0.02, "perturbed")


def test_vaada_has_the_papers_values_where_nothing_is_said() -> None:
    """Spec 08, 2.6 and 6."""
    s = VAADA.table()
    assert (s.batch, s.net.name, s.bottleneck, s.hidden, s.backbone_factor) == (16, "resnet50", 256, 1024, 1.0)
    assert (s.domain_weight, s.labelled_vat, s.target_weight) == (0.01, 1.0, 0.01)
    assert (s.vat.epsilon, s.vat.xi, s.centre, s.target_labels, s.target_share) == (5.0, None, True, True, None)
    assert (s.optim.name, s.optim.lr, s.optim.momentum, s.optim.nesterov) == ("sgd", 0.01, 0.9, False)
    assert (s.optim.weight_decay, s.optim.clip, s.optim.clip_apart, s.optim.ema) == (5e-4, 1.0, True, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [("rho_milestones", [0.5]), ("rho_values", [0.1]), ("rho_last", 0.1), ("rho_relative", True), ("accumulate", 2)],
)
def test_an_option_of_other_optimisers_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{key} has no effect here"):
        SDAT.table(optim={key: value})


@pytest.mark.parametrize(("adversary", "extra"), [("dann", "entropy"), ("mdd", "entropy"), ("none", "map_size")])
def test_what_belongs_to_cdan_is_refused_elsewhere(adversary: str, extra: str) -> None:
    with pytest.raises(ValueError, match=f"belong to adversary = 'cdan', got '{adversary}'"):
        SDAT.table(adversary=adversary, **{extra: 1})


def test_a_table_of_the_discriminator_alone_stands_for_itself() -> None:
    """Without [method.optim] there is nothing that it could take after but the defaults."""
    table = SDAT.table.model_validate({"optim_d": {"lr": 0.3}})
    assert (table.optim.lr, table.optim_d.lr, table.optim_d.weight_decay) == (0.01, 0.3, 1e-3)
