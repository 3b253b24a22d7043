"""What a step of two processes sends, when, and what comes of it.

Run as a script this file is one of the two processes; it saves what it found for the tests to compare.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from evenhand import parallel
from evenhand.parallel import gradients
from evenhand.pieces.player import Player
from evenhand.pieces.sam import SAM
from evenhand.randomness import dice

Found = dict[str, Any]
CPU = torch.device("cpu")


def numbers(*shape: int, key: str) -> Tensor:
    return torch.randn(*shape, generator=dice(0, key))


def filled(net: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(numbers(*p.shape, key=name) * 0.3)
    return net


def conv_net() -> nn.Module:
    """Three blocks of 320, 608 and 608 bytes of parameters, and 204 in the last layer."""
    blocks = [(nn.Conv2d(c, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()) for c in (2, 4, 4)]
    return filled(nn.Sequential(*[m for block in blocks for m in block], nn.Flatten(), nn.Linear(16, 3)))


def player_of(net: nn.Module, sam: bool, **options: Any) -> Player:
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return Player(net, SAM(base, rho=0.1) if sam else base, **options)


def losses(net: nn.Module, parts: int) -> Iterator[Tensor]:
    x, y = (t.chunk(parallel.world())[parallel.rank()] for t in (numbers(8, 2, 8, 8, key="x"), torch.arange(8) % 3))
    for i in range(parts):
        yield nn.functional.cross_entropy(net(x[i::parts]), y[i::parts]) / parts


def advance(player: Player, *, armed: bool, parts: int = 1) -> None:
    def gradient() -> None:
        for i, loss in enumerate(losses(player.net, parts)):
            player.backward(loss, last=armed and i == parts - 1)

    gradient()
    if isinstance(player.optimizer, SAM):
        with player.ascent():
            gradient()
    player.step()


@contextmanager
def watched() -> Iterator[list[str]]:
    """The names of the collectives, in the order in which they start."""
    sent: list[str] = []
    names = [n for n in ("all_reduce", "all_gather", "broadcast", "reduce", "barrier") if hasattr(dist, n)]

    def counting(name: str, plain: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            sent.append(name + " meanwhile" * bool(options.get("group")))
            return plain(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(dist, name, counting(name, getattr(dist, name)))
        yield sent


# what each process finds


STEPS = {(kind, armed): None for kind in ("sgd", "sam", "parts", "sam-parts") for armed in (False, True)}


def stepped(kind: str, armed: bool) -> Found:
    """Two steps in buckets of at least 400 bytes: the last layer with the last block, the middle one, the rest."""
    player = player_of(conv_net(), "sam" in kind, ema=0.5)
    first = next(player.net.parameters())
    with watched() as sent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "BUCKET", 400)
        mark = first.register_post_accumulate_grad_hook(lambda _: sent.append("backward has ended"))
        for _ in range(2):
            before = len(sent)
            advance(player, armed=armed, parts=2 if "parts" in kind else 1)
        mark.remove()
    hooks = sum(len(p._post_accumulate_grad_hooks or {}) for p in player.parameters)
    return {"state": player.state(), "sent": sent[before:], "hooks": hooks}


def local() -> Found:
    """Each process normalises by its own half."""
    parallel.start(CPU, batchnorm="local")
    found: Found = {}
    for armed in (False, True):
        net = nn.Sequential(nn.BatchNorm1d(3), filled(nn.Linear(3, 2)))
        player = player_of(net, sam=True, ema=0.5)
        x = numbers(8, 3, key="local").chunk(parallel.world())[parallel.rank()]
        with watched() as sent:
            player.backward(player.net(x).square().mean(), last=armed)
            with player.ascent():
                player.backward(player.net(x).square().mean(), last=armed)
            player.step()
        found[f"armed {armed}"] = {"state": copy.deepcopy(player.state()), "sent": sent}
    net(x)
    apart = net[0].running_mean.clone()
    parallel.average_statistics(net)
    parallel.start(CPU)
    return {**found, "apart": apart, "together": net[0].running_mean}


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 2)
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
        self.boxes = nn.Linear(4, 2)
        filled(self)


def detected(armed: bool) -> Found:
    """The first process's images have no boxes, nobody uses the spare head; momentum and weight decay are on.

    Its bucket of the boxes leaves only after BatchNorm's message, the second process's before.
    """
    net = Detector()
    player = player_of(net, sam=False)
    alone = parallel.world() == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "BUCKET", 1)
        for step in range(3):
            halves = numbers(10, 3, key=f"images {step}").chunk(2)
            seen = net.body(torch.cat(halves) if alone else halves[parallel.rank()])
            parts = [(0, seen[:5]), (1, seen[5:])] if alone else [(parallel.rank(), seen)]
            losses = [part.square().mean() + (net.boxes(part).mean() if half and step else 0) for half, part in parts]
            player.backward(torch.stack(losses).mean(), last=armed)
            assert step or net.boxes.weight.grad is None
            player.step()
    return {"net": dict(net.state_dict()), "spare": len(player.optimizer.state.get(net.spare.weight, {}))}


def twice() -> str:
    p = nn.Parameter(torch.ones(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "BUCKET", 1)
        try:
            with parallel.averaging([p]):
                p.sum().backward()
                p.sum().backward()
        except RuntimeError as error:
            return str(error)
    return ""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    parallel.start(CPU)
    found = {
        "steps": {case: stepped(*case) for case in STEPS},
        "local": local(),
        "detected": {armed: detected(armed) for armed in (False, True)},
        "twice": twice(),
    }
    torch.save(found, folder / f"{parallel.rank()}.pt")
    parallel.stop()


# the tests


@pytest.fixture(scope="module")
def both(two_processes: Any) -> list[Found]:
    folder = two_processes(__file__)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def tensors(tree: Any) -> list[Tensor]:
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [tree] if isinstance(tree, Tensor) else [t for part in inside for t in tensors(part)]


FORWARD, BACKWARD, END = ["all_gather"] * 3, ["all_reduce"] * 3, ["backward has ended"]
BUCKETS = 2  # and the rest


def test_a_step_sends_a_message_for_each_batchnorm_and_direction_and_one_for_the_gradients(both: list[Found]) -> None:
    once = [*FORWARD, *BACKWARD, *END]
    for found in both:
        assert found["steps"]["sgd", False]["sent"] == [*once, "all_reduce"]
        assert found["steps"]["sam", False]["sent"] == [*once, "all_reduce"] * 2
        assert found["steps"]["parts", False]["sent"] == [*once, *once, "all_reduce"]


@pytest.mark.parametrize(("kind", "passes", "counting"), [("sgd", 1, [0]), ("sam", 2, [0, 1]), ("parts", 2, [1])])
def test_buckets_leave_while_the_pass_that_counts_still_runs(
    both: list[Found], kind: str, passes: int, counting: list[int]
) -> None:
    for found in both:
        sent = found["steps"][kind, True]["sent"]
        assert sent.count("all_gather") == 3 * passes
        assert sent.count("all_reduce meanwhile") == BUCKETS * len(counting)
        assert sent.count("all_reduce") == 3 * passes + len(counting)  # BatchNorm's, and the rest of the gradients
        ends = [i for i, name in enumerate(sent) if name == END[0]]
        for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            assert sent[start:end].count("all_reduce meanwhile") == BUCKETS * (i in counting)


@pytest.mark.parametrize("kind", ["sgd", "sam", "parts", "sam-parts"])
def test_buckets_give_the_plain_mean_bit_for_bit_and_leave_no_hooks(both: list[Found], kind: str) -> None:
    plain = tensors(both[0]["steps"][kind, False]["state"])
    for found in both:
        assert found["steps"][kind, True]["hooks"] == 0
        for x, y in zip(tensors(found["steps"][kind, True]["state"]), plain, strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize(("kind", "armed"), STEPS)
def test_two_processes_step_as_one(both: list[Found], kind: str, armed: bool) -> None:
    alone = stepped(kind, armed)
    assert [name for name in alone["sent"] if name not in END] == []
    for x, y in zip(tensors(both[0]["steps"][kind, armed]["state"]), tensors(alone["state"]), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("armed", [False, True])
def test_a_gradient_missing_in_one_process_is_zero_and_missing_in_all_stays_so(both: list[Found], armed: bool) -> None:
    expected = detected(armed)
    before = Detector().state_dict()
    for found in (f["detected"][armed] for f in both):
        for name, value in expected["net"].items():
            torch.testing.assert_close(found["net"][name], value, rtol=1e-5, atol=1e-6)
            assert torch.equal(found["net"][name], both[0]["detected"][armed]["net"][name])
        assert torch.equal(found["net"]["spare.weight"], before["spare.weight"])
        assert not torch.equal(found["net"]["boxes.weight"], before["boxes.weight"])
        assert found["spare"] == 0


def test_a_second_backward_is_refused_while_gradients_travel(both: list[Found]) -> None:
    assert all("only the last backward" in found["twice"] for found in both)


@pytest.mark.parametrize("armed", [False, True])
def test_local_statistics_are_the_processes_mean_and_cost_no_message(both: list[Found], armed: bool) -> None:
    halves = numbers(8, 3, key="local").chunk(2)
    for found in (f["local"][f"armed {armed}"] for f in both):
        state = found["state"]
        torch.testing.assert_close(state["net"]["0.running_mean"], 0.1 * sum(x.mean(0) for x in halves) / 2)
        torch.testing.assert_close(state["net"]["0.running_var"], 0.9 + 0.1 * sum(x.var(0) for x in halves) / 2)
        assert torch.equal(state["average"]["0.running_mean"], state["net"]["0.running_mean"])
        assert found["sent"] == ["all_reduce", "all_reduce"]  # SAM needs two means of gradients
        for x, y in zip(tensors(state), tensors(both[0]["local"][f"armed {armed}"]["state"]), strict=True):
            assert torch.equal(x, y)


def test_statistics_of_passes_without_a_step_can_be_averaged(both: list[Found]) -> None:
    apart = [found["local"]["apart"] for found in both]
    assert not torch.equal(*apart)
    for found in both:
        torch.testing.assert_close(found["local"]["together"], sum(apart) / 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
