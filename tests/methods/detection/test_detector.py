"""One step of each detector against its equations, on scenes of two images of different sizes."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import Batch
from evenhand.data.scenes import prepare_scenes
from evenhand.data.settings import DataSettings
from evenhand.data.target import Found
from evenhand.errors import UserError
from evenhand.methods import method_class
from evenhand.methods.adapt.da_faster import Domains, ImageHead, InstanceHead
from evenhand.methods.adapt.detector import Sampler
from evenhand.methods.protocol import Progress
from evenhand.randomness import dice
from helpers import seeded

pytestmark = pytest.mark.usefixtures("tv")
NET = {"short_side": 64, "long_side": 64, "anchors": [16, 24], "proposals": 20, "regions": 8, "head": 8}
LARGER = {
    "resnet18-fpn": {**NET, "name": "resnet18-fpn", "anchors": [8, 16, 24, 32, 48], "pyramid": 8},
    "resnet50-c4": {**NET, "name": "resnet50-c4", "head": 0, "proposals": 10, "regions": 4},
}
EACH_NET = pytest.mark.parametrize("net", [NET, *LARGER.values()], ids=["mobilenet_v2", *LARGER])
OPTIM = {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}


@pytest.fixture(scope="module")
def data() -> Any:
    return prepare_scenes(DataSettings(set="shape-scenes", source=["plain"], target="negative"))


def built(name: str, data: Any, **given: Any) -> Any:
    cls = method_class(name)
    settings = cls.table(batch=2, **{"net": NET, "optim": OPTIM, **given})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = cls(settings, data, seed=3, device=torch.device("cpu"))
    method.schedule(Progress(5, 10, 10))
    return method


@pytest.fixture(autouse=True)
def small_resnets(tv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNets of one block in each stage, which adds little: norms are frozen, so random ones would let maps grow."""
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    def small(block: Any, width: int, last: str, **given: Any) -> Any:
        del given["weights"]
        net = ResNet(block, [1, 1, 1, 1], width_per_group=width, **given)
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            getattr(stage[0], last).weight.fill_(0.2)
        return net

    monkeypatch.setattr(tv.models, "resnet18", partial(small, BasicBlock, 64, "bn2"))
    monkeypatch.setattr(tv.models, "resnet50", partial(small, Bottleneck, 8, "bn3"))


def batches(data: Any, *names: str) -> dict[str, Batch]:
    found = {}
    for name in names:
        stream, rows = data.streams[name], torch.tensor([0, 1])
        x = data.eval_view(stream.fetch(rows))
        x[1] = x[1][:, :48]  # another size; boxes below it are cut off
        y = None
        if stream.target is not None:
            y = [_above(one) for one in stream.target.of(rows)]
        found[name] = Batch((x,), (y,), rows)
    return found


def _above(found: Found) -> Found:
    return found.pick(found.boxes[:, 3] <= 48)


def gradients(module: Any) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def losses(method: Any, batch: dict[str, Batch]) -> dict[str, Tensor]:
    """torchvision's own training pass, with the step's own draws."""
    rows = batch["source"]
    wanted = [{"boxes": found.boxes, "labels": found.labels + 1} for found in rows.y]
    method.net.train()
    return method.net([x.clone() for x in rows.x], wanted)


def moved(before: list[Tensor], module: Any) -> list[Tensor]:
    return [b - p.detach() for b, p in zip(before, module.parameters(), strict=True)]


def weights(module: Any) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


