from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenhand.errors import UserError
from evenhand.run.recipe import (
    Need,
    Recipe,
    _same_results,
    _short,
    explained,
    flatten,
    load_recipe,
    parse_override,
    recipe_names,
    smoke_recipe,
    to_toml,
    validate,
    variant_text,
)

LAYERS = """
about = "four layers"

[method]
name = "classifier"
batch = 32
optim.lr = 0.2

[run]
epochs = 7
tensorboard = true
seed = 3

[expect]
mean_recall = { value = 0.5, tolerance = 0.02, source = "authors" }

[smoke]
data = { set = "shapes", n_max = 9 }
run.epochs = 1

[variants]
sam = { method = { batch = 64, optim.name = "sam" }, run.epochs = 8 }
"""


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    file = tmp_path / "layers.toml"
    file.write_text(LAYERS)
    return file


def refusal(name: str | Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(name, overrides)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return file


# precedence


def test_trap_10_defaults_then_recipe_then_variant_then_command_line(layers: Path) -> None:
    plain = load_recipe(layers)
    assert (plain.method.batch, plain.method.optim.lr, plain.run.epochs) == (32, 0.2, 7)
    assert (plain.method.optim.name, plain.method.optim.momentum) == ("sgd", 0.9)
    variant = load_recipe(f"{layers}:sam")
    assert (variant.method.batch, variant.method.optim.name, variant.run.epochs) == (64, "sam", 8)
    assert variant.method.optim.lr == 0.2, "a variant leaves the rest of its tables alone"
    said = load_recipe(f"{layers}:sam", ["method.batch=16", "run.epochs=9", "method.optim.lr=1e-3"])
    assert (said.method.batch, said.run.epochs, said.method.optim.lr) == (16, 9, 1e-3)
    assert said.method.optim.name == "sam"


def test_trap_10_a_later_override_wins(layers: Path) -> None:
    assert load_recipe(layers, ["run.seed=1", "run.seed=2"]).run.seed == 2


def test_a_table_that_is_set_changes_the_keys_it_names(layers: Path, tmp_path: Path) -> None:
    base = load_recipe(f"{layers}:sam")
    said = load_recipe(f"{layers}:sam", ["method.optim={weight_decay = 5e-4}", "method.optim={momentum = 0.5}"])
    assert said.method.optim == base.method.optim.model_copy(update={"weight_decay": 5e-4, "momentum": 0.5})
    assert load_recipe(layers, {"run": {"folder": str(tmp_path), "epochs": 1}}).run == base.run.model_copy(
        update={"folder": str(tmp_path), "epochs": 1}
    )
    assert load_recipe(layers, ["method.optim={}"]).method.optim.lr == 0.1, "an empty one empties the recipe's"


def test_a_need_that_is_set_is_set_whole() -> None:
    name = "selmix-fashion:mean-recall"
    assert load_recipe(name).needs["first"].recipe == "csst-fashion:fixmatch-la"
    before = 'needs.first={recipe="fashion-lt", set={run.epochs=1}}'
    for text, changes in (("{run.steps=7}", {"run.steps": 7}), ('{"run.seed"=1}', {"run.seed": 1})):
        found = load_recipe(name, [before, f'needs.first={{recipe="csst-fashion", set={text}}}']).needs["first"]
        assert found == Need(recipe="csst-fashion", set=changes)


@pytest.mark.parametrize("word", ["false", "False", " false"])
def test_trap_10_false_means_false(layers: Path, word: str) -> None:
    assert load_recipe(layers).run.tensorboard is True
    assert load_recipe(layers, [f"run.tensorboard={word}"]).run.tensorboard is False
    assert load_recipe(layers, ["run.tensorboard=true"]).run.tensorboard is True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=3", 3),
        ("a.b=3e-4", 3e-4),
        ("a.b=[1, 2.5]", [1, 2.5]),
        ('a.b="3"', "3"),
        ("a.b=some words", "some words"),
        ("a.b=x=y", "x=y"),
        ("a.b={c = 1}", {"c": 1}),
        ("a.b=", ""),
    ],
)
def test_override_values_are_toml_or_else_text(text: str, value: object) -> None:
    assert parse_override(text) == ("a.b", value)


@pytest.mark.parametrize("text", ["run.epochs", "=3", ""])
def test_override_without_key_or_value_is_refused(layers: Path, text: str) -> None:
    assert "key=value" in refusal(layers, text)


def test_overrides_may_be_a_mapping(layers: Path) -> None:
    assert load_recipe(layers, {"run.epochs": 2}) == load_recipe(layers, ["run.epochs=2"])


