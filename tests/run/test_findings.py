"""What ``look`` finds, says and advises; the recipe that ``train FOLDER`` chooses from it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.report.look import write_look
from evenhand.run import choosing
from evenhand.run.advice import advise, rules
from evenhand.run.choosing import choose, is_data, seconds_of
from evenhand.run.findings import Copies, Findings, find, reading_of
from evenhand.run.looking import facts, problems, tell
from evenhand.run.objects import Objects
from evenhand.run.recipe import load_recipe
from helpers import scene, truncate


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    """A folder with one of everything."""
    root = tmp_path / "photos"
    for i in range(12):
        scene(root / "train" / "ant" / f"{i}.png", i)
    for i in range(3):
        scene(root / "train" / "bee" / f"{i}.png", 50 + i, (40, 90))
    scene(root / "train" / "cow" / "only.png", 90)
    for name, seed in (("ant", 200), ("bee", 201)):
        scene(root / "test" / name / "0.png", seed)
    (root / "train" / "dog").mkdir()
    copy = (root / "train" / "ant" / "0.png").read_bytes()
    (root / "train" / "ant" / "again.png").write_bytes(copy)  # within a class
    (root / "test" / "bee" / "leak.png").write_bytes((root / "train" / "bee" / "1.png").read_bytes())  # across splits
    (root / "train" / "bee" / "wrong.png").write_bytes((root / "train" / "ant" / "5.png").read_bytes())  # two labels
    Image.open(root / "train" / "ant" / "7.png").resize((36, 36)).save(root / "train" / "ant" / "near.jpg", quality=70)
    Image.new("L", (30, 30), 255).save(root / "train" / "ant" / "white.png")
    truncate(scene(root / "train" / "ant" / "broken.png", 77))
    (root / "train" / "ant" / "notes.pdf").write_bytes(b"x")
    (root / "readme.md").write_text("x")
    return root


def test_everything_is_found_in_one_pass(messy: Path) -> None:
    found = find(messy)
    assert found.counts == {
        "train": {"ant": 16, "bee": 4, "cow": 1}, "test": {"ant": 1, "bee": 2, "cow": 0},
    }  # fmt: skip
    assert found.imbalance == 16
    assert found.single == ("cow",)
    assert [Path(p).name for p in found.empty] == ["dog"]
    assert [Path(p).name for p in found.unreadable] == ["broken.png"]
    assert [Path(p).name for p in found.blank] == ["white.png"]
    assert found.ignored == {".pdf": 1, ".md": 1}
    assert found.groups == {"head": ["ant"], "mid": ["bee"], "tail": ["cow"]}
    told = {(c.near, c.across): {Path(name).name for name in c.names} for c in found.copies}
    assert told == {
        (False, ""): {"0.png", "again.png"},
        (False, "splits"): {"1.png", "leak.png"},
        (False, "classes"): {"5.png", "wrong.png"},
        (True, ""): {"7.png", "near.jpg"},
    }
    assert found.pictures is not None
    assert found.pictures.modes == {"RGB": 22, "L": 1}
    assert (found.pictures.smallest, found.pictures.largest) == ((30, 30), (40, 90))
    assert found.spoils


def test_the_table_has_every_class_and_every_problem_a_line(messy: Path) -> None:
    found = find(messy)
    say = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    tell(found, advise(found), say)
    text = say.export_text()
    for name in ("ant", "bee", "cow"):
        assert name in text
    for said in (
        "error: cannot read image", "empty class folders", "single sample: cow", "imbalance 16.0", "1 .pdf",
        "sets of exact copies in two splits", "exact copies under two labels", "near copies within a class",
        "1 blank images", "modes: RGB 22, L 1", "advice: evenhand train pretrained", "measured: ",
    ):  # fmt: skip
        assert said in text.replace("\n", " "), said


def test_brackets_of_a_path_are_said_as_they_stand() -> None:
    say = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    tell(Findings("[red]", refused="no images in 'photos [bold] 2024'"), [], say)
    assert "no images in 'photos [bold] 2024'" in say.export_text()


def test_facts_are_reckoned_from_the_counts() -> None:
    found = Findings("p", classes=("a", "b"), counts={"all": {"a": 20, "b": 10}}, unlabelled={"unlabelled": 90})
    assert list(facts(found)) == [
        "2 classes, largest 20, smallest 10: imbalance 2.0", "unlabelled: 90 of 120 samples (75%)",
    ]  # fmt: skip
    assert list(facts(replace(found, unlabelled={}, words=(7, 31))))[1:] == ["words: median 7, longest 31"]


def test_copies_are_named_by_two_of_them() -> None:
    some = (Copies(False, "splits", ("x.png", "y.png", "z.png")), Copies(False, "splits", ("u.png", "v.png")))
    (line,) = problems(Findings("p", copies=some))
    assert "2 sets of exact copies in two splits, such as x.png = y.png; " in line


def test_folders_that_differ_are_told_apart(tmp_path: Path) -> None:
    for i in range(40):
        scene(tmp_path / "studio" / ("ant", "bee")[i % 2] / f"{i}.png", i)
        scene(tmp_path / "street" / ("ant", "bee")[i % 2] / f"{i}.png", 100 + i, tint=90)
        scene(tmp_path / "again" / ("ant", "bee")[i % 2] / f"{i}.png", 300 + i)
    found = find(tmp_path)
    assert set(found.domains) == {"studio", "street", "again"}
    assert found.shift["street", "studio"] > 0.9
    assert found.shift["again", "studio"] < 0.75
    assert "warning: 'street' and 'studio' differ" in "\n".join(problems(found))
    first = advise(found)[0]
    assert first.name == "two domains"
    assert 'data.source=["again"]' in first.set


def test_texts_and_arrays(tmp_path: Path) -> None:
    rows = [f"a fine day number {i} in the old town by the sea,good" for i in range(6)] + ["so bad,bad", "So BAD!,bad"]
    (tmp_path / "t.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    found = find(tmp_path / "t.csv")
    assert found.counts == {"all": {"bad": 2, "good": 6}}
    assert found.words == (12, 12)
    assert [(c.near, c.across, len(c.names)) for c in found.copies] == [(False, "", 2)]
    assert (advise(found)[0].recipe, advise(found)[0].set[1:]) == ("texts", ("method.loss=la",))
    (tmp_path / "even.csv").write_text("text,label\n" + "a,x\nb,x\nc,y\nd,y\n" + "e e,\n" * 40)
    even = advise(find(tmp_path / "even.csv"))[0]
    assert even.set[1:] == ()
    assert "the 40 unlabelled texts are not used" in even.reason
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8), y=[0, 1] * 10)
    assert find(tmp_path / "a.npz").kind == "images"
    np.savez(tmp_path / "v.npz", x=np.random.default_rng(0).normal(size=(20, 4)), y=[0, 1] * 10)
    assert advise(find(tmp_path / "v.npz"))[0].recipe == "vectors"


def test_advice_follows_counts_and_every_rule_can_be_reached() -> None:
    base = Findings("p", kind="images", classes=("a", "b"), counts={"all": {"a": 50, "b": 50}})
    assert advise(base)[0].name == "even"
    uneven = replace(base, counts={"all": {"a": 90, "b": 10}})
    assert [a.name for a in advise(uneven)] == ["uneven, small", "uneven, by sampling"]
    assert "method.loss=la" in advise(uneven)[0].command
    assert advise(replace(base, counts={"all": {"a": 9000, "b": 1000}}))[0].name == "uneven, large"
    assert advise(replace(base, unlabelled={"unlabelled": 400}))[0].name == "few labels"
    assert advise(replace(base, unlabelled={"unlabelled": 400}))[0].set == ("data.set=p",)  # 40 labels a class are left
    scarce = replace(base, counts={"all": {"a": 50, "b": 30}}, unlabelled={"unlabelled": 400})
    assert "data.val_share=0.2" in advise(scarce)[0].set
    assert advise(replace(scarce, counts={**scarce.counts, "val": {"a": 1, "b": 1}}))[0].set == ("data.set=p",)
    assert advise(replace(base, refused="no")) == []
    for rule in rules():
        load_recipe(rule["recipe"])
        assert rule["reason"]
        assert rule["evidence"]


def test_figures_of_the_evidence_stand_on_the_pages_it_names() -> None:
    for rule in rules():
        pages = set(re.findall(r"benchmarks/results/[\w-]+\.md", rule["evidence"]))
        text = " ".join((Path(__file__).parents[2] / page).read_text() for page in pages)
        for figure in re.findall(r"\d+\.\d+(?: ± \d+\.\d+)?", re.sub(r"--set \S+", "", rule["evidence"])):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", text), (rule["name"], figure)


def test_the_page_shows_thumbnails_and_needs_no_network(messy: Path, tmp_path: Path) -> None:
    found = find(messy)
    page = write_look(tmp_path / "look.html", found, [*facts(found), *problems(found)], ["do <this>"]).read_text()
    assert page.count("<img") >= 8
    assert "do &lt;this&gt;" in page
    for title in ("exact copies across splits", "exact copies across classes", "exact copies ", "near copies "):
        assert page.count(f"<h3>{title}</h3>") == 1
    assert "http" not in page
    assert page.index("<td>ant</td>") < page.index("<td>bee</td>") < page.index("<td>cow</td>")


# a recipe without a recipe


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for k, count in (("ant", 12), ("bee", 3)):
        for i in range(count):
            scene(tmp_path / "mine" / k / f"{i}.png", i + 40 * (k == "bee"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choosing, "obtain_weights", lambda _: Path("weights"))
    monkeypatch.setattr(choosing, "seconds_to_embed", lambda _, side: side / 1000)
    return Path("mine")


def test_frozen_features_come_first_and_the_reason_is_written_down(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = choose(str(photos))
    assert (recipe.data.set, recipe.data.embed, recipe.data.embed_size) == ("mine", "mobilenet_v2", 224)
    assert (recipe.method.loss, recipe.method.net.name, recipe.method.batch) == ("la", "linear", 32)
    assert recipe.run.folder == "runs/mine-first-0"
    assert "chosen for mine: the largest class has 4.0 times" in recipe.toml()
    said = capsys.readouterr().out
    assert "about 0 min 3 s" in said.replace("\n", " ")
    assert "recipe: pretrained" in said


def test_a_tenth_is_held_out_to_calibrate_where_it_can_be_spared(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(12, 20):
        scene(photos / "ant" / f"{i}.png", i)
    assert choose(str(photos)).data.val_share is None  # three bees
    assert "held out" not in capsys.readouterr().out
    for i in range(3, 20):
        scene(photos / "bee" / f"{i}.png", i + 40)
    assert choose(str(photos), seed=1).data.val_share == 0.1
    assert "a tenth of every class is held out, to calibrate confidences on" in capsys.readouterr().out
    assert choose(str(photos), ["data.val_share=0"], seed=2).data.val_share == 0
    for k in ("ant", "bee"):
        (photos / k).rename(photos.parent / k)
        (photos / "train").mkdir(exist_ok=True)
        (photos.parent / k).rename(photos / "train" / k)
        scene(photos / "val" / k / "0.png", 90 + (k == "bee"))
    assert choose(str(photos), seed=3).data.val_share is None  # they bring one


def test_a_budget_makes_the_images_smaller(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose(str(photos), budget=2.6).data.embed_size == 160
    head = choosing.HEAD * 15 / 32 * choose(str(photos)).run.epochs  # a step of the head takes a batch of 32
    for budget, side in ((0.224 * 15 + head + 0.01, 224), (0.224 * 15 + head - 0.01, 160)):
        assert choose(str(photos), budget=budget).data.embed_size == side
    assert choose(str(photos), budget=0.1).data.embed_size == 96
    assert "not enough" in capsys.readouterr().out
    assert choose(str(photos), ["data.embed_size=64"], budget=0.1, seed=3).data.embed_size == 64
    assert choose(str(photos), ["method.loss=ce"], seed=3).run.seed == 3


def test_without_weights_it_says_so_and_trains_from_scratch(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: str) -> Path:
        raise UserError("no network")

    monkeypatch.setattr(choosing, "obtain_weights", missing)
    monkeypatch.setattr(choosing, "build_method", lambda *_: None)
    monkeypatch.setattr(choosing, "time_steps", lambda *_: (0.5, 600, 10))
    recipe = choose(str(photos), ["method.net.width=2"], budget=60)
    assert recipe.method.net.name == "resnet18"
    assert recipe.method.net.weights is None
    assert recipe.data.embed == ""
    assert recipe.method.loss == "la"
    assert recipe.run.epochs == pytest.approx(60 * 60 / 330, abs=0.01)
    assert "cannot be had (no network); a ResNet-18 is trained from scratch" in capsys.readouterr().out.replace(
        "\n", " "
    )


def test_fine_tuning_takes_the_side_that_leaves_three_epochs(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "build_method", lambda *_: None)
    sides = []

    def timed(_: object, __: object, recipe: object, ___: torch.device) -> tuple[float, int, int]:
        side = recipe.data.size  # type: ignore[attr-defined]
        sides.append(side)
        return side**2 / 1e4, 20, 1  # seconds a step, one step an epoch

    monkeypatch.setattr(choosing, "time_steps", timed)
    recipe = choose(str(photos), budget=6, fine_tune=True)
    assert sides == [160, 128]
    assert (recipe.data.size, recipe.method.net.weights) == (128, "mobilenet_v2")
    assert 3 <= recipe.run.epochs < 4
    assert recipe.run.folder == "runs/mine-fine-tune-0"
    fixed = choose(str(photos), ["run.epochs=1", "data.size=96"], budget=6, fine_tune=True)
    assert (fixed.run.epochs, fixed.data.size) == (1, 96)


def test_a_run_that_is_there_is_not_looked_over_again(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs/mine-first-0").mkdir(parents=True)
    Path("runs/mine-first-0/last.pt").touch()
    monkeypatch.setattr(choosing, "find", lambda _: pytest.fail("looked"))
    with pytest.raises(UserError, match=r"already holds a run.*--resume"):
        choose(str(photos))


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_tables_of_one_name_have_runs_of_their_own(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"my p.{kind}").touch()
    Path(f"runs/my p-{kind}-first-0").mkdir(parents=True)
    Path(f"runs/my p-{kind}-first-0/last.pt").touch()
    with pytest.raises(UserError, match=f"evenhand train 'runs/my p-{kind}-first-0' --resume"):
        choose(f"my p.{kind}")


def test_several_processes_would_choose_differently(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="in one process; then train the recipe"):
        choose(str(photos))


def test_an_override_without_a_value_is_one_line(photos: Path) -> None:
    with pytest.raises(UserError, match="method"):
        choose(str(photos), ["method.loss"])


def test_what_is_data_and_how_long_a_budget_is(photos: Path) -> None:
    assert is_data(str(photos))
    assert not is_data("folder")
    assert not is_data("missing")
    Path("run").mkdir()
    Path("run/recipe.toml").touch()
    assert not is_data("run")
    assert [seconds_of(text) for text in ("90s", "10m", "1.5h", "2 min")] == [90, 600, 5400, 120]
    for wrong in ("10", "m", "0m", "-1h"):
        with pytest.raises(UserError, match=r"--budget .*such as 10m"):
            seconds_of(wrong)


# bad input: one line with the remedy


def test_an_empty_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no images under .*; add some \(\.jpg") as error:
        choose(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_folder_of_pdfs_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    for i in range(3):
        (tmp_path / "ant" / f"{i}.pdf").write_bytes(b"%PDF")
    with pytest.raises(UserError, match=r"no images under .*3 \.pdf"):
        choose(str(tmp_path))
    assert find(tmp_path).ignored == {".pdf": 3}


def test_one_class_only_is_one_line(tmp_path: Path) -> None:
    for i in range(3):
        scene(tmp_path / "ant" / f"{i}.png", i)
    with pytest.raises(UserError, match=r"single class, 'ant': put the images of each class in a folder"):
        choose(str(tmp_path))
    found = find(tmp_path)
    assert "error: a single class, 'ant': put the images of each class in a folder" in list(problems(found))
    assert advise(found) == []  # what train would refuse is not advised


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"ant": 1, "bee": 1}, "every class has fewer than 2 different samples"),
        ({"train/ant": 4, "train/bee": 4, "test/bee": 1, "test/cow": 2}, "no training samples of class cow"),
    ],
)
def test_look_stops_where_training_does(
    tmp_path: Path, counts: dict[str, int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for k, (folder, count) in enumerate(counts.items()):
        for i in range(count):
            scene(tmp_path / folder / f"{i}.png", 10 * k + i)
    found = find(tmp_path)
    assert found.spoils
    assert advise(found) == []
    assert any(line.startswith(f"error: {said}") for line in problems(found))
    with pytest.raises(UserError, match=said):
        choose(str(tmp_path))
    assert said not in capsys.readouterr().out  # an error is told once


def test_copies_of_one_picture_cannot_be_parted(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        for i in range(3):
            scene(tmp_path / name / f"{i}.png", len(name) + ord(name[0]))
    assert find(tmp_path).lacks.startswith("every class has fewer than 2 different samples")


def test_copies_among_unlabelled_samples_do_not_flatter_a_test(tmp_path: Path) -> None:
    for name, seeds in (("train/ant", (1, 2)), ("train/bee", (3, 4)), ("test/ant", (1,)), ("unlabelled", (2, 7, 8))):
        for seed in seeds:
            scene(tmp_path / name / f"{seed}.png", seed)
    told = {c.across: {Path(name).name for name in c.names} for c in find(tmp_path).copies}
    assert told == {"splits": {"1.png"}, "unlabelled": {"2.png"}}
    flatter, harmless = problems(replace(find(tmp_path), shift={}))
    assert (flatter.split(":")[0], "flatters" in flatter) == ("warning", True)
    assert (harmless.split(":")[0], "flatters" in harmless) == ("info", False)


def test_no_labelled_image_is_one_line(tmp_path: Path) -> None:
    for i in range(3):
        scene(tmp_path / "unlabelled" / f"{i}.png", i)
    with pytest.raises(UserError, match=r"no labelled images: put the images of each class in a folder"):
        choose(str(tmp_path))


def test_a_line_of_pixels_is_named_with_the_remedy(tmp_path: Path) -> None:
    for k in ("ant", "bee"):
        for i in range(3):
            scene(tmp_path / k / f"{i}.png", i + len(k))
    Image.new("RGB", (1, 10_000)).save(tmp_path / "bee" / "line.png")
    with pytest.raises(UserError, match=r"cannot read image .*line\.png.*too narrow.*replace or remove it"):
        choose(str(tmp_path))


def test_files_of_the_same_name_in_two_classes_keep_their_folder(tmp_path: Path) -> None:
    scene(tmp_path / "ant" / "a.png", 1)
    (tmp_path / "bee").mkdir()
    (tmp_path / "bee" / "a.png").write_bytes((tmp_path / "ant" / "a.png").read_bytes())
    found = find(tmp_path)
    assert [c.across for c in found.copies] == ["classes"]
    assert len(set(found.copies[0].names)) == 2


@pytest.mark.parametrize("slash", ["\uff0f", "\u2215", "\u2044"])
def test_a_name_with_a_false_slash_is_told_of(tmp_path: Path, slash: str) -> None:
    scene(tmp_path / "ant" / "a.png", 1)
    scene(tmp_path / f"bee{slash}wasp" / "a.png", 2)
    with pytest.raises(UserError, match=r"looks like a slash; rename it"):
        choose(str(tmp_path))


def test_a_file_listed_twice_is_one_line(tmp_path: Path) -> None:
    scene(tmp_path / "a.png", 1)
    scene(tmp_path / "b.png", 2)
    (tmp_path / "list.csv").write_text("path,label\na.png,ant\nb.png,bee\na.png,bee\n")
    with pytest.raises(UserError, match=r"a\.png' is listed twice, in all as ant and in all as bee; keep one"):
        choose(str(tmp_path / "list.csv"))


def test_a_table_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    scene(tmp_path / "a.png", 1)
    scene(tmp_path / "b.png", 2)
    (tmp_path / "list.csv").write_bytes(b"\xef\xbb\xbfpath,label\r\na.png,ant\r\nb.png,bee\r\n")
    assert find(tmp_path / "list.csv").counts == {"all": {"ant": 1, "bee": 1}}


# by hand

BOXES = Objects({}, {}, 0, {}, None, None, (), (), (), (), ())


def test_training_samples_are_those_of_no_test() -> None:
    counts = {
        "train": {"a": 3, "b": 1},
        "x/train": {"a": 4},
        "val": {"a": 9},
        "x/test": {"b": 9},
        "test-night": {"b": 2},
    }
    found = Findings("p", classes=("a", "b"), counts=counts)
    assert found.train == {"a": 7, "b": 3}
    assert replace(found, objects=BOXES).train == {"a": 7, "b": 1}  # of scenes it is one more test
    assert replace(found, objects=BOXES, domains=("test-night",)).train == {"a": 7, "b": 3}
    assert replace(found, objects=BOXES).single == ("b",)
    assert found.single == ()


@pytest.mark.parametrize(
    ("counts", "imbalance", "alone"),
    [({"a": 6, "b": 4}, 1.5, ""), ({"a": 6, "b": 0}, 1.0, "a"), ({}, 1.0, ""), ({"a": 0, "b": 0}, 1.0, "")],
)
def test_imbalance_is_of_the_classes_there_are(counts: dict[str, int], imbalance: float, alone: str) -> None:
    found = Findings("p", counts={"all": counts})
    assert (found.imbalance, found.alone) == (imbalance, alone)
    assert replace(found, objects=BOXES).alone == ""


def test_what_is_lacking_has_one_line() -> None:
    sound = Findings("p", classes=("a", "b"), counts={"all": {"a": 2, "b": 2}}, inseparable="cannot be parted")
    assert sound.lacks == "cannot be parted"
    assert replace(sound, refused="no").lacks == ""
    hidden = replace(sound, counts={"all": {"a": 0, "b": 0}}, unlabelled={"u": 9})
    assert hidden.lacks.startswith("no labelled images")
    assert replace(hidden, unlabelled={}).lacks.startswith("no training samples of class a, b")
    assert replace(sound, counts={"all": {"a": 2, "b": 0}}).lacks.startswith("a single class, 'a'")
    lone = replace(sound, classes=("a", "b", "c"), counts={"all": {"a": 2, "b": 2, "c": 0}})
    assert lone.lacks.startswith("no training samples of class c")
    scenes = replace(sound, counts={"all": {"a": 2, "b": 0}}, objects=BOXES)
    assert scenes.lacks.startswith("no training object of class b")
    assert replace(scenes, domains=("x",)).lacks == ""
    assert replace(scenes, counts={"all": {"a": 2, "b": 1}}).lacks == ""


def test_whatever_stops_training_spoils_the_data() -> None:
    sound = Findings("p", classes=("a", "b"), counts={"all": {"a": 2, "b": 2}})
    assert not sound.spoils
    assert not replace(sound, objects=BOXES).spoils
    for wrong in ({"refused": "no"}, {"unreadable": {"f": "m"}}, {"empty": ("c",)}, {"inseparable": "no"}):
        assert replace(sound, **wrong).spoils  # type: ignore[arg-type]
    for part in ("faults", "missing", "flat"):
        assert replace(sound, objects=replace(BOXES, **{part: ("x",)})).spoils
    for part in ("outside", "resized", "idle"):
        assert not replace(sound, objects=replace(BOXES, **{part: ("x",)})).spoils


def test_six_files_of_a_class_are_shown(tmp_path: Path) -> None:
    for i in range(8):
        scene(tmp_path / "ant" / f"{i}.png", i)
    for i in range(2):
        scene(tmp_path / "bee" / f"{i}.png", 50 + i)
    found = find(tmp_path)
    assert {name: len(files) for name, files in found.examples.items()} == {"ant": 6, "bee": 2}


def test_classes_are_shared_only_where_that_is_asked() -> None:
    assert reading_of(DataSettings(classes="intersection"))["classes"] == "intersection"
    assert reading_of(DataSettings())["classes"] is None
    assert reading_of(DataSettings(skip_unreadable=True))["skip_unreadable"]
