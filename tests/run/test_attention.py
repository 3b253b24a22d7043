"""``evenhand attention`` on small runs."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from evenhand.cli import app
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure.attention import attention_distance, entropies
from evenhand.randomness import dice
from evenhand.run.attention import (
    _draw,
    _logged,
    _print,
    _rare,
    _some,
    _spread,
    _stream,
    of_run,
    of_teacher,
    study,
    transformer,
)
from evenhand.run.opening import OpenRun, open_run
from evenhand.run.recipe import validate
from evenhand.run.training import train

SHAPES = {"set": "shapes", "n_max": 8, "imbalance": 4, "test_per_class": 2, "val_per_class": 2}
NET = {"name": "vit-tiny", "width": 8, "depth": 2, "heads": 2}
CNN = {"name": "classifier", "batch": 8, "net": {"name": "small-cnn", "width": 2}}


def trained(folder: Path, method: dict[str, Any], **needs: str) -> Path:
    run = {"folder": str(folder), "steps": 4, "keep_every": 0.4, "log_every": 1, "progress": False}
    return train(validate({"data": SHAPES, "method": method, "run": run, "needs": needs}, "test"))


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("cnn") / "run", CNN)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, cnn: Path) -> Path:
    method = {"name": "deit-lt", "batch": 8, "net": NET}
    return trained(tmp_path_factory.mktemp("taught") / "run", method, teacher=str(cnn))


@pytest.fixture(scope="module")
def opened(taught: Path) -> OpenRun:
    return open_run(taught)


def test_command_writes_numbers_and_pictures(taught: Path) -> None:
    said = CliRunner().invoke(
        app, ["attention", str(taught), "--checkpoints", "--max-samples", "12", "--pictures", "2"]
    )
    assert said.exit_code == 0, said.output
    found = json.loads((taught / "attention.json").read_text())
    kept = sorted(path.name for path in taught.glob("epoch-*.pt"))
    assert len(kept) > 1
    assert [row["checkpoint"] for row in found["rows"]] == kept
    assert [len(block) for block in found["rows"][-1]["distance"]] == [2, 2]
    assert {name: len(ranks) for name, ranks in found["rows"][-1]["rank"].items()} == {"cls": 2, "dist": 2}
    assert len(found["cosine_in_training"]) == 4
    assert found["teacher"].keys() == {"weak", "strong", "mixed"}
    drawing = (taught / "attention.svg").read_text()
    assert drawing.lstrip().startswith("<?xml")
    with Image.open(taught / "attention-rollout.png") as image:
        assert min(image.size) > 100
    for word in ("cosine of CLS and DIST", "teacher on mixed views", "attention-rollout.png"):
        assert word in said.output


def test_numbers_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"checkpoint": "last.pt", "distance": [[3.25, 1.0], [2.0, 4.0]], "rank": {"cls": [5, 7]}, "cosine": 0.25}
    _print({"rows": [row], "teacher": {"weak": {"entropy": 0.5, "accuracy": 0.75}}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["last.pt", "1", "1.0", "3.2", "5", "-"] in lines
    assert ["last.pt", "2", "2.0", "4.0", "7", "-"] in lines
    assert " ".join(lines[-2]) == "last.pt: cosine of CLS and DIST 0.250"
    assert " ".join(lines[-1]) == "teacher on weak views: entropy 0.50 nats, right on 75 %"


def test_numbers_are_those_of_the_network(opened: OpenRun) -> None:
    data, net = opened.data(), transformer(opened)
    found = of_run(opened, data, max_samples=6)
    stream = _stream(data)
    assert stream.name == "val"  # the test split stays closed
    rows = _rare(stream, data, None, 6)
    assert stream.labels is not None
    assert set(stream.labels[rows].tolist()) <= set(data.groups["tail"])
    x = data.see(stream.fetch(rows))
    with torch.no_grad():
        side = x.shape[-1] // 4
        want = [attention_distance(a, 2, side, side, 4).tolist() for a in net.attentions(x)]
        tokens = net.tokens(data.see(stream.fetch(_some(torch.arange(len(stream)), 6, "all"))))
    assert found["distance"] == want
    cosine = torch.nn.functional.cosine_similarity(tokens[:, 0], tokens[:, 1]).mean()
    assert found["cosine"] == pytest.approx(float(cosine))
    assert found["images"] == len(rows) == 6
    named = of_run(opened, data, [data.classes[0]], max_samples=6)
    assert named["distance"] != found["distance"]


def test_the_teacher_is_asked_as_in_training(opened: OpenRun) -> None:
    data, method = opened.data(), opened.method
    found = of_teacher(opened, data, 8)
    assert found == of_teacher(opened, data, 8)
    rows = _some(torch.arange(len(data.labelled)), 8, "teacher")
    raw = data.labelled.fetch(rows)
    chance = dice(0, "attention", "views")
    strong = method.data.train_view(raw, chance)
    answers = entropies(method.teacher(strong))  # type: ignore[attr-defined]
    assert found["strong"]["entropy"] == pytest.approx(float(answers.mean()))
    assert sum(found["weak"]["histogram"]) == pytest.approx(1)
    assert len({round(part["entropy"], 6) for part in found.values()}) == 3


def test_thesis_centring_reaches_the_ranks(opened: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def rank(*_: Any, centre_both: bool) -> int:
        seen.append(centre_both)
        return 1

    monkeypatch.setattr("evenhand.run.attention.feature_rank", rank)
    of_run(opened, opened.data(), max_samples=4, centre_both=False)
    assert set(seen) == {False}


def test_a_transformer_of_one_head_and_what_has_none(tmp_path: Path, cnn: Path) -> None:
    plain = trained(tmp_path / "vit", {**CNN, "net": NET})
    found = study(plain, max_samples=4, pictures=1)
    assert "cosine" not in found["rows"][0]
    assert found["rows"][0]["rank"].keys() == {"cls"}
    assert found["teacher"] == {}
    with pytest.raises(UserError, match="attention is of our vision transformers"):
        study(cnn)
    with pytest.raises(UserError, match="no class is called 'lynx'"):
        study(plain, classes=["lynx"])
    for path in plain.glob("epoch-*.pt"):
        path.unlink()
    with pytest.raises(UserError, match="kept no checkpoints"):
        study(plain, every_checkpoint=True)


def test_the_command_and_the_functions_have_the_same_defaults() -> None:
    numbers = {"max_samples": 256, "pictures": 6, "centre_both": True, "every_checkpoint": False}
    known = inspect.signature(study).parameters
    assert {key: known[key].default for key in numbers} == numbers
    known = inspect.signature(of_run).parameters
    assert (known["max_samples"].default, known["centre_both"].default) == (256, True)
    assert inspect.signature(of_teacher).parameters["max_samples"].default == 256


def test_what_a_teacher_says_is_spread_over_twenty_four_bins() -> None:
    """Two answers that are sure, one of them right, and two that are even: no entropy, and all there can be."""
    most = torch.tensor(2.0).log().item()
    logits = torch.tensor([[90.0, -90.0], [90.0, -90.0], [1.0, 1.0], [1.0, 1.0]])
    found = _spread(logits, torch.tensor([0, 1, 0, 0]), most)
    assert (found["accuracy"], found["largest"]) == (0.75, most)
    assert found["entropy"] == pytest.approx(most / 2)
    assert found["histogram"] == [0.5, *[0] * 22, 0.5]


def test_rare_images_are_of_the_tail_the_smallest_class_or_those_named() -> None:
    stream = Stream(Memory(torch.zeros(8, 1)), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), ("a", "b", "c"), "val")
    data: Any = SimpleNamespace(
        classes=("a", "b", "c"), groups={"tail": [1]}, counts=[5, 3, 9], streams={"val": stream}
    )
    assert sorted(_rare(stream, data, None, 9).tolist()) == [1, 4, 7]
    data.groups = {}
    assert sorted(_rare(stream, data, None, 9).tolist()) == [1, 4, 7]
    assert sorted(_rare(stream, data, ["a", "c"], 9).tolist()) == [0, 2, 3, 5, 6]
    assert len(_rare(stream, data, ["a"], 2)) == 2
    rows = torch.arange(50, 60)
    assert torch.equal(_some(rows, 3, "all"), rows[torch.randperm(10, generator=dice(0, "attention", "all"))[:3]])
    with pytest.raises(UserError, match="has no image of these classes"):
        _rare(stream.subset(torch.tensor([0])), data, ["b"], 2)


def test_cosines_are_those_of_rows_about_training(tmp_path: Path) -> None:
    assert _logged(tmp_path) == []
    rows = [
        {"kind": "train", "epoch": 1, "cosine": 0.5}, {"kind": "val", "epoch": 1, "cosine": 0.1},
        {"kind": "train", "epoch": 2}, {"kind": "train", "epoch": 3, "cosine": 0.25},
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert _logged(tmp_path) == [[1, 0.5], [3, 0.25]]


def test_rollouts_are_drawn_for_each_token_and_their_mean(opened: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("evenhand.run.attention.plot_rollout", lambda *given: told.append(given))
    data = opened.data()
    _draw(opened, data, None, 3, Path("x.png"))
    ((images, titles, maps, path),) = told
    rows, stream = _rare(_stream(data), data, None, 3), _stream(data)
    assert np.array_equal(images, stream.fetch(rows).permute(0, 2, 3, 1).numpy())
    assert titles == [stream.classes[k] for k in stream.labels[rows].tolist()]  # type: ignore[union-attr]
    assert maps.keys() == {"cls", "dist", "mean"}
    assert {one.shape for one in maps.values()} == {(3, 8, 8)}
    np.testing.assert_allclose(maps["mean"], (maps["cls"] + maps["dist"]) / 2, rtol=1e-5)
    assert path == Path("x.png")


def test_the_teacher_sees_images_mixed_as_the_student_does(opened: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    method: Any = opened.method
    monkeypatch.setattr(method, "settings", method.settings.model_copy(update={"mixup": 0.3, "cutmix": 0.7}))

    def mixed(x: torch.Tensor, *_: Any, **given: float) -> tuple[torch.Tensor, None]:
        told.append(given)
        return x, None

    monkeypatch.setattr("evenhand.run.attention.mixup_or_cutmix", mixed)
    of_teacher(opened, opened.data(), 4)
    assert told == [{"mixup_alpha": 0.3, "cutmix_alpha": 0.7}]