@EACH_NET
def test_a_step_descends_the_four_losses_that_torchvision_computes(data: Any, net: dict[str, Any]) -> None:
    method, batch = built("detector", data, net=net), batches(data, "source")
    found = losses(method, batch)
    total = sum(found.values())
    expected = torch.autograd.grad(total, [p for p in method.net.parameters() if p.requires_grad], allow_unused=True)
    before = weights(method.net)
    said = method.update(batch)
    assert float(said["loss"]) == pytest.approx(float(total), rel=1e-5)
    assert float(said["rpn_class"]) == pytest.approx(float(found["loss_objectness"]), rel=1e-5)
    assert float(said["rpn_box"]) == pytest.approx(float(found["loss_rpn_box_reg"]), rel=1e-4, abs=1e-7)
    assert float(said["roi_class"]) == pytest.approx(float(found["loss_classifier"]), rel=1e-5)
    assert float(said["roi_box"]) == pytest.approx(float(found["loss_box_reg"]), rel=1e-4, abs=1e-7)
    steps = [
        step for step, p in zip(moved(before, method.net), method.net.parameters(), strict=True) if p.requires_grad
    ]
    for step, gradient in zip(steps, expected, strict=True):
        wanted = torch.zeros_like(step) if gradient is None else 0.01 * gradient
        torch.testing.assert_close(step, wanted, rtol=1e-3, atol=1e-6)


def domain_terms(method: Any, batch: dict[str, Batch], regions: Any = None) -> dict[str, Tensor]:
    """Spec 2.8 literally, as means, without any reversal."""
    seen = method.forward(*method.labelled(batch), regions)
    heads = method.adversary.net.train()
    framed, _ = method.net.transform(batch["target"].x)
    guess = method.guess(framed)
    image, instance, consistency = [], [], []
    for maps, proposals, sizes, name, domain in (
        (seen.maps, seen.regions.proposals, seen.sizes, "source", 1.0),
        (guess.maps, method.propose(framed, guess), framed.image_sizes, "target", 0.0),
    ):
        chances = [dice(method.seed, "domains", name, method.at.step, i) for i in range(2)]
        boxes = [
            b[torch.randperm(len(b), generator=c)[: method.settings.net.regions]]
            for b, c in zip(proposals, chances, strict=True)
        ]
        vectors, counts = method.vectors(maps, boxes, sizes), [len(b) for b in boxes]
        p = torch.cat([heads.image(level).sigmoid().flatten(1) for level in maps.values()], 1)
        image.append(-(domain * p.log() + (1 - domain) * (1 - p).log()).mean())
        with method._dropping():
            q = heads.instance(vectors).sigmoid()
        instance.append(-(domain * q.log() + (1 - domain) * (1 - q).log()).mean())
        of = [i for i, n in enumerate(counts) for _ in range(n)]
        consistency.append(torch.stack([(p[i].mean() - q[j]).abs() for j, i in enumerate(of)]).mean())
    return {
        "task": seen.classification + seen.regression,
        "image": sum(image) / len(image), "instance": sum(instance) / 2, "consistency": sum(consistency) / 2,
    }  # fmt: skip