# unknown keys


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("dta", "data"),
        ("data.imbalence", "imbalance"),
        ("run.epoch", "epochs"),
        ("method.los", "loss"),
        ("method.net.widht", "width"),
        ("method.optim.momentun", "momentum"),
        ("expect.mean_recall.tolerence", "tolerance"),
    ],
)
def test_trap_10_unknown_key_is_refused_with_a_hint(layers: Path, tmp_path: Path, key: str, meant: str) -> None:
    message = refusal(layers, f"{key}=1")
    assert f"'{key.rpartition('.')[2]}'" in message
    assert f"did you mean '{meant}'?" in message
    tree = tomllib.loads(LAYERS)
    table, *rest = [tree, *key.split(".")]
    for part in rest[:-1]:
        table = table.setdefault(part, {})
    table[rest[-1]] = 1
    assert f"did you mean '{meant}'?" in refusal(written(tmp_path, to_toml(tree)))


def test_unknown_key_in_a_variant_or_smoke_is_refused_when_used(tmp_path: Path) -> None:
    text = LAYERS.replace("batch = 64", "bach = 64").replace("n_max = 9", "n_mx = 9")
    file = written(tmp_path, text)
    assert "did you mean 'batch'?" in refusal(f"{file}:sam")
    with pytest.raises(UserError, match="did you mean 'n_max'"):
        smoke_recipe(str(file))


# wrong values


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("run.epochs=ten", "run.epochs"),
        ("run.epochs=-1", "run.epochs"),
        ("run.seed=1.5", "run.seed"),
        ("run.tensorboard=maybe", "run.tensorboard"),
        ("run.steps=0", "run.steps"),
        ("data.imbalance=0", "data.imbalance"),
        ("data.kind=linear", "data.kind"),
        ("data.order=alphabet", "data.order"),
        ("method.batch=0", "method.batch"),
        ("method.loss=mse", "method.loss"),
        ("method.optim.lr=[1, 2]", "method.optim.lr"),
        ("method.optim.milestones=[0.5]", "method.optim"),
        ("method.optim.precision=float8", "method.optim.precision"),
        ("method.optim=0.1", "method.optim"),
        ("expect.mean_recall.source=rumour", "expect.mean_recall.source"),
        ("data=shapes", "data"),
        ("method=classifier", "method"),
        ("run=5", "run"),
    ],
)
def test_wrong_value_is_one_line_that_names_the_key(layers: Path, override: str, key: str) -> None:
    assert key in refusal(layers, override)


@pytest.mark.parametrize(
    "text",
    ["run = 5", "method = 5", "method = [1]", "variants = 5", "smoke = 5", "needs = 5", "data = 5"],
)
def test_a_value_where_a_table_belongs_is_one_line(tmp_path: Path, text: str) -> None:
    method = "" if text.startswith("method") else "\n[method]\nname = 'classifier'"
    assert text.split()[0] in refusal(written(tmp_path, text + method))


def test_a_variant_that_is_no_table_is_one_line(tmp_path: Path) -> None:
    file = written(tmp_path, "[method]\nname = 'classifier'\n[variants]\nsam = 5")
    assert "sam" in refusal(f"{file}:sam")


@pytest.mark.parametrize("value", ["foo", "5"])
def test_a_wrong_value_is_named_by_the_key_the_user_wrote(layers: Path, value: str) -> None:
    assert "data.normalise:" in refusal(layers, f"data.normalise={value}")


def test_method_name_is_needed_and_known(tmp_path: Path) -> None:
    assert "method.name is missing" in refusal(written(tmp_path, "[method]\nbatch = 3"))
    assert "method.name is missing" in refusal(written(tmp_path, ""))
    assert "did you mean 'classifier'?" in refusal(written(tmp_path, "[method]\nname = 'clasifier'"))


def test_a_setting_through_a_value_is_refused(layers: Path) -> None:
    assert "method.batch.size" in refusal(layers, "method.batch.size=3")


def test_what_is_not_toml_is_one_line(tmp_path: Path) -> None:
    assert "not valid TOML" in refusal(written(tmp_path, "[run\nepochs = 3"))
    (tmp_path / "image.toml").write_bytes(b"\x89PNG\xff\xfe")
    assert "image.toml" in refusal(tmp_path / "image.toml")


@pytest.mark.parametrize("rule", ["last", "val:mean_recall", "oracle:accuracy"])
def test_selection_rules(layers: Path, rule: str) -> None:
    assert load_recipe(layers, [f"run.select={rule}"]).run.select == rule


