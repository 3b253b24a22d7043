"""Two gloo processes against one: sums and their gradients, BatchNorm, gathering, sampling, evaluation.

Run as a script this file is one of the two processes; it saves what it found for the tests to compare.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.loader import Feed, Loader
from evenhand.data.samplers import sample_weights
from evenhand.data.stream import Memory, Stream
from evenhand.data.views.view import OfSamples
from evenhand.errors import UserError
from evenhand.measure.classification import evaluate, predict_all
from evenhand.parallel import group
from evenhand.pieces.player import Player
from evenhand.pieces.sam import SAM
from evenhand.randomness import dice

Found = dict[str, Any]
CPU = torch.device("cpu")
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: nn.BatchNorm2d(3), (8, 3, 5, 5)),
    "cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (8, 3, 5, 5)),
    "bare": (lambda: nn.BatchNorm1d(3, affine=False), (8, 3)),
    "untracked": (lambda: nn.BatchNorm1d(3, track_running_stats=False), (8, 3, 7)),
    "volumes": (lambda: nn.BatchNorm3d(3, eps=1e-2), (4, 3, 2, 3, 2)),
}
DRAWN = torch.arange(10).repeat_interleave(torch.tensor([120, 70, 40, 25, 15, 9, 5, 3, 2, 1]))


def numbers(*shape: int, key: str = "") -> Tensor:
    return torch.randn(*shape, generator=dice(0, key)) * 2 + 1


def mine(x: Tensor) -> Tensor:
    """This process's slice of a joint tensor."""
    return x.chunk(parallel.world())[parallel.rank()]


# what each process finds; in one process the same functions find what is expected


def sums() -> Found:
    x = mine(numbers(4, 3, key="sums")).clone().requires_grad_()
    target = mine(numbers(4, 3, key="targets"))
    summed = parallel.total(x.sum(0))  # (3,) over the joint rows
    value = (summed.pow(3) * target.sum(0)).sum()  # each process has its own part of the joint loss
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return {"summed": summed.detach(), "first": first.detach(), "second": second}


