from __future__ import annotations

import errno
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand import atomic
from evenhand.errors import UserError
from evenhand.run import checkpoint


def content(step: int = 1) -> dict[str, Any]:
    state = {"w": torch.arange(4.0) + step, "list": [torch.ones(2), "name", None]}
    return {"method": state, "step": step, "total": 9, "epoch": step / 3, "digest": "0123"}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return torch.equal(a["method"]["w"], b["method"]["w"]) and a["step"] == b["step"]


def test_round_trip_makes_the_folder_and_leaves_one_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "last.pt"
    checkpoint.save(path, content())
    assert same(checkpoint.load(path), content())
    assert [p.name for p in path.parent.iterdir()] == ["last.pt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_written_text_is_whole_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "measure.json"
    atomic.write(path, b"{}")
    atomic.write(path, b'{"a": 1}')
    assert path.read_bytes() == b'{"a": 1}'
    assert [p.name for p in tmp_path.iterdir()] == ["measure.json"]


def test_trap_18_data_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), replace(a, b))[1])
    checkpoint.save(tmp_path / "last.pt", content())
    assert order == ["fsync", "replace"]


def test_trap_18_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.pt"
    checkpoint.save(path, content(1))

    def half(_: object, file: Path) -> None:
        Path(file).write_bytes(b"PK\x03\x04 half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(path, content(2))
    assert same(checkpoint.load(path), content(1))
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_trap_18_a_half_written_part_beside_it_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".last.pt.abc.part").write_bytes(b"half")
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.load(tmp_path / "last.pt")
    checkpoint.save(tmp_path / "last.pt", content())
    assert same(checkpoint.load(tmp_path / "last.pt"), content())