@pytest.mark.parametrize("rule", ["best", "test:accuracy", "val", "val:", "oracle", "last:accuracy", ""])
def test_wrong_selection_rules_are_refused(layers: Path, rule: str) -> None:
    message = refusal(layers, f"run.select={rule}")
    assert "run.select" in message
    assert "val:<metric>" in message


# expectations


@pytest.mark.parametrize("change", ["data.imbalance=10", "run.epochs=8", "data.set=mnist", "method.optim.lr=0.1"])
def test_an_expectation_does_not_survive_what_changes_the_result(layers: Path, change: str) -> None:
    assert load_recipe(layers).expect
    assert not load_recipe(layers, [change]).expect
    assert not load_recipe(layers).changed(dict([parse_override(change)])).expect


@pytest.mark.parametrize(
    "change", ["run.seed=5", "data.split_seed=5", "run.threads=2", "run.folder=x", "run.epochs=7", "data.imbalance=1.0"]
)
def test_an_expectation_survives_seeds_and_what_changes_no_result(layers: Path, change: str) -> None:
    assert load_recipe(layers, [change]).expect["mean_recall"].value == 0.5


def test_a_variant_has_its_own_expectations(layers: Path, tmp_path: Path) -> None:
    assert not load_recipe(f"{layers}:sam").expect
    own = "\n[variants.named]\nabout = 'the same'\n[variants.vs]\nmethod.loss = 'vs'\n[variants.vs.expect.tail]\n"
    text = LAYERS.replace("[variants]\n", "[variants]\nsame = { method.loss = 'ce' }\n")
    file = written(tmp_path, text + own + "value = 0.3\ntolerance = 0.1\nsource = 'measured'\nseeds = [0, 1]\n")
    assert load_recipe(f"{file}:named").expect == load_recipe(f"{file}:same").expect == load_recipe(file).expect
    assert list(load_recipe(f"{file}:vs").expect) == ["tail"]
    assert load_recipe(f"{file}:vs").expect["tail"].seeds == [0, 1]
    assert not load_recipe(f"{file}:vs", ["method.vs_tau=1"]).expect


def test_an_expectation_given_with_the_change_is_kept(layers: Path) -> None:
    own = load_recipe(layers, ["run.epochs=8", "expect.tail={value = 0.1, tolerance = 0.1, source = 'measured'}"])
    assert list(own.expect) == ["tail"]
    again = load_recipe(layers, ["run.epochs=8", "expect.mean_recall.value=0.6"])
    assert again.expect["mean_recall"].value == 0.6


def test_a_recipe_over_a_base_has_not_its_expectations(layers: Path, tmp_path: Path) -> None:
    text = LAYERS + "vs = { method.loss = 'vs', expect.tail = { value = 0.3, tolerance = 0.1, source = 'authors' } }\n"
    below = layers.with_name("below.toml")
    below.write_text(text)
    base = f"base = {json.dumps(str(below))}\n"
    renamed = written(tmp_path, base + "about = 'words'\nrun.seed = 4")
    assert load_recipe(renamed).expect
    assert load_recipe(f"{renamed}:vs").expect
    other = written(tmp_path, base + "data.imbalance = 20")
    assert not load_recipe(other).expect
    assert not load_recipe(f"{other}:vs").expect
    variant = written(tmp_path, base + "variants.vs.method.vs_tau = 1.0")
    assert load_recipe(variant).expect
    assert not load_recipe(f"{variant}:vs").expect


# bases


def test_a_recipe_lies_over_its_base(layers: Path, tmp_path: Path) -> None:
    file = written(tmp_path, f"base = {json.dumps(str(layers))}\nmethod.batch = 48\nvariants.sam.run.epochs = 6")
    recipe = load_recipe(file)
    assert (recipe.method.batch, recipe.method.optim.lr, recipe.run.epochs) == (48, 0.2, 7)
    variant = load_recipe(f"{file}:sam", ["method.batch=8"])
    assert (variant.method.batch, variant.method.optim.name, variant.run.epochs) == (8, "sam", 6)
    assert "base" not in variant.toml()


def test_unknown_or_circular_base_is_one_line(tmp_path: Path) -> None:
    assert "did you mean 'fashion-lt'?" in refusal(written(tmp_path, "base = 'fashon-lt'"))
    assert "5" in refusal(written(tmp_path, "base = 5"))
    mine = tmp_path / "mine.toml"
    assert "base" in refusal(written(tmp_path, f"base = {json.dumps(str(mine))}"))


# names


def test_unknown_recipe_and_variant(layers: Path) -> None:
    assert "did you mean 'fashion-lt'?" in refusal("fashon-lt")
    assert "did you mean 'sam'?" in refusal(f"{layers}:sma")
    assert "no variant 'none'" in refusal("fashion-lt:none")


