"""Every recipe that we ship, as far as seconds without a network can tell."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import typer

from evenhand.cli import app
from evenhand.methods import method_class
from evenhand.run import train
from evenhand.run.recipe import Recipe, explained, load_recipe, recipe_names, recipe_text, smoke_recipe

EACH_VARIANT = [f"{name}:{variant}" for name in recipe_names() for variant in load_recipe(name).variants]


def test_there_are_recipes() -> None:
    assert {"fashion-lt", "cifar10-lt"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_says_what_it_does_and_how_to_run_it(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.about
    assert f"evenhand train {name}" in recipe_text(name) or f"evenhand reproduce {name}" in recipe_text(name)
    assert tomllib.loads(explained(recipe))["about"] == recipe.about


@pytest.mark.parametrize("name", [*recipe_names(), *EACH_VARIANT])
def test_recipe_and_variant_parse(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.run.folder == f"runs/{name.replace(':', '-')}-0"
    assert not recipe.run.select.startswith("oracle"), "a recipe of ours never selects on test"
    for expected in recipe.expect.values():
        assert expected.tolerance > 0


@pytest.mark.parametrize("name", recipe_names())
def test_variants_differ_from_each_other(name: str) -> None:
    variants = list(load_recipe(name).variants)
    digests = {load_recipe(f"{name}:{variant}").digest() for variant in variants}
    assert len(digests) == len(variants)


@pytest.mark.parametrize("name", recipe_names())
def test_trap_17_smoke_run_needs_no_network(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError(f"{name} opens a connection")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "no-data"))
    recipe = smoke_recipe(name)
    run = recipe.run.model_copy(update={"folder": str(tmp_path / "run"), "progress": False, "threads": 1})
    folder = train(recipe.model_copy(update={"run": run}), smoke=True)
    result = json.loads((folder / "measure.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert result["split"] == "test"
    if "mean_recall" in result:  # a classifier, not a generator
        assert 0 <= result["min_recall"] <= result["mean_recall"] <= 1
        assert {"head", "tail"} <= result["group_recall"].keys()


def commands(name: str) -> list[list[str]]:
    """What a recipe's comments tell to type, as a shell would take it apart."""
    comments = "\n".join(line.lstrip("# ") for line in recipe_text(name).splitlines() if line.startswith("#"))
    lines = comments.replace("\\\n", " ").splitlines()
    typed = [line for line in lines if re.match(r"(evenhand|torchrun|python) ", line)]
    return [shlex.split(part, comments=True) for line in typed for part in line.split(" && ")]


@pytest.mark.parametrize("name", recipe_names())
def test_commands_in_comments_can_be_typed(name: str) -> None:
    assert commands(name)
    for words in commands(name):
        program, *rest = words
        if program == "torchrun":
            program, rest = "evenhand", rest[rest.index("evenhand") + 1 :]
        assert program == "evenhand"
        command: Any = typer.main.get_command(app).commands[rest[0]]  # type: ignore[attr-defined]
        context = command.make_context(rest[0], rest[1:])
        overrides = context.params.get("set_") or []
        for variant in context.params.get("only") or [""]:
            load_recipe(f"{context.params['name']}:{variant}" if variant else context.params["name"], overrides)


def test_commands_are_read_as_a_shell_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "# Words.\n#   evenhand train adapt --set 'data.source=[\"a\"]' \\\n#     --set data.set=b && evenhand list\n"
    )
    monkeypatch.setitem(globals(), "recipe_text", lambda _: text)
    assert commands("adapt") == [
        ["evenhand", "train", "adapt", "--set", 'data.source=["a"]', "--set", "data.set=b"], ["evenhand", "list"],
    ]  # fmt: skip


