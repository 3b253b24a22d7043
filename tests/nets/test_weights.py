"""Weights: what loads, what is refused, and that a refused file leaves the network as it was."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from evenhand.errors import UserError
from evenhand.nets import HeadedNet, build_net, load_weights


def small(classes: int = 5, head: str = "linear") -> HeadedNet:
    return build_net("resnet8", num_classes=classes, head=head, width=4)  # type: ignore[arg-type]


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(k == l and torch.equal(v, w) for (k, v), (l, w) in pairs)  # noqa: E741


@pytest.fixture
def trained() -> HeadedNet:
    net = small()
    net(torch.randn(4, 3, 16, 16))  # moves the running statistics, so they are checked too
    return net


def wrapped(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in state.items()}


def test_safetensors_round_trip(tmp_path: Path, trained: HeadedNet) -> None:
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    net = small()
    assert not same(net, trained)
    assert load_weights(net, tmp_path / "w.safetensors") == []
    assert same(net, trained)


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "backbone.", "module.backbone.", "_orig_mod.module."])
@pytest.mark.parametrize("keys", [[], ["state_dict"], ["model"], ["model", "state_dict"]])
def test_wrapped_torch_files(tmp_path: Path, trained: HeadedNet, prefix: str, keys: list[str]) -> None:
    content: dict = wrapped(trained.state_dict(), prefix)
    for key in keys:
        content = {"epoch": 3, key: content}
    torch.save(content, tmp_path / "w.pth")
    net = small()
    load_weights(net, str(tmp_path / "w.pth"))
    assert same(net, trained)


def test_a_name_of_the_network_is_not_stripped(tmp_path: Path) -> None:
    net = nn.ModuleDict({"backbone": nn.Linear(2, 2), "model": nn.Linear(2, 3)})
    torch.save(wrapped(net.state_dict(), "module."), tmp_path / "w.pth")
    other = nn.ModuleDict({"backbone": nn.Linear(2, 2), "model": nn.Linear(2, 3)})
    load_weights(other, tmp_path / "w.pth")
    assert same(net, other)


def test_files_without_batch_counters_load(tmp_path: Path, trained: HeadedNet) -> None:
    state = {k: v for k, v in trained.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pth")
    net = small()
    kept = load_weights(net, tmp_path / "old.pth")
    assert all(k.endswith("num_batches_tracked") for k in kept)
    assert torch.equal(net.bn1.running_var, trained.bn1.running_var)


@pytest.mark.parametrize("other", [small(7), small(5, "cosine"), small(7, "cosine")])
def test_another_head_is_dropped_only_when_asked(tmp_path: Path, trained: HeadedNet, other: HeadedNet) -> None:
    torch.save(trained.state_dict(), tmp_path / "w.pth")
    before = copy.deepcopy(other)
    with pytest.raises(UserError, match=r"do not fit: .*fc\..*skip_head=True") as caught:
        load_weights(other, tmp_path / "w.pth")
    assert "\n" not in str(caught.value)
    assert same(other, before)
    kept = load_weights(other, tmp_path / "w.pth", skip_head=True)
    assert kept == [key for key in other.state_dict() if key.startswith("fc.")]
    assert torch.equal(other.head.weight, before.head.weight)
    assert torch.equal(other.layer3[0].conv2.weight, trained.layer3[0].conv2.weight)


def test_skip_head_ignores_a_head_of_another_name(tmp_path: Path, trained: HeadedNet) -> None:
    state = {key.replace("fc.", "classifier."): value for key, value in trained.state_dict().items()}
    torch.save(state, tmp_path / "w.pth")
    net = small()
    assert load_weights(net, tmp_path / "w.pth", skip_head=True) == ["fc.weight", "fc.bias"]


def test_another_network_names_the_first_three_of_each_kind(tmp_path: Path, trained: HeadedNet) -> None:
    torch.save(trained.state_dict(), tmp_path / "w.pth")
    deeper = build_net("resnet14", num_classes=5, width=4)
    with pytest.raises(UserError) as caught:
        load_weights(deeper, tmp_path / "w.pth")
    message = str(caught.value)
    names = "missing layer1.1.conv1.weight, layer1.1.bn1.weight, layer1.1.bn1.bias and 27 more; "
    assert names in message
    assert message.endswith("build the net the file comes from, or pass strict=False to load what fits")
    kept = load_weights(deeper, tmp_path / "w.pth", strict=False)
    assert {k.split(".")[1] for k in kept} == {"1"}
    assert torch.equal(deeper.conv1.weight, trained.conv1.weight)

    wider = build_net("resnet8", num_classes=5, width=8)
    with pytest.raises(UserError, match=r"mis-shaped conv1.weight \(4, 3, 3, 3\) for \(8, 3, 3, 3\), .* more; build"):
        load_weights(wider, tmp_path / "w.pth", strict=False)


def test_extra_entries_need_strict_false(tmp_path: Path, trained: HeadedNet) -> None:
    torch.save({**trained.state_dict(), "queue": torch.ones(2)}, tmp_path / "w.pth")
    net = small()
    with pytest.raises(UserError, match=r"unexpected queue; .*strict=False"):
        load_weights(net, tmp_path / "w.pth")
    assert load_weights(net, tmp_path / "w.pth", strict=False) == []
    assert same(net, trained)


def test_nothing_in_common_is_an_error_even_when_lenient(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="unexpected a; build the net"):
        load_weights(small(), tmp_path / "w.pth", strict=False)


def test_two_networks_in_one_file(tmp_path: Path, trained: HeadedNet) -> None:
    state = trained.state_dict()
    torch.save({**wrapped(state, "model."), **wrapped(state, "module.")}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"name conv1.weight twice \(once as module.conv1.weight\)"):
        load_weights(small(), tmp_path / "w.pth")


def test_a_pickled_module_is_refused_and_its_code_not_run(tmp_path: Path) -> None:
    torch.save(small(), tmp_path / "module.pth")
    with pytest.raises(UserError, match=r"module.pth' are refused: .*run code.*save net.state_dict\(\)"):
        load_weights(small(), tmp_path / "module.pth")

    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "made"),)

    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"conv1.weight": Evil()}, protocol=2))
    with pytest.raises(UserError, match="refused"):
        load_weights(small(), tmp_path / "evil.pth")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello, not weights", b"\xff" * 64])
def test_stray_bytes(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"weights '.*{name}' are (damaged|refused)"):
        load_weights(small(), tmp_path / name)


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_truncated_files(tmp_path: Path, trained: HeadedNet, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".pth":
        torch.save(trained.state_dict(), path)
    else:
        save_file(trained.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-200])
    net = small()
    before = copy.deepcopy(net)
    with pytest.raises(UserError, match="damaged"):
        load_weights(net, path)
    assert same(net, before)


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, [torch.ones(2)], torch.ones(2), {"model": {"lr": 0.1}}])
def test_files_without_a_state_dict(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(UserError, match="hold no state dict"):
        load_weights(small(), tmp_path / "w.pth")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.pth' are not a file; check the path"):
        load_weights(small(), tmp_path / "nowhere.pth")