def batchnorm(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Found:
    """Two training steps and an evaluation; the loss couples every sample to every other."""
    layer = make()
    if layer.weight is not None:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
            layer.bias.copy_(torch.tensor([1.0, 0.0, 3.0]))
    layer = parallel.join_batchnorm(layer) if parallel.world() > 1 else layer
    found: Found = {}
    for step in range(2):
        x = mine(numbers(*shape, key=f"batch {step}")).clone().requires_grad_()
        y = layer(x)
        loss = (y.pow(3) * mine(numbers(*shape, key=f"slopes {step}"))).sum()
        (grad,) = torch.autograd.grad(loss, x, create_graph=False, retain_graph=True)
        loss.backward()
        found |= {f"y{step}": y.detach(), f"grad{step}": grad}
    parameters = list(layer.parameters())
    for p in parameters:
        assert p.grad is not None
        p.grad *= parallel.world()  # sums, not means, of the processes' losses
    parallel.average_gradients(parameters)
    found["parameters"] = [p.grad for p in parameters]
    found["buffers"] = dict(layer.named_buffers())
    if layer.running_mean is not None:
        found["evaluated"] = layer.eval()(mine(numbers(*shape, key="eval"))).detach()
    return found


def penalised() -> Found:
    """A gradient penalty through BatchNorm, whose parts are uneven: 2 rows in one process, 6 in the other."""
    layer = nn.BatchNorm1d(3)
    layer = parallel.join_batchnorm(layer) if parallel.world() > 1 else layer
    joint, slopes = numbers(8, 3, key="penalised"), numbers(8, 3, key="slopes")
    rows = slice(None) if parallel.world() == 1 else (slice(0, 2), slice(2, 8))[parallel.rank()]
    x = joint[rows].clone().requires_grad_()
    (first,) = torch.autograd.grad((layer(x).pow(3) * slopes[rows]).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return {"first": first.detach(), "second": second, "buffers": dict(layer.named_buffers())}


def far() -> Found:
    """Numbers far from 0 with a small spread, all of them in the last process."""
    joint = numbers(8, 3, 5, key="far") + 1000
    layer = nn.BatchNorm1d(3)
    if parallel.world() == 1:
        layer, x = layer.double(), joint.double()
    else:
        layer, x = parallel.join_batchnorm(layer), joint[: 8 * parallel.rank()]  # type: ignore[assignment]
    return {"y": layer(x).detach(), "buffers": dict(layer.named_buffers())}


def frozen() -> Found:
    """SAM's second pass: joint statistics, running ones untouched."""
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(numbers(*p.shape, key=f"weights {i}"))
    player = Player(net, SAM(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), rho=0.5))
    x = mine(numbers(8, 4, key="inputs"))
    slopes = mine(numbers(8, 3, key="outputs"))
    for _ in range(2):
        player.backward((player.net(x) * slopes).pow(2).mean())
        with player.ascent():
            player.backward((player.net(x) * slopes).pow(2).mean())
        player.step()
    return {"state": net.state_dict()}


def averaged() -> Found:
    """Gradients of any layout; a parameter without one stays without."""
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    silent = nn.Parameter(torch.zeros(2))
    parameters = [*conv.parameters(), silent]
    for i, p in enumerate(conv.parameters()):
        joint = numbers(2, *p.shape, key=f"gradient {i}")
        grad = mine(joint).mean(0)
        p.grad = grad.contiguous(memory_format=torch.channels_last) if grad.ndim == 4 else grad
    parallel.average_gradients(parameters)
    return {"grads": [p.grad for p in conv.parameters()], "silent": silent.grad}


def shared() -> Found:
    """Local weighted means times ``share`` average to the joint weighted mean."""
    values, weights = mine(numbers(6, key="values")), mine(numbers(6, key="masses").abs())
    local = (values * weights).sum() / weights.sum()
    return {"mean": parallel.mean(local * parallel.share(weights.sum())), "share": parallel.share(weights.sum())}


def gathered() -> Found:
    joint = numbers(7, 2, key="rows")
    rows = joint if parallel.world() == 1 else (joint[:2], joint[2:])[parallel.rank()]
    nothing = joint if parallel.world() == 1 else (joint[:0], joint)[parallel.rank()]
    given = {"rows": rows, "one-sided": nothing, "labels": rows[:, 0].long()}
    return {name: parallel.gather(part) for name, part in given.items()}


def flags() -> Found:
    last = parallel.rank() == parallel.world() - 1
    return {"any": parallel.any_process(last), "none": parallel.any_process(False)}


def drawn() -> Found:
    """A class-balanced stream as a method would be fed it."""
    stream = Stream(Memory(torch.zeros(len(DRAWN), 1, 2, 2, dtype=torch.uint8)), DRAWN, tuple("abcdefghij"), "labelled")
    feed = Feed("labelled", 40, (OfSamples(lambda x, _: x.float()),), sample_weights(DRAWN, 10))
    batches = list(Loader(stream, feed, seed=3, device=CPU).iterate(0, 50))
    return {"indices": torch.stack([b.indices for b in batches]), "labels": torch.stack([b.y for b in batches])}


def evaluated() -> Found:
    """An odd number of samples, whose logits tell which sample they belong to."""
    pixels = torch.arange(11, dtype=torch.uint8).view(11, 1, 1, 1)
    stream = Stream(Memory(pixels), torch.arange(11) % 3, ("a", "b", "c"), "val")

    def predict(x: Tensor) -> Tensor:
        number = x.flatten(1).float()  # (N, 1)
        return torch.cat([number, 10 - number, torch.full_like(number, 4.5)], 1)

    result = evaluate(predict, stream, batch=4)
    told = {name: getattr(result, name) for name in ("predicted", "confidence", "surprise", "in_top5", "target")}
    return {"told": told, "scalars": result.scalars(), "logits": predict_all(predict, stream, batch=4)}


def find() -> Found:
    found = {name: work() for name, work in WORK.items()}
    return found | {f"batchnorm {name}": batchnorm(*layer) for name, layer in LAYERS.items()}


WORK = {
    work.__name__: work for work in (sums, penalised, far, frozen, averaged, shared, gathered, flags, drawn, evaluated)
}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    parallel.start(CPU)
    assert parallel.world() == 2
    place = {"rank": parallel.rank(), "writer": parallel.is_writer()}
    torch.save({**find(), "place": place}, folder / f"{parallel.rank()}.pt")
    parallel.stop()


# the tests


@pytest.fixture(scope="module")
def both(two_processes: Any) -> list[Found]:
    folder = two_processes(__file__)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def joined(both: list[Found], part: str, name: str) -> Tensor:
    return torch.cat([found[part][name] for found in both])


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_alone_everything_is_the_identity() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    assert parallel.total(x) is x
    assert parallel.gather(x) is x
    assert (parallel.rank(), parallel.world(), parallel.is_writer()) == (0, 1, True)
    assert (parallel.any_process(True), parallel.any_process(False)) == (True, False)
    assert torch.equal(parallel.mean(x), x.detach())
    assert not parallel.mean(x).requires_grad
    assert parallel.share(torch.tensor(7.0)) == 1.0
    parallel.barrier()


def test_only_the_first_process_writes(both: list[Found]) -> None:
    assert [found["place"]["rank"] for found in both] == [0, 1]
    assert [found["place"]["writer"] for found in both] == [True, False]


def test_total_adds_up_and_sends_gradients_to_every_process(both: list[Found]) -> None:
    expected = sums()
    for found in both:
        assert_close(found["sums"]["summed"], expected["summed"])
    assert_close(joined(both, "sums", "first"), expected["first"])


def test_total_has_second_derivatives(both: list[Found]) -> None:
    """Gradient penalties differentiate through BatchNorm's sums twice."""
    x = numbers(4, 3, key="sums").requires_grad_()
    summed, target = x.sum(0), numbers(4, 3, key="targets")
    (first,) = torch.autograd.grad((summed.pow(3) * target.sum(0)).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(first.square().sum(), x)
    assert_close(joined(both, "sums", "second"), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_batchnorm_sees_the_joint_batch(both: list[Found], name: str) -> None:
    expected, part = batchnorm(*LAYERS[name]), f"batchnorm {name}"
    for step in range(2):
        assert_close(joined(both, part, f"y{step}"), expected[f"y{step}"])
        assert_close(joined(both, part, f"grad{step}"), expected[f"grad{step}"])
    for found in both:
        assert_close(found[part]["parameters"], expected["parameters"])
        assert_close(found[part]["buffers"], expected["buffers"])
    if "evaluated" in expected:
        assert_close(joined(both, part, "evaluated"), expected["evaluated"])


def test_batchnorm_has_second_derivatives(both: list[Found]) -> None:
    expected = penalised()
    for name in ("first", "second"):
        assert_close(joined(both, "penalised", name), expected[name])
    for found in both:
        assert_close(found["penalised"]["buffers"], expected["buffers"])


def test_batchnorm_far_from_zero_and_with_an_empty_part(both: list[Found]) -> None:
    """A sum of squares in float32 would lose the variance, and no rows have no mean."""
    expected = far()
    torch.testing.assert_close(joined(both, "far", "y").double(), expected["y"], rtol=0, atol=1e-3)
    for found in both:
        for name, value in expected["buffers"].items():
            torch.testing.assert_close(found["far"]["buffers"][name].double(), value.double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
def test_gpus_use_torchs_own_batchnorm(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "on_gpus", lambda: True)
    plain = nn.Sequential(nn.Linear(3, 3), kind(3))
    net = parallel.join_batchnorm(copy.deepcopy(plain))
    assert type(net[1]) is nn.SyncBatchNorm  # type: ignore[index]
    x = numbers(4, 3, *[2] * {nn.BatchNorm1d: 0, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}[kind])  # type: ignore[index]
    assert torch.equal(copy.deepcopy(net)[1](x), plain[1](x))  # type: ignore[index]
    assert list(net.state_dict()) == list(plain.state_dict())


def test_local_batchnorm_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "joining", "local")
    assert type(parallel.join_batchnorm(nn.BatchNorm1d(3))) is nn.BatchNorm1d
    assert type(parallel.join_batchnorm(nn.BatchNorm1d(3), "joint")) is not nn.BatchNorm1d


def test_joining_batchnorm_keeps_names_and_values() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3)))
    x, before = numbers(4, 1, 2, 2), {k: v.clone() for k, v in net.state_dict().items()}
    logits = net.eval()(x)
    assert parallel.join_batchnorm(net) is net
    assert list(net.state_dict()) == list(before)
    assert torch.equal(net(x), logits)
    with pytest.raises(ValueError, match="at least 2 axes"):
        net[1](torch.zeros(3))