# Which variant is there to be better than which, in the paper or in our tables: (recipes, worse, better, metrics).
LONGTAIL, CIFAR = ("ce-drw", "ldam-drw", "vs"), ("cifar10-lt", "cifar10-step", "cifar100-lt", "cifar100-step")
EFFECTS = [
    *((r, v, f"{v}-sam", ("mean_recall", "tail")) for r in CIFAR for v in LONGTAIL),
    *((r, v, f"{v}-sam", ("mean_recall", "tail")) for r in ("imagenet-lt", "inaturalist-2018") for v in LONGTAIL[:2]),
    *((r, "ce-drw", f"ce-drw-{o}", ("tail",)) for r in ("cifar10-lt", "cifar100-lt") for o in ("pgd", "lpf")),
    *(("office-home", v, f"{v}-sdat", ("accuracy",)) for v in ("dann", "cdan", "cdan-mcc")),
    *(("office-home", v, "cdan-sdat", ("accuracy",)) for v in ("vat", "ls", "swad", "sam", "sdat-all", "sdat-adv")),
    *(("office-home-vit", v, f"{v}-sdat", ("accuracy",)) for v in ("dann", "cdan", "cdan-mcc")),
    *((r, v, f"{v}-sdat", ("mean_recall",)) for r in ("visda", "visda-vit") for v in ("cdan", "cdan-mcc")),
    ("domainnet", "cdan", "cdan-sdat", ("accuracy",)),
    ("csst-cifar10", "fixmatch", "csst-min-recall", ("min_recall",)),
    ("csst-cifar10", "fixmatch", "csst-coverage", ("min_coverage",)),
    ("csst-cifar10", "csst-no-kl", "csst-coverage", ("mean_recall",)),
    ("csst-cifar100", "csst-no-kl", "csst-coverage", ("mean_recall",)),
    ("csst-imagenet100", "csst-no-kl", "csst-coverage", ("mean_recall",)),
    ("csst-imdb", "uda", "csst", ("mean_recall", "min_recall")),
    ("csst-imdb", "uda-100", "csst-100", ("mean_recall", "min_recall")),
    ("csst-dbpedia", "uda", "csst", ("mean_recall", "min_recall")),
    ("fashion-lt", "ce", "ce-drw", ("mean_recall", "tail")),
    ("fashion-lt", "ce-drw", "ce-drw-sam", ("ece",)),
    ("fashion-lt", "la", "la-sam", ("ece",)),
    *(("cifar10-lt-small", v, f"{v}-sam", ("mean_recall", "tail")) for v in ("ce-drw", "vs", "la")),
    ("csst-fashion", "erm", "la", ("mean_recall", "tail")),
    ("csst-fashion", "erm", "fixmatch", ("mean_recall", "tail")),
    ("imdb-lt", "erm", "la", ("mean_recall", "min_recall")),
    *(("imdb-lt", v, "csst", ("mean_recall", "min_recall")) for v in ("uda", "la")),
    *(("reuters", v, "csl", ("mean_recall", "tail")) for v in ("erm", "uda")),
    ("reuters", "uda", "csst", ("mean_recall", "tail")),
    ("reuters", "csst", "csl", ("mean_recall",)),
    *(("emoji-home", v, f"{v}-sdat", ("accuracy",)) for v in ("dann", "cdan", "cdan-mcc")),
    ("digits-shift", "dann", "dann-sdat", ("accuracy",)),
    ("digits-shift", "source-only", "dann", ("accuracy",)),
    ("cbgan-fashion", "sndcgan", "balance", ("fid", "label_kl")),
    ("cbgan-cifar10", "sndcgan", "balance", ("fid", "label_kl")),
    *((r, "snresgan", "balance", ("fid", "label_kl")) for r in ("cbgan-cifar100", "cbgan-lsun")),
    *((r, "cgan", "balance", ("fid",)) for r in ("cbgan-cifar10", "cbgan-cifar100", "cbgan-lsun")),
    *(("cbgan-inaturalist", v, "balance", ("label_kl",)) for v in ("snresgan", "cgan", "acgan")),
    *(("gsr-cifar10", v, f"{v}-gsr", ("fid", "class_fid_mean")) for v in ("sngan", "biggan")),
    ("gsr-cifar10", "sngan-plain", "sngan-plain-gsr", ("fid",)),
    *(("gsr-cifar10", v, "sngan-gsr", ("fid",)) for v in ("sngan-gsn", "sngan-gsrip", "lsgan")),
    *(("gsr-lsun", v, v.replace("gan", "gan-gsr"), ("fid",)) for v in ("sngan", "biggan", "biggan-128", "biggan-1000")),
    ("gsr-inaturalist", "biggan", "biggan-gsr", ("fid",)),
    *(("gsr-fashion", f"sndcgan{h}", f"gsr{h}", ("tail_patterns",)) for h in ("", "-help")),
    ("gsr-fashion", "sndcgan", "sndcgan-help", ("tail_patterns",)),
    *(("gsr-fashion", f"{v}-help", v, ("fid",)) for v in ("sndcgan", "gsr")),
    *(("noisytwins-fashion", "stylegan2", v, ("tail_z_sensitivity",)) for v in ("noise", "twins", "noisy-twins")),
    ("noisytwins-fashion", "noisy-twins", "stylegan2", ("fid",)),
    *(("deit-cifar10-small", v, "deit-lt", ("mean_recall",)) for v in ("vit", "deit", "no-teacher", "weak-views")),
    *(("selmix-fashion", "uniform-min-recall", v, ("min_recall",)) for v in ("min-recall", *(
        f"{how}-min-recall" for how in (
            "greedy", "accumulated", "hedge", "frozen", "cutmix", "legacy", "memory", "labelled", "absolute", "fixmatch"
        )
    ))),
    *(("selmix-fashion", v, "mean-recall", ("mean_recall",)) for v in ("crt", "mislas")),
    ("selmix-fashion", "crt", "mislas", ("ece",)),
    ("selmix-cifar10-small", "crt", "mean-recall", ("mean_recall",)),
    ("selmix-cifar10-small", "mislas", "mean-recall-coverage", ("min_recall",)),
    ("active-emoji", "fine-tune", "vaada", ("accuracy",)),
    ("active-digits", "vaada", "fine-tune", ("accuracy",)),
    *(("emoji-scenes", v, "oracle", ("map50",)) for v in ("source-only", "da-faster", "sdat", "sdat-all")),
    *(("emoji-scenes", "source-only", v, ("map50",)) for v in ("da-faster", "sdat", "sdat-all")),
]  # fmt: skip
LOWER = ("ece", "fid", "class_fid_mean", "kid", "label_kl", "mid")
SHOWN = {
    "fid": (2, 1), "mid": (2, 1), "label_kl": (3, 1), "kid": (1, 1000), "tail_z_sensitivity": (2, 1),
    "tail_patterns": (2, 1),
}  # fmt: skip
MEASURED = ("fashion-lt", "cifar10-lt-small", "csst-fashion", "imdb-lt", "reuters", "emoji-home", "digits-shift")