def test_full_disk_is_one_line_and_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.pt"
    checkpoint.save(path, content(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="disk full") as caught:
        checkpoint.save(path, content(2))
    assert len(str(caught.value).splitlines()) == 1
    assert str(path) in str(caught.value)
    assert same(checkpoint.load(path), content(1))
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("size", [4, 1_000_000])
def test_full_device_as_torch_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    def mkstemp(**_: Any) -> tuple[int, str]:
        link = tmp_path / ".last.pt.link.part"
        link.symlink_to("/dev/full")
        return os.open(os.devnull, os.O_RDONLY), str(link)

    path = tmp_path / "last.pt"
    checkpoint.save(path, content(1))
    monkeypatch.setattr(atomic.tempfile, "mkstemp", mkstemp)
    with pytest.raises(UserError, match="disk full"):
        checkpoint.save(path, {"method": torch.zeros(size)})
    with pytest.raises(UserError, match="disk full"):
        atomic.write(path, b"0" * size)
    assert same(checkpoint.load(path), content(1))
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_a_bug_of_ours_is_not_reported_as_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a view of a leaf Variable cannot be overwritten in place")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(RuntimeError) as caught:
        checkpoint.save(tmp_path / "last.pt", content())
    assert not isinstance(caught.value, UserError)
    assert "leaf" in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "last.pt"
    checkpoint.save(path, {"method": {"w": torch.randn(5000, generator=torch.Generator().manual_seed(0))}, "step": 1})
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"not a checkpoint"}[damage])
    with pytest.raises(UserError, match=r"last\.pt") as caught:
        checkpoint.load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    """torch.load would give other weights without a word."""
    path = tmp_path / "last.pt"
    checkpoint.save(path, content())
    whole = path.read_bytes()
    weights = content()["method"]["w"].numpy().tobytes()
    damaged = bytearray(whole)
    damaged[whole.index(weights) + len(weights) // 2] ^= 1
    path.write_bytes(damaged)
    assert not same(torch.load(path, weights_only=True), content())
    checkpoint.save(tmp_path / "best.pt", content())
    with pytest.raises(UserError, match=r"last\.pt is not a checkpoint of ours or is damaged .*best\.pt beside it is"):
        checkpoint.load(path)
    path.write_bytes(whole)
    assert same(checkpoint.load(path), content())


@pytest.mark.parametrize(
    ("key", "value"), [("step", "abc"), ("total", None), ("epoch", None), ("digest", 3), ("method", 3)]
)
def test_an_entry_of_another_kind_is_refused_by_its_name(tmp_path: Path, key: str, value: object) -> None:
    checkpoint.save(tmp_path / "last.pt", {**content(), key: value})
    with pytest.raises(UserError, match=f"it has another kind of '{key}' entry"):
        checkpoint.load(tmp_path / "last.pt")


@pytest.mark.parametrize("key", ["best", "best_also", "measured"])
def test_what_a_training_goes_on_from_must_be_there_to_go_on(tmp_path: Path, key: str) -> None:
    known = {"best": 0.5, "best_also": {}, "measured": {}}
    checkpoint.save(tmp_path / "last.pt", {**content(), **{k: v for k, v in known.items() if k != key}})
    assert same(checkpoint.load(tmp_path / "last.pt"), content())
    with pytest.raises(UserError, match=f"it has no '{key}' entry"):
        checkpoint.load(tmp_path / "last.pt", going_on=True)


@pytest.mark.parametrize("state", [{}, {"w": torch.ones(2)}, {"w": torch.ones(3, 3), "v": 1}])
def test_a_state_that_does_not_fit_is_one_line(tmp_path: Path, state: dict[str, Any]) -> None:
    class Linear:
        def load_state(self, state: dict[str, Any]) -> None:
            torch.nn.Linear(3, 1, bias=False).load_state_dict({"weight": state["w"]})

    with pytest.raises(UserError, match=r"last\.pt does not fit its recipe \(.*\); no other checkpoint") as caught:
        checkpoint.restore(Linear(), {"method": state}, tmp_path / "last.pt")  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("state", [{}, {"w": None}, {"w": [1]}])
def test_a_part_that_is_missing_or_of_another_kind_is_named(tmp_path: Path, state: dict[str, Any]) -> None:
    class Mean:
        def load_state(self, state: dict[str, Any]) -> None:
            self.w = state["w"].clone()

    said = "it has no 'w'" if not state else "object has no attribute 'clone'"
    with pytest.raises(UserError, match=rf"last\.pt does not fit its recipe \(.*{said}\)"):
        checkpoint.restore(Mean(), {"method": state}, tmp_path / "last.pt")  # type: ignore[arg-type]


def test_a_slip_in_a_method_and_a_full_device_are_not_the_checkpoints_fault(tmp_path: Path) -> None:
    class Slip:
        def load_state(self, state: dict[str, Any]) -> None:
            self.nett.load_state_dict(state)  # type: ignore[attr-defined]

    class Full:
        def load_state(self, state: dict[str, Any]) -> None:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    for method, error in ((Slip(), AttributeError), (Full(), RuntimeError)):
        with pytest.raises(error, match=r"nett|out of memory"):
            checkpoint.restore(method, {"method": {}}, tmp_path / "last.pt")  # type: ignore[arg-type]


def test_checkpoints_of_others_are_refused(tmp_path: Path) -> None:
    for number, other in enumerate([{"state_dict": {}}, [1, 2], torch.ones(2)]):
        torch.save(other, tmp_path / f"{number}.pt")
        with pytest.raises(UserError, match="not a checkpoint of ours"):
            checkpoint.load(tmp_path / f"{number}.pt")


@pytest.mark.parametrize("key", ["step", "total", "epoch", "digest"])
def test_a_checkpoint_that_lacks_an_entry_is_refused_by_its_name(tmp_path: Path, key: str) -> None:
    checkpoint.save(tmp_path / "last.pt", {k: v for k, v in content().items() if k != key})
    with pytest.raises(UserError, match=rf"last\.pt is not as a training wrote it: it has no '{key}' entry; no other"):
        checkpoint.load(tmp_path / "last.pt")


def test_loading_runs_no_code(tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save({"method": Malicious()}, tmp_path / "zip.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"method": Malicious()}, protocol=2))
    for name in ("zip.pt", "plain.pt"):
        with pytest.raises(UserError):
            checkpoint.load(tmp_path / name)
    assert not (tmp_path / "harm").exists()


def test_is_finite_looks_everywhere() -> None:
    good = {"a": torch.ones(2), "b": [torch.tensor([1]), {"c": (torch.zeros(1), 3, None, "text")}]}
    assert checkpoint.is_finite(good)
    for wrong in (float("nan"), float("inf"), -float("inf")):
        assert not checkpoint.is_finite({**good, "d": [{"e": torch.tensor([0.0, wrong])}]})


def test_what_only_further_training_needs_is_left_out_for_use() -> None:
    state = {"net": {"optimizer": 1, "weight": 2}, "optimizer": {"lr": 3}, "scaler": 4, "step": 5}
    assert checkpoint.for_use(state) == {
        "net": {"optimizer": None, "weight": 2}, "optimizer": None, "scaler": None, "step": 5,
    }  # fmt: skip


def test_formats_are_refused_as_newer_or_older(tmp_path: Path) -> None:
    checkpoint.check_format(checkpoint.FORMAT, tmp_path)
    with pytest.raises(UserError, match="of format 3, newer than this evenhand reads"):
        checkpoint.check_format(checkpoint.FORMAT + 1, tmp_path)
    for older in (1, "3", None):
        with pytest.raises(UserError, match=f"written by an older evenhand \\(format {older}\\)"):
            checkpoint.check_format(older, tmp_path)
    torch.save({"method": {}}, tmp_path / "first.pt")
    with pytest.raises(UserError, match=r"older evenhand \(format 1\)"):
        checkpoint.load(tmp_path / "first.pt")