def test_folder_names_recipe_variant_and_seed(layers: Path) -> None:
    assert load_recipe("fashion-lt").run.folder == "runs/fashion-lt-0"
    assert load_recipe("fashion-lt:ce-sam", ["run.seed=2"]).run.folder == "runs/fashion-lt-ce-sam-2"
    assert load_recipe("fashion-lt", ["run.folder=here"]).run.folder == "here"
    assert load_recipe(layers, ["run.seed=1"]).run.folder == "runs/layers-1"


def test_folder_names_the_seed_that_the_recipe_itself_sets(layers: Path) -> None:
    assert load_recipe(layers).run.seed == 3
    assert load_recipe(layers).run.folder == "runs/layers-3"


def test_smoke_table_cuts_the_recipe(layers: Path) -> None:
    smoke = smoke_recipe(str(layers))
    assert (smoke.data.set, smoke.data.n_max, smoke.run.epochs, smoke.method.batch) == ("shapes", 9, 1, 32)


def test_flatten_names_every_leaf() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": 3}) == {"a.b": 1, "a.c.d": [2], "e": 3}


# text and back


def again(recipe: Recipe) -> Recipe:
    return validate(tomllib.loads(recipe.toml()), "again")


positive = st.floats(1e-12, 1e12)
plain_text = st.text(st.characters(min_codepoint=32, max_codepoint=126))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {
            "about": plain_text,
            "method.optim.lr": positive,
            "method.optim.clip": st.none() | positive,
            "method.optim.nesterov": st.booleans(),
            "method.optim.rho_values": st.just([]) | st.lists(positive, min_size=1, max_size=1),
            "method.net.width": st.none() | st.integers(1, 64),
            "run.seed": st.integers(0, 2**40),
            "run.folder": plain_text.map(lambda text: f"{text}-0"),  # it must have a name
            "data.order": st.sampled_from(["index", "reversed"]) | st.lists(plain_text, max_size=3),
            "data.normalise": st.just("data") | st.lists(st.just([0.5, 1e-3, 1e22]), min_size=2, max_size=2),
            "needs": st.dictionaries(plain_text, plain_text, max_size=2),
        }
    )
)
def test_toml_round_trip(values: dict[str, object]) -> None:
    recipe = load_recipe("fashion-lt", values).model_copy(update={"smoke": {}, "variants": {}})
    assert again(recipe) == recipe
    assert again(recipe).digest() == recipe.digest()


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_toml_keeps_any_text(text: str) -> None:
    tree = {"value": text, "list": [text], "table": {text: 1}}
    assert tomllib.loads(to_toml(tree)) == tree


@pytest.mark.parametrize("text", ["😀 beyond the first plane", "é", "\x7f", 'a\nb\t"c" \\', "[x] # y = 1"])
def test_any_text_is_a_key_and_a_value_of_toml(text: str) -> None:
    """JSON writes what lies beyond the first plane as two surrogates, which TOML refuses."""
    tree = {text: text, "in": {text: [text, True, 0.5]}}
    assert tomllib.loads(to_toml(tree)) == tree


def test_saved_recipe_is_read_back_from_its_file(layers: Path, tmp_path: Path) -> None:
    recipe = load_recipe(layers, ["run.folder=here", "method.optim.lr=0.2"])
    back = load_recipe(written(tmp_path, recipe.toml()))
    assert back == recipe.model_copy(update={"smoke": {}, "variants": {}})
    assert back.expect["mean_recall"].tolerance == 0.02


@pytest.mark.parametrize("name", [*recipe_names(), "layers", "layers:sam"])
def test_explained_recipe_reads_back_as_the_same_recipe(layers: Path, tmp_path: Path, name: str) -> None:
    recipe = load_recipe(name.replace("layers", str(layers)))
    text = explained(recipe)
    assert load_recipe(written(tmp_path, text)) == recipe.model_copy(update={"variants": {}})
    assert "# where the run is written" in text
    assert all(variant in text for variant in recipe.variants)


def test_explained_recipe_shows_unset_keys_as_comments(layers: Path) -> None:
    text = explained(load_recipe(layers))
    assert "# clip =" in text
    assert "steps" not in tomllib.loads(text)["run"]


# digest


@pytest.mark.parametrize(
    "same",
    [
        "run.folder=elsewhere", "run.device=cpu", "run.progress=false", "run.resume=true", "run.stop_after=3",
        "run.threads=1", "run.workers=0", "run.tensorboard=false", "about=other words",
        "expect.mean_recall.value=0.9",
    ],
)  # fmt: skip
def test_digest_ignores_what_cannot_change_the_result(layers: Path, same: str) -> None:
    assert load_recipe(layers, [same]).digest() == load_recipe(layers).digest()