def test_trap_01_sam_step_of_two_processes_is_that_of_one(both: list[Found]) -> None:
    """One joint direction, weights restored, BatchNorm statistics moved once a step."""
    expected = frozen()["state"]
    assert expected["1.num_batches_tracked"] == 2
    for found in both:
        assert_close(dict(found["frozen"]["state"]), dict(expected))
    for name, value in both[0]["frozen"]["state"].items():
        assert torch.equal(value, both[1]["frozen"]["state"][name])


def test_gradients_are_averaged_whatever_their_layout(both: list[Found]) -> None:
    expected = averaged()
    for found in both:
        assert_close(found["averaged"]["grads"], expected["grads"])
        assert found["averaged"]["silent"] is None


def test_share_makes_the_joint_weighted_mean(both: list[Found]) -> None:
    expected = shared()["mean"]
    for found in both:
        assert_close(found["shared"]["mean"], expected)
    assert sum(found["shared"]["share"] for found in both) == pytest.approx(2)


def test_gather_takes_ragged_rows_in_order(both: list[Found]) -> None:
    expected = gathered()
    for found in both:
        for name, rows in expected.items():
            assert torch.equal(found["gathered"][name], rows)


def test_any_process_tells_all(both: list[Found]) -> None:
    assert all(found["flags"] == {"any": True, "none": False} for found in both)