@pytest.mark.parametrize(("name", "worse", "better", "metrics"), EFFECTS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_tolerance_is_smaller_than_the_effect_it_guards(
    name: str, worse: str, better: str, metrics: tuple[str, ...]
) -> None:
    low, high = load_recipe(f"{name}:{worse}").expect, load_recipe(f"{name}:{better}").expect
    for metric in metrics:
        gain = (high[metric].value - low[metric].value) * (-1 if metric in LOWER else 1)
        assert max(low[metric].tolerance, high[metric].tolerance) < gain, metric


@pytest.mark.parametrize("name", [*MEASURED, "cbgan-fashion", "gsr-fashion", "noisytwins-fashion"])
def test_recipes_that_were_run_here_say_what_came_out(name: str) -> None:
    texts = {"imdb-lt": "csst", "reuters": "csst"}
    tables = {"csst-fashion": "csst", "cbgan-fashion": "generators", "gsr-fashion": "generators", **texts}
    tables["noisytwins-fashion"] = "noisytwins"
    table = tables.get(name, name)
    text = (Path(__file__).parents[2] / "benchmarks" / "results" / f"{table}.md").read_text()
    found = 0
    for variant in load_recipe(name).variants:
        for metric, expected in load_recipe(f"{name}:{variant}").expect.items():
            assert expected.source == "measured"
            assert expected.seeds
            assert expected.date.startswith("2026-")
            digits, scale = SHOWN.get(metric, (1, 100))
            shown = re.escape(f"{scale * expected.value:.{digits}f}")  # among emoji-home's pairs without its spread
            assert re.search(rf"(?<![\d.]){shown} [±|]", text), f"{variant}: {metric} is not in {table}.md"
            found += 1
    assert found


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

LEDGERS = sorted((BENCHMARKS / "results" / "kept").glob("*.jsonl"))
RUNS = [json.loads(line) for ledger in LEDGERS for line in ledger.read_text().splitlines()]
KEPT = {run["digest"]: run["numbers"] for run in RUNS}
SEEDS = sorted({run["seed"] for run in RUNS})


def variants_run_as_they_are() -> set[str]:
    """By the rows of tables: these are found whatever a digest is made of."""
    found = set()
    for ledger in LEDGERS:
        table = BENCHMARKS / "tables" / f"{ledger.stem}.toml"
        declared = tomllib.loads(table.read_text()) if table.exists() else {"all_set": ["another program's"]}
        if "all_set" not in declared:
            ran = {json.loads(line)["row"] for line in ledger.read_text().splitlines()}
            found |= {asked for row in ran if isinstance(asked := declared["rows"].get(row), str) and "@" not in asked}
    return found


AS_THEY_ARE = variants_run_as_they_are()


@pytest.fixture(scope="module")
def whole_digest() -> Callable[[Recipe], str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("table").whole_digest


@pytest.mark.parametrize("name", recipe_names())
def test_expectations_are_the_means_of_the_runs_that_were_kept(
    name: str, whole_digest: Callable[[Recipe], str]
) -> None:
    """Runs of the variant as it is, seed s on split s; a row that sets something besides is of other settings."""
    silent = {}
    for variant in load_recipe(name).variants:
        recipe = load_recipe(f"{name}:{variant}")
        digests = {seed: whole_digest(recipe.changed({"run.seed": seed, "data.split_seed": seed})) for seed in SEEDS}
        runs = {seed: KEPT[digest] for seed, digest in digests.items() if digest in KEPT}
        assert runs or f"{name}:{variant}" not in AS_THEY_ARE, f"{variant}: its runs are not found"
        if len(runs) > 1 and all(expected.source != "measured" for expected in recipe.expect.values()):
            silent[variant] = [*runs]
        places = {m.key: ".".join(m.path) for m in method_class(recipe.method.name).task.metrics}
        for metric, expected in recipe.expect.items():
            found = [runs.get(seed, {}).get(places.get(metric, metric)) for seed in expected.seeds]
            if expected.splits and None not in found:  # some numbers of a head alone are not kept
                assert expected.value == pytest.approx(fmean(found), abs=6e-4), f"{variant}: {metric}"
    assert not silent, f"variants of {name} have kept runs (of these seeds) and expect nothing measured: {silent}"


@pytest.mark.parametrize("name", EACH_VARIANT)
def test_expected_numbers_are_measured(name: str) -> None:
    recipe = load_recipe(name)
    known = {metric.key for metric in method_class(recipe.method.name).task.metrics} | {"class_fid_mean"}
    assert recipe.expect.keys() <= known