@pytest.mark.parametrize(
    "other",
    [
        "run.seed=4", "method.optim.lr=0.3", "run.epochs=8", "data.imbalance=2", "method.loss=vs",
        "run.select=val:g_mean", "data.split_seed=1", "needs.first=somewhere",
    ],
)  # fmt: skip
def test_digest_names_what_is_trained(layers: Path, other: str) -> None:
    assert load_recipe(layers, [other]).digest() != load_recipe(layers).digest()


@pytest.mark.parametrize("names", [("domain-adversarial", "sdat"), ("fixmatch", "crest"), ("gan", "gsr-gan")])
def test_digest_tells_methods_with_the_same_keys_apart(names: tuple[str, str]) -> None:
    first, second = (validate({"method": {"name": name}}, name) for name in names)
    assert first.digest() != second.digest()


def test_digest_does_not_depend_on_how_numbers_are_written(layers: Path) -> None:
    assert load_recipe(layers, ["run.epochs=8"]).digest() == load_recipe(layers, ["run.epochs=8.0"]).digest()


def test_recipe_is_read_only(layers: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_recipe(layers).run.epochs = 3


HUGE = str(10**400)


@pytest.mark.parametrize(
    "override",
    [
        f"run.steps={HUGE}", f"run.seed={2**63}", f"run.epochs={HUGE}", "run.epochs=inf", "run.eval_every=inf",
        "run.threads=100000", "run.workers=100000", f"run.eval_batch={HUGE}", f"data.split_seed={2**64}",
        f"data.n_max={HUGE}", f"data.val_per_class={10**15}", "data.size=1000000", f"method.batch={HUGE}",
        f"method.net.width={HUGE}", f"method.optim.lr={HUGE}", f"run.steps=1{'0' * 5000}", f"run.seed=-{HUGE}",
    ],
)  # fmt: skip
def test_numbers_beyond_reason_are_one_short_line(layers: Path, override: str) -> None:
    said = refusal(layers, override)
    assert override.partition("=")[0].rpartition(".")[2] in said
    assert len(said.replace(str(layers), "")) < 200


@pytest.mark.parametrize("key", ["samples", "judge_samples"])
def test_more_drawn_images_than_anyone_can_draw_are_one_line(key: str) -> None:
    with pytest.raises(UserError, match=rf"{key}.*10000000"):
        load_recipe("gsr-fashion", [f"method.measure.{key}={10**15}"])


def test_an_integer_that_python_does_not_read_is_one_line(tmp_path: Path) -> None:
    assert "not valid TOML" in refusal(written(tmp_path, f"[run]\nsteps = 1{'0' * 5000}\n"))


def test_a_variant_is_a_small_recipe_of_its_own(tmp_path: Path) -> None:
    text = variant_text("fashion-lt", "ce-drw")
    assert text.startswith('base = "fashion-lt"\n')
    file = tmp_path / "mine.toml"
    file.write_text(text)
    mine, theirs = load_recipe(file), load_recipe("fashion-lt:ce-drw")
    assert mine.essence() == theirs.essence()


def test_what_was_typed_is_told_shortly() -> None:
    assert _short("x" * 198) == repr("x" * 198)
    assert _short("x" * 199) == repr("x" * 199)[:30] + "... of 201 characters"


def test_two_trees_are_one_experiment_whatever_their_seeds() -> None:
    tree = {"method": {"name": "classifier"}, "data": {"set": "shapes"}}
    seeds = {**tree, "run": {"seed": 3, "progress": False}, "data": {"set": "shapes", "split_seed": 4}}
    assert _same_results(tree, seeds)
    assert not _same_results(tree, {**tree, "run": {"epochs": 3}})
    wrong = {**tree, "method": {"name": "classifier", "loss": "none such"}}
    assert _same_results(tree, wrong)  # it is told of as it was written
    assert not _same_results(wrong, tree)


def test_nothing_that_cannot_be_written_is_refused_by_its_key() -> None:
    """TOML has no None: left out of a run's recipe, a key would mean its default."""
    both = {"method.optim.clip": None, "method.optim.ema": None}  # of which the first is None by default
    with pytest.raises(UserError, match=r"^method\.optim\.ema = None cannot be written into a recipe"):
        load_recipe("csst-fashion:fixmatch", both)
    assert load_recipe("csst-fashion:fixmatch", {"method.optim.clip": None}).method.optim.ema
    assert load_recipe("csst-fashion:fixmatch", {"method.optim.ema": 0}).method.optim.ema == 0