def sharpened(method: Any) -> None:
    """Domain classifiers that say something, so that their terms weigh."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(7)
        for p in method.adversary.net.parameters():
            p.normal_(std=0.3)


@pytest.mark.parametrize("training", [False, True])
def test_the_domain_classifiers_are_two_small_networks_through_which_gradients_pass(training: bool) -> None:
    """A 1 x 1 convolution is a product over channels; the regions' head drops half of each hidden layer."""
    heads = Domains(5, 4, 6).train(training)
    with torch.no_grad():
        for p in heads.parameters():
            p.normal_(generator=seeded(1))
    cells, regions = (torch.randn(*size, generator=seeded(2), requires_grad=True) for size in ((2, 5, 3, 3), (7, 4)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ours = [heads.image(cells), heads.instance(regions)]
        torch.manual_seed(0)
        masks = [F.dropout(torch.ones(7, 6), 0.5, training) for _ in range(2)]
    W, b, V, c = (p.flatten(1) if p.ndim > 1 else p for p in heads.image.parameters())
    hidden = torch.relu(torch.einsum("hc,ncxy->nhxy", W, cells) + b[:, None, None])
    image = torch.einsum("oh,nhxy->noxy", V, hidden) + c[:, None, None]
    one, a, two, d, three, e = heads.instance.parameters()
    instance = torch.relu(torch.relu(regions @ one.T + a) * masks[0] @ two.T + d) * masks[1] @ three.T + e
    inputs = [cells, regions, *heads.parameters()]
    for mine, theirs in zip(ours, (image, instance[:, 0]), strict=True):
        torch.testing.assert_close(mine, theirs)
        slopes = [torch.autograd.grad(x.square().sum(), inputs, allow_unused=True) for x in (mine, theirs)]
        for found, wanted in zip(*slopes, strict=True):
            assert (found is None) == (wanted is None)
            if wanted is not None:
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("off", ["", "image", "instance", "consistency"])
def test_da_faster_reverses_two_terms_and_not_the_third(data: Any, off: str) -> None:
    method = built("da-faster", data, hidden=6, reversal=0.7, **({off: False} if off else {}))
    sharpened(method)
    batch = batches(data, "source", "target")
    terms = domain_terms(method, batch)
    kept = [key for key in ("image", "instance", "consistency") if key != off]
    net = [p for p in method.net.parameters() if p.requires_grad]
    heads = list(method.adversary.net.parameters())

    def grads(loss: Tensor, of: list[Any]) -> list[Tensor]:
        found = torch.autograd.grad(loss, of, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(of, found, strict=True)]

    sign = {"image": -0.7, "instance": -0.7, "consistency": 0.7}
    wanted = grads(terms["task"], net)
    for key in kept:
        wanted = [w + sign[key] * g for w, g in zip(wanted, grads(terms[key], net), strict=True)]
    wanted_heads = [sum(parts) for parts in zip(*(grads(terms[key], heads) for key in kept), strict=True)]
    before, before_heads = weights(method.net), weights(method.adversary.net)
    said = method.update(batch)
    assert off not in said
    for key in kept:
        assert float(said[key]) == pytest.approx(float(terms[key]), rel=1e-4)
    steps = [s for s, p in zip(moved(before, method.net), method.net.parameters(), strict=True) if p.requires_grad]
    for step, gradient in zip(steps, wanted, strict=True):
        torch.testing.assert_close(step, 0.01 * gradient, rtol=2e-3, atol=2e-6)
    for step, gradient in zip(moved(before_heads, method.adversary.net), wanted_heads, strict=True):
        torch.testing.assert_close(step, 0.01 * gradient, rtol=2e-3, atol=2e-6)


@pytest.mark.parametrize(
    ("net", "smooth", "rho", "relative"),
    [
        (NET, "classification", 0.3, False),
        (NET, "all", 0.3, False),
        (NET, "all", 0.01, True),
        *((net, "classification", 0.3, False) for net in LARGER.values()),
    ],
    ids=["classification", "all", "relative", *LARGER],
)
def test_sdat_climbs_the_chosen_task_losses_alone_with_the_same_regions(
    data: Any, net: dict[str, Any], smooth: str, rho: float, relative: bool
) -> None:
    method = built("da-faster", data, net=net, hidden=6, smooth=smooth, rho=rho, rho_relative=relative)
    sharpened(method)
    batch = batches(data, "source", "target")
    twin = copy.deepcopy(method)
    own = [p for p in twin.net.parameters() if p.requires_grad]
    first = twin.forward(*twin.labelled(batch))
    task = first.classification + (first.regression if smooth == "all" else 0)
    up = [torch.zeros_like(p) if g is None else g for p, g in
          zip(own, torch.autograd.grad(task, own, allow_unused=True), strict=True)]  # fmt: skip
    length = torch.stack([g.square().sum() for g in up]).sum().sqrt()
    radius = rho * float(torch.stack([p.detach().square().sum() for p in own]).sum().sqrt()) if relative else rho
    with torch.no_grad():
        for p, g in zip(own, up, strict=True):
            p.add_(radius * g / length)
    terms = domain_terms(twin, batch, first.regions)
    there = {key: torch.autograd.grad(value, own, retain_graph=True, allow_unused=True) for key, value in terms.items()}
    before = weights(method.net)
    said = method.update(batch)
    assert float(said["instance"]) == pytest.approx(float(terms["instance"]), rel=1e-3)
    assert float(said["gradient_norm"]) == pytest.approx(float(length), rel=1e-3)
    trained = [w.norm() for w, p in zip(before, method.net.parameters(), strict=True) if p.requires_grad]
    assert float(said["weight_norm"]) == pytest.approx(float(torch.stack(trained).norm()), rel=1e-4)
    sign = {"task": 1.0, "image": -0.1, "instance": -0.1, "consistency": 0.1}
    steps = [s for s, p in zip(moved(before, method.net), method.net.parameters(), strict=True) if p.requires_grad]
    for i, step in enumerate(steps):
        wanted = sum(s * there[key][i] for key, s in sign.items() if there[key][i] is not None)
        torch.testing.assert_close(step, torch.as_tensor(0.01 * wanted).expand_as(step), rtol=5e-3, atol=5e-6)


def test_the_target_s_boxes_are_out_of_reach(data: Any) -> None:
    assert data.streams["target"].target is None
    method = built("da-faster", data, hidden=6)
    batch = batches(data, "source", "target")
    assert batch["target"].targets == (None,)
    method.update(batch)


def test_an_image_without_objects_can_be_learnt_from(data: Any) -> None:
    method, batch = built("detector", data), batches(data, "source")
    nothing = Found(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    empty = Batch(batch["source"].views, ([nothing, nothing],), batch["source"].indices)
    said = method.update({"source": empty})
    assert all(value.isfinite() for value in said.values())
    assert float(said["roi_box"]) == 0


def test_optional_objects_are_not_trained_on(data: Any) -> None:
    method, batch = built("detector", data), batches(data, "source")
    marked = [Found(y.boxes, y.labels, torch.ones(len(y.labels), dtype=torch.bool)) for y in batch["source"].y]
    _, objects = method.labelled({"source": Batch(batch["source"].views, (marked,), batch["source"].indices)})
    assert [len(found.labels) for found in objects] == [0, 0]


@EACH_NET
def test_the_mean_teacher_teaches_what_it_is_sure_of(data: Any, net: dict[str, Any]) -> None:
    given = {"net": net, "optim": {**OPTIM, "ema": 0.9}, "weight": 2.0, "start": 0.0, "views": "weak"}
    batch = batches(data, "source", "target")
    with torch.no_grad():
        found = built("mean-teacher", data, **given).player.average.eval()(batch["target"].x)
    threshold = float(torch.cat([one["scores"] for one in found]).median())
    method = built("mean-teacher", data, **given, threshold=threshold)
    sure = [one["scores"] >= threshold for one in found]
    student = copy.deepcopy(method.net.state_dict())
    with torch.no_grad():
        for weight in method.net.parameters():
            weight.zero_()  # so that the student would find nothing
    believed = method.believed(batch["target"].x)
    method.net.load_state_dict(student)
    assert 0 < sum(int(keep.sum()) for keep in sure) < sum(len(one["scores"]) for one in found)
    for one, keep, mine in zip(found, sure, believed, strict=True):
        assert torch.equal(mine.boxes, one["boxes"][keep])
        assert torch.equal(mine.labels, one["labels"][keep] - 1)
    source = method.forward(*method.labelled(batch))
    taught = method.forward(*method.strong(batch["target"].x, believed)).classification
    said = method.update(batch)
    assert float(said["taught"]) == pytest.approx(float(taught), rel=1e-4)
    total = source.classification + source.regression + 2 * taught
    assert float(said["loss"]) == pytest.approx(float(total), rel=1e-4)


def test_a_step_of_the_mean_teacher_descends_the_taught_classes_too(data: Any) -> None:
    """All four losses of the source and, twice, the two of classification against the teacher's boxes in a strong view.

    By torchvision's training pass; the teacher then moves a tenth of the way.
    """
    optim, batch = {**OPTIM, "ema": 0.9, "ema_warm": False}, batches(data, "source", "target")
    method = built("mean-teacher", data, optim=optim, weight=2.0, start=0.0, views="weak", threshold=0.3)
    plain, teacher = batch["target"].x, method.player.average
    with torch.no_grad():
        found = teacher.eval()(plain)
    sure = [one["scores"] >= 0.3 for one in found]
    assert 0 < sum(int(keep.sum()) for keep in sure) < sum(map(len, sure))
    boxes = [Found(one["boxes"][keep], one["labels"][keep] - 1) for one, keep in zip(found, sure, strict=True)]
    x, y = data.strong_view.see([(image * 255).round().byte() for image in plain], boxes, dice(3, "strong", 5, 0))
    taught = losses(method, {"source": Batch((x,), (y,), batch["target"].indices)})
    total = sum(losses(method, batch).values()) + 2 * (taught["loss_objectness"] + taught["loss_classifier"])
    own = [p for p in method.net.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(total, own, allow_unused=True)
    before, averaged = weights(method.net), weights(teacher)
    said = method.update(batch)
    assert float(said["loss"]) == pytest.approx(float(total.detach()), rel=1e-5)
    steps = [s for s, p in zip(moved(before, method.net), method.net.parameters(), strict=True) if p.requires_grad]
    for step, slope in zip(steps, slopes, strict=True):
        wanted = torch.zeros_like(step) if slope is None else 0.01 * slope
        torch.testing.assert_close(step, wanted, rtol=1e-3, atol=1e-6)
    for old, mean, weight in zip(averaged, weights(teacher), weights(method.net), strict=True):
        torch.testing.assert_close(mean, 0.9 * old + 0.1 * weight)


def test_strong_views_are_made_of_the_images_the_teacher_saw(data: Any) -> None:
    method = built("mean-teacher", data, optim={**OPTIM, "ema": 0.9})
    images = batches(data, "target")["target"].x
    method.data = SimpleNamespace(strong_view=SimpleNamespace(see=lambda raw, objects, _: (raw, objects)))
    raw, objects = method.strong(images, ["moved along"])
    assert objects == ["moved along"]
    for image, seen in zip(images, raw, strict=True):
        assert seen.dtype == torch.uint8
        torch.testing.assert_close(seen.float() / 255, image, atol=0.51 / 255, rtol=0)


def test_the_mean_teacher_waits_and_is_what_is_judged(data: Any) -> None:
    method = built("mean-teacher", data, optim={**OPTIM, "ema": 0.9}, start=0.6)
    assert "taught" not in method.update(batches(data, "source", "target"))
    assert method.player.judged() is method.player.average
    method.schedule(Progress(6, 10, 10))
    three = [Found(torch.tensor([[4.0, 4.0, 20.0, 20.0]] * n), torch.zeros(n, dtype=torch.int64)) for n in (2, 1)]
    method.believed = lambda _: three
    said = method.update(batches(data, "source", "target"))
    assert "taught" in said
    assert float(said["believed"]) == 1.5  # boxes of an image


def test_the_mean_teacher_sees_the_target_plainly_and_needs_an_average(data: Any) -> None:
    method = built("mean-teacher", data, optim={**OPTIM, "ema": 0.9})
    feeds = method.feeds(data.streams)
    assert [(key, feed.stream, feed.batch) for key, feed in feeds.items()] == [
        ("source", "source", 2),
        ("target", "target", 2),
    ]
    assert (feeds["source"].views, feeds["target"].views) == ((data.strong_view,), (data.eval_view,))
    method.settings = method.settings.model_copy(
        update={"optim": method.settings.optim.model_copy(update={"ema": None})}
    )
    with pytest.raises(UserError, match=r"set method.optim.ema"):
        method.feeds(data.streams)


def test_strong_views_are_drawn_by_step_and_process(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    method, drawn = built("mean-teacher", data, optim={**OPTIM, "ema": 0.9}), []
    view = SimpleNamespace(see=lambda raw, _, chance: drawn.append(float(torch.rand((), generator=chance))) or (raw, _))
    method.data = SimpleNamespace(strong_view=view)
    for step, rank in ((1, 0), (1, 0), (2, 0), (1, 1)):
        monkeypatch.setattr(parallel, "rank", lambda rank=rank: rank)
        method.schedule(Progress(step, 10, 10))
        method.strong([], [])
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_detections_fall_in_score_and_count_classes_from_zero(data: Any) -> None:
    method = built("detector", data)
    images = data.streams["test"].fetch(torch.tensor([0, 1]))
    for boxes, scores, labels in method.detect(images):
        assert boxes.shape == (len(scores), 4)
        assert (scores.diff() <= 0).all()
        assert labels.min() >= 0
        assert labels.max() <= 2


def test_views_are_weak_or_strong(data: Any) -> None:
    assert built("detector", data).feeds(data.streams)["source"].views == (data.train_view,)
    assert built("detector", data, views="strong").feeds(data.streams)["source"].views == (data.strong_view,)


def test_domain_heads_start_as_published(data: Any) -> None:
    heads = built("da-faster", data, hidden=600).adversary.net
    spreads = [float(layer.weight.std()) for layer in (heads.image.first, *heads.instance.layers)]
    assert spreads == pytest.approx([0.001, 0.01, 0.01, 0.05], rel=0.15)
    assert heads.image.first.out_channels == 300
    assert float(heads.image.last.weight.std()) == pytest.approx(0.001, rel=0.15)
    assert all(not layer.bias.any() for layer in (heads.image.first, heads.image.last, *heads.instance.layers))
    heads.train()
    x = torch.ones(4, heads.instance.layers[0].in_features)
    assert not torch.equal(heads.instance(x), heads.instance(x))  # dropout
    heads.eval()
    expected = x
    for layer in heads.instance.layers[:-1]:
        expected = F.relu(layer(expected))
    assert torch.equal(heads.instance(x), heads.instance.layers[-1](expected)[:, 0])


def test_half_of_what_tells_regions_apart_is_dropped_in_training() -> None:
    """Twice, each time doubling what stays: sums over five numbers that are 0 or 4, in evaluation all 1."""
    head = InstanceHead(5, 5)
    with torch.no_grad():
        for layer in head.layers[:2]:
            layer.weight.copy_(torch.eye(5))
        head.layers[2].weight.fill_(1.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dropped = head.train()(torch.ones(400, 5)).detach()
    assert set(dropped.tolist()) <= {0.0, 4.0, 8.0, 12.0, 16.0, 20.0}
    assert float(dropped.mean()) == pytest.approx(5, abs=0.5)
    assert head.eval()(torch.ones(3, 5)).tolist() == [5.0, 5.0, 5.0]
    maps = ImageHead(2, 3)
    with torch.no_grad():
        maps.first.weight.fill_(-1.0)
        maps.first.bias.fill_(3.0)
        maps.last.weight.fill_(1.0)
    x = torch.tensor([0.5, 4.0]).view(1, 1, 1, 2).expand(1, 2, 1, 2)
    assert maps(x).flatten().tolist() == [6.0, 0.0]  # three times ReLU(3 - 2 x)


def test_both_players_of_da_faster_follow_the_schedule(data: Any) -> None:
    method = built("da-faster", data, hidden=6)
    for step, lr in ((0, 0.01), (7, 0.01), (8, 0.001)):
        method.schedule(Progress(step, 10, 10))
        for player in (method.player, method.adversary):
            assert [group["lr"] for group in player.optimizer.param_groups] == pytest.approx([lr])
    assert method.sam.rho == 0.15


def test_da_faster_feeds_both_domains_alike(data: Any) -> None:
    for views, view in (("weak", data.train_view), ("strong", data.strong_view)):
        feeds = built("da-faster", data, hidden=6, views=views).feeds(data.streams)
        assert [(key, feed.stream, feed.batch, feed.views) for key, feed in feeds.items()] == [
            ("source", "source", 2, (view,)),
            ("target", "target", 2, (view,)),
        ]


def test_without_any_domain_term_da_faster_is_the_detector(data: Any) -> None:
    off = {"image": False, "instance": False, "consistency": False}
    batch = batches(data, "source", "target")
    plain, adapted = built("detector", data), built("da-faster", data, hidden=6, **off)
    adapted.net.load_state_dict(plain.net.state_dict())
    said = [method.update(batch) for method in (plain, adapted)]
    assert said[0].keys() == said[1].keys()
    assert float(said[0]["loss"]) == float(said[1]["loss"])


def test_a_detector_of_one_domain_is_fed_labelled_scenes(data: Any) -> None:
    method = built("detector", data)
    feeds = method.feeds({"labelled": data.streams["source"]})
    assert [(key, feed.stream, feed.batch) for key, feed in feeds.items()] == [("labelled", "labelled", 2)]
    rows = batches(data, "source")["source"]
    images, objects = method.labelled({"labelled": rows})
    assert images is rows.x
    assert [len(found.labels) for found in objects] == [len(found.needed.labels) for found in rows.y]


def test_regions_are_sampled_by_step_and_place_in_the_joint_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process's first image is the second one of a single process."""
    like, row = SimpleNamespace(batch_size_per_image=8, positive_fraction=0.25), torch.zeros(100, dtype=torch.int64)

    def taken(seed: int, step: int, rank: int, images: int) -> list[list[int]]:
        monkeypatch.setattr(parallel, "rank", lambda: rank)
        sampler = Sampler(SimpleNamespace(seed=seed, at=Progress(step, 1, 9)), like)  # type: ignore[arg-type]
        return [mask.nonzero().flatten().tolist() for mask in sampler([row] * images)[1]]

    first, second = taken(0, 3, 0, 2)
    assert first != second
    assert taken(0, 3, 1, 1) == [second]
    assert first not in (taken(0, 4, 0, 1)[0], taken(1, 3, 0, 1)[0])


def test_regions_of_every_class_are_taken_and_ignored_ones_never() -> None:
    """Of 8 regions at most a quarter objects, the rest background: all of the few objects, of any class."""
    like = SimpleNamespace(batch_size_per_image=8, positive_fraction=0.25)
    sampler = Sampler(SimpleNamespace(seed=0, at=Progress(3, 1, 9)), like)  # type: ignore[arg-type]
    few = torch.tensor([1] + [0] * 20 + [-1] * 5)
    many = torch.tensor([1, 2, 3, 1] + [0] * 3 + [-1] * 5)
    positive, negative = sampler([few, many])
    assert (positive[0].nonzero().flatten().tolist(), int(negative[0].sum())) == ([0], 7)
    assert (int(positive[1].sum()), negative[1].nonzero().flatten().tolist()) == (2, [4, 5, 6])
    for row, taken, background in zip((few, many), positive, negative, strict=True):
        assert (row[taken.bool()] >= 1).all()
        assert (row[background.bool()] == 0).all()
    assert sampler.taken == 13


def test_a_pass_over_given_regions_suppresses_nothing(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    method, rows = built("detector", data), batches(data, "source")
    first = method.forward(*method.labelled(rows))
    monkeypatch.setattr(method.net.rpn, "filter_proposals", None)
    again = method.forward(*method.labelled(rows), first.regions)
    assert torch.equal(again.classification, first.classification)
    assert torch.equal(again.regression, first.regression)


def test_regions_that_tell_domains_are_drawn_by_one_rule_and_know_no_label(data: Any) -> None:
    """The same images on both sides: regions as many, at random of the proposals, without true boxes among them."""
    method = built("da-faster", data, hidden=6)
    images, objects = method.labelled(batches(data, "source"))
    seen = method.forward(images, objects)
    nothing = [Found(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))] * 2
    unlabelled = method.forward(images, nothing)
    for mine, other in zip(seen.regions.proposals, unlabelled.regions.proposals, strict=True):
        assert torch.equal(mine, other)
    drawn: list[list[Tensor]] = []
    method.vectors = lambda _maps, boxes, _sizes: drawn.append(boxes) or torch.zeros(sum(map(len, boxes)), 8)
    for domain in ("source", "target"):
        *_, counts = method._side(seen.maps, seen.regions.proposals, seen.sizes, domain)
        assert counts == [min(8, len(boxes)) for boxes in seen.regions.proposals]
    for ours, theirs, proposals in zip(*drawn, seen.regions.proposals, strict=True):
        known = {tuple(box) for box in proposals.tolist()}
        assert {tuple(box) for box in (*ours.tolist(), *theirs.tolist())} <= known
        assert not torch.equal(ours, theirs)
        assert not torch.equal(ours, proposals[:8])


def test_a_run_s_network_needs_no_file_it_started_from() -> None:
    net = method_class("detector").table(net={**NET, "weights": "gone.pth"}).net
    assert net.as_trained() == net.model_copy(update={"weights": ""})