def test_trap_13_weighted_sampling_keeps_its_promise_under_two_processes(both: list[Found]) -> None:
    expected = drawn()
    indices = torch.cat([found["drawn"]["indices"] for found in both], 1)
    labels = torch.cat([found["drawn"]["labels"] for found in both], 1)
    assert torch.equal(indices, expected["indices"])  # the joint batch, each process its own half
    assert torch.equal(DRAWN[indices], labels)
    assert not torch.equal(*(found["drawn"]["indices"] for found in both))
    for found in both:  # 1000 draws each: 100 a class, standard deviation 9.5
        mix = torch.bincount(found["drawn"]["labels"].flatten(), minlength=10)
        assert mix.sum() == 1000
        assert (mix - 100).abs().max() < 40


def test_evaluation_of_two_processes_is_that_of_one(both: list[Found]) -> None:
    """Whoever chooses samples by what was said of them needs row i to be sample i."""
    expected = evaluated()
    for found in both:
        assert found["evaluated"]["scalars"] == expected["scalars"]
        assert torch.equal(found["evaluated"]["logits"], expected["logits"])
        for name, value in expected["told"].items():
            assert torch.equal(found["evaluated"]["told"][name], value)


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_every_process_has_its_own_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert parallel.local_device(name) == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="--nproc-per-node 2"):
        parallel.local_device(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
