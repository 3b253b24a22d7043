"""``evenhand predict`` and ``evenhand export`` as they are typed."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import evenhand
from evenhand.data.sets.packages import home
from evenhand.measure import frozen
from evenhand.nets import build_net
from evenhand.run.folder import keep_temperature, read_model
from evenhand.run.recipe import validate
from evenhand.run.training import train
from helpers import save_picture, table

Cli = Callable[..., Any]
CLASSES = ("ant", "bee", "cat")


def trained(folder: Path, data: dict[str, Any], **method: Any) -> Path:
    settings = {"name": "classifier", "batch": 8, "net": {"name": "small-cnn", "width": 4}, **method}
    run = {"folder": str(folder), "steps": 4, "progress": False, "threads": 1}
    return train(validate({"data": data, "method": settings, "run": run}, "test"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for split in ("train", "test"):
        for seed, name in enumerate(CLASSES):
            for at in range(6):
                save_picture(root / split / name / f"{at}.png", 22 + at % 2, 20, seed=3 * at + seed)
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    folder = trained(place / "run", {"set": str(photos), "size": 20, "frame": "crop", "val_per_class": 2})
    return Path(shutil.move(folder, place / "moved"))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_folder_becomes_a_table(cli: Cli, run: Path, photos: Path, tmp_path: Path) -> None:
    said = cli("predict", run, photos / "test", "-o", tmp_path / "out.csv")
    assert said.fine() == ""
    found = rows((tmp_path / "out.csv").read_text())
    assert list(found[0]) == ["name", "predicted", "confidence", "second", "second_confidence"]
    assert [row["name"] for row in found] == [f"{name}/{at}.png" for name in CLASSES for at in range(6)]
    probs = evenhand.load(run).probabilities(photos / "test")
    for row, p in zip(found, probs, strict=True):
        first, second = p.topk(2).indices.tolist()
        assert (row["predicted"], row["second"]) == (CLASSES[first], CLASSES[second])
        assert float(row["confidence"]) == pytest.approx(float(p[first]), abs=1e-4)
        assert float(row["second_confidence"]) == pytest.approx(float(p[second]), abs=1e-4)
    assert "18 predicted" in said.err


def test_top_and_batch(cli: Cli, run: Path, photos: Path) -> None:
    all_of_them = rows(cli("predict", run, photos / "test", "--top", 9, "--batch", 5).fine())
    assert list(all_of_them[0])[-2:] == ["third", "third_confidence"]
    total = [sum(float(v) for k, v in row.items() if "confidence" in k) for row in all_of_them]
    assert total == pytest.approx([1.0] * 18, abs=1e-3)
    assert list(rows(cli("predict", run, photos / "test", "--top", 1).fine())[0]) == ["name", "predicted", "confidence"]


def test_lists_arrays_and_several_paths_say_the_same(cli: Cli, run: Path, photos: Path, tmp_path: Path) -> None:
    for at in range(3):
        shutil.copy(photos / "test" / "bee" / f"{at}.png", tmp_path / f"{at}.png")
    expected = [row["confidence"] for row in rows(cli("predict", run, tmp_path).fine())]
    names = [f"{at}.png" for at in range(3)]
    lists = {
        "paths.csv": "\ufeffpath,label\n" + "".join(f"{name},?\n" for name in names),
        "semicolons.csv": "id;path\n" + "".join(f"7;{name}\n" for name in names),
        "bare.csv": "\n".join(names),
        "paths.txt": "\n".join(names) + "\n\n",
        "paths.tsv": "path\tx\n" + "".join(f"{name}\t1\n" for name in names),
    }
    for name, text in lists.items():
        found = rows(cli("predict", run, table(tmp_path, text, name)).fine())
        assert [row["name"] for row in found] == names, name
        assert [row["confidence"] for row in found] == expected, name
    several = rows(cli("predict", run, tmp_path / "0.png", tmp_path / "paths.txt").fine())
    assert [row["confidence"] for row in several] == [expected[0], *expected]
    squares = np.stack([np.asarray(Image.open(tmp_path / "0.png").crop((1, 0, 21, 20)))] * 2)
    np.savez(tmp_path / "a.npz", x=squares, y=np.zeros(2))
    np.save(tmp_path / "a.npy", squares)
    for name in ("a.npz", "a.npy"):
        found = rows(cli("predict", run, tmp_path / name).fine())
        assert [row["name"] for row in found] == [f"{name}/0", f"{name}/1"]
        assert float(found[0]["confidence"]) == pytest.approx(float(expected[0]), abs=2e-4)


def test_what_cannot_be_read_is_listed_at_the_end(cli: Cli, run: Path, photos: Path, tmp_path: Path) -> None:
    for at in range(5):
        shutil.copy(photos / "test" / "bee" / f"{at}.png", tmp_path / f"{at}.png")
    (tmp_path / "2.png").write_bytes(b"no image")
    table(tmp_path, "path\n0.png\n2.png\nnowhere.png\n4.png\n")
    said = cli("predict", run, tmp_path / "list.csv", "--batch", 2)
    assert [row["name"] for row in rows(said.fine())] == ["0.png", "4.png"]
    *_, head, first, second = said.err.splitlines()
    assert head == "evenhand: 2 of 4 inputs could not be read:"
    assert "2.png" in first
    assert "skip_unreadable" not in first
    assert "nowhere.png" in second
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"no image")
    assert "none of 1 inputs could be read; the first: cannot read" in cli("predict", run, tmp_path / "bad").mistake()
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda d: d / "nowhere", "'.*nowhere' does not exist"),
        (lambda d: d, "nothing to predict in"),
        (lambda d: table(d, "file,label\na.png,1\n"), "no column 'path'; "),
        (lambda d: table(d, "", "empty.csv"), "'.*empty.csv' is empty"),
        (lambda d: (d / "x.npz", (d / "x.npz").write_bytes(b"zip?"))[0], "cannot read '.*x.npz'"),
        (lambda d: (d / "y.npz", np.savez(d / "y.npz", a=np.zeros(2), b=np.zeros(2)))[0], "holds a, b; name the array"),
    ],
    ids=["missing", "no images", "column", "empty", "damaged", "arrays"],
)
def test_mistakes_are_one_line(cli: Cli, run: Path, tmp_path: Path, make: Callable[[Path], Path], says: str) -> None:
    import re

    assert re.search(says, cli("predict", run, make(tmp_path)).mistake())


def test_confidences_are_calibrated_on_validation(cli: Cli, run: Path, photos: Path) -> None:
    model = evenhand.load(run)
    measured = json.loads((run / "measure.json").read_text())
    assert model.temperature == measured["temperature"]["value"] == read_model(run).temperature
    logits = torch.cat([model.logits(model.source(photos / "test").fetch(torch.arange(18)))])  # type: ignore[arg-type]
    torch.testing.assert_close(model.probabilities(photos / "test"), (logits / model.temperature).softmax(1))
    assert f"calibrated: temperature {model.temperature:.3g}, fitted on validation" in cli("predict", run, photos).err


def test_without_validation_it_is_said(cli: Cli, photos: Path, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", {"set": str(photos), "size": 20})
    assert read_model(folder).temperature is None
    assert "not calibrated: the run had no validation split" in cli("predict", folder, photos / "test").err


def test_a_perfect_validation_fits_no_temperature(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    keep_temperature(folder, 0.01)
    assert evenhand.load(folder).temperature is None
    assert "fits them, if validation has mistakes" in evenhand.load(folder).calibration


def test_texts_and_tables(cli: Cli, tmp_path: Path) -> None:
    folder = trained(
        tmp_path / "words", {"set": "phrases", "text": {"length": 8}}, net={"name": "text-mean", "width": 8}
    )
    texts = ["the lynx and the otter", "thunder, hail"]
    expected = evenhand.load(folder).predict(texts)
    files = {
        "t.txt": "\n\n".join(texts),
        "t.csv": 'text,more\n"the lynx and the otter",1\n\n"thunder, hail",2\n',
        "t.jsonl": "\n\n".join(json.dumps({"text": text}) for text in texts),
    }
    for name, text in files.items():
        found = rows(cli("predict", folder, table(tmp_path, text, name)).fine())
        assert [row["name"] for row in found] == [f"{name}:1", f"{name}:3"]  # a blank line counts
        assert [row["predicted"] for row in found] == [row.label for row in expected]
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.savez(tmp_path / "v.npz", x=x, y=np.arange(40) % 2)
    data = {"set": str(tmp_path / "v.npz"), "groups": "1/1"}
    folder = trained(tmp_path / "numbers", data, net={"name": "mlp", "width": 4})
    written = "a,b,label,c\n" + "".join(f"{a},{b},?,{c}\n" for a, b, c in x[:4])
    found = rows(cli("predict", folder, table(tmp_path, written, "v.csv")).fine())
    sure = evenhand.load(folder).probabilities(x[:4]).max(1).values
    assert [float(row["confidence"]) for row in found] == pytest.approx(sure.tolist(), abs=1e-4)
    wrong = cli("predict", folder, table(tmp_path, "a,b,c\n1,2,x\n", "w.csv")).mistake()
    assert "row 1: 'c' is 'x', no number; every column but label" in wrong


def test_columns_of_a_table_are_found_by_name(cli: Cli, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).round(3)
    lines = [f"{a},{b * 9},{'no' if i % 2 else 'yes'}" for i, (a, b) in enumerate(x)]
    data = table(tmp_path, "small,large,label\n" + "\n".join(lines) + "\n", "train.csv")
    folder = trained(tmp_path / "run", {"set": str(data), "groups": "1/1"}, net={"name": "mlp", "width": 4})
    usual = table(tmp_path, "small,large\n" + "".join(f"{a},{b * 9}\n" for a, b in x[:5]), "usual.csv")
    other = table(tmp_path, "id,large,small\n" + "".join(f"7,{b * 9},{a}\n" for a, b in x[:5]), "other.csv")
    expected, found = (rows(cli("predict", folder, file).fine()) for file in (usual, other))
    assert [row["confidence"] for row in found] == [row["confidence"] for row in expected]
    missing = cli("predict", folder, table(tmp_path, "small,larg\n1,2\n", "missing.csv")).mistake()
    assert "has no column 'large'; did you mean 'larg'" in missing
    for cells, said in (
        ('"1,5",2', "row 2: 'small' is '1,5'; write it with a point, 1.5"), (",2", "row 2 has no 'small': fill it in"),
        ("1", "row 2 has no 'large'"), ("1,tall", "row 2: 'large' is 'tall', no number; correct it"),
    ):  # fmt: skip
        wrong = cli("predict", folder, table(tmp_path, f"small,large\n1,2\n{cells}\n", "wrong.csv")).mistake()
        assert f"wrong.csv' {said}" in wrong


def test_a_run_on_frozen_features_has_its_backbone_with_it(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(build_net("small-cnn", num_classes=2).state_dict(), tmp_path / "net.pt")
    data = {"set": str(photos), "size": 20, "embed": f"small-cnn:{tmp_path / 'net.pt'}", "embed_size": 32}
    folder = trained(tmp_path / "run", data, net={"name": "mlp", "width": 4})
    before = cli("predict", folder, photos / "test").fine()
    assert len(rows(before)) == 18
    (tmp_path / "net.pt").unlink()
    monkeypatch.setattr(frozen, "_weights", lambda _: pytest.fail("looked elsewhere for the weights"))
    moved = shutil.move(folder, tmp_path / "moved")
    assert cli("predict", moved, photos / "test").fine() == before


def test_weights_of_ours_are_linked_into_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    file = home() / "resnet18.safetensors"
    file.write_bytes(b"weights")
    monkeypatch.setattr(frozen, "obtain_weights", {"resnet18": file}.__getitem__)
    (tmp_path / "run").mkdir()
    frozen.keep_backbone("resnet18", tmp_path / "run")
    kept = frozen.kept_backbone(tmp_path / "run")
    assert kept == tmp_path / "run" / "backbone.safetensors"
    assert kept.samefile(file)
    frozen.keep_backbone("resnet18", tmp_path / "run")  # again, as a resumed run does
    own = tmp_path / "own.pth"
    own.write_bytes(b"mine")
    (tmp_path / "other").mkdir()
    frozen.keep_backbone(f"resnet18:{own}", tmp_path / "other")
    copied = tmp_path / "other" / "backbone.pth"
    assert copied.read_bytes() == b"mine"
    assert not copied.samefile(own)


def test_export_says_where_and_what(cli: Cli, run: Path, tmp_path: Path) -> None:
    said = cli("export", run, "--format", "safetensors", "-o", tmp_path / "out").fine()
    assert said.split() == [
        str(tmp_path / "out" / "model.safetensors"), "about", "it:", str(tmp_path / "out" / "MODEL-CARD.md"),
    ]  # fmt: skip
    assert (tmp_path / "out" / "MODEL-CARD.md").is_file()
    assert "is not a run" in cli("export", tmp_path).mistake()


def test_streams_need_no_list(run: Path, photos: Path) -> None:
    """A folder of any size: the second batch is not read before the first is asked for."""
    model = evenhand.load(run)
    source = model.source(photos / "test")
    fetched: list[int] = []
    real = source.fetch
    source.fetch = lambda rows, chance=None: (fetched.extend(rows.tolist()), real(rows, chance))[1]  # type: ignore[method-assign]
    ranked = model.stream(source, batch=2, top=3)
    name, labels, confidences = next(ranked)
    assert (name, set(labels)) == ("ant/0.png", set(CLASSES))
    assert sum(confidences) == pytest.approx(1)
    assert len(fetched) <= 6
    assert len(list(ranked)) == 17


def test_options_of_detectors_are_refused(cli: Cli, run: Path, photos: Path, tmp_path: Path) -> None:
    said = cli("predict", run, photos / "test", "--min-score", 0.3).mistake()
    assert said == "--min-score has no effect on a run of task classify: leave it out"
    said = cli("predict", run, photos / "test", "-o", tmp_path / "out.json").mistake()
    assert "COCO results are boxes" in said
