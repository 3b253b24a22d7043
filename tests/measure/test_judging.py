"""Which classes a judge of drawn images names, and in what order; what it measures: ``methods/test_generate.py``."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure import judging
from evenhand.measure.frechet import fid
from evenhand.measure.judging import Judge, Measure, _few, group_means, same_classes, spread
from evenhand.measure.manifold import pattern_share
from evenhand.randomness import dice


@pytest.fixture
def judge() -> Judge:
    data: Any = SimpleNamespace(classes=("ant", "bee", "cow", "dog", "eel"), counts=(9, 7, 5, 3, 1))
    return Judge(Measure(), data, None, cast(Any, torch.device("cpu")))


def test_groups_mean_is_of_the_classes_that_have_a_value() -> None:
    groups = {"head": [0, 3], "mid": [1], "tail": [2, 4]}
    assert group_means([0.5, None, 0.2, 1.0, None], groups) == {"head": 0.75, "mid": None, "tail": 0.2}


class Thirds(nn.Module):
    """Features are the first three pixels; the class is the brightest of them."""

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :3]

    def head(self, x: Tensor) -> Tensor:
        return x


def images(labels: list[int], seed: int) -> Tensor:
    """Of class k, pixel k is bright; the rest is noise."""
    pixels = torch.randint(60, (len(labels), 1, 2, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    pixels.view(len(labels), 4)[torch.arange(len(labels)), torch.tensor(labels)] += 150
    return pixels


def annotated_judge(**settings: Any) -> Judge:
    facts = SimpleNamespace(size=[2, 2])
    data: Any = SimpleNamespace(classes=("ant", "bee", "cow"), counts=(5, 9, 1), inputs=1, facts=facts)
    by = SimpleNamespace(
        network=Thirds, logit_scale=2.0,
        data=SimpleNamespace(classes=data.classes, inputs=1, facts=facts, see=lambda x: x.float() / 255),
    )  # fmt: skip
    return Judge(Measure(**settings), data, by, torch.device("cpu"))


def stream(labels: list[int], name: str = "val", seed: int = 0) -> Stream:
    return Stream(Memory(images(labels, seed)), torch.tensor(labels), ("ant", "bee", "cow"), name)


def seen(x: Tensor) -> Tensor:
    return x.flatten(1)[:, :3].float() / 255


def test_an_evaluation_logs_distance_shares_and_variety() -> None:
    judge, real = annotated_judge(alarm=0.0), stream([0, 1, 2] * 20)
    drawn, asked = images([0] * 30 + [1] * 15 + [2] * 15, 1), torch.tensor([0] * 30 + [1] * 15 + [2] * 15)
    found = judge.scalars(drawn, asked, real, batch=7)
    assert found["fid"] == pytest.approx(float(fid(seen(real.fetch(torch.arange(60))), seen(drawn))))
    assert [found[f"share:{name}"] for name in ("ant", "bee", "cow")] == [0.5, 0.25, 0.25]
    assert found["label_kl"] == pytest.approx(0.5 * math.log(1.5) + 0.5 * math.log(0.75))
    spreads, patterns = judge.variety(seen(real.fetch(torch.arange(60))), real, seen(drawn), asked)
    for name, values in (("diversity", spreads), ("patterns", patterns)):
        assert found[name] == sorted(values)[1]  # type: ignore[type-var]
        assert found[f"{name}_min"] == min(values)  # type: ignore[type-var]
        assert found[f"{name}:bee"] == values[1]
    assert found["collapsed"] == 0
    assert judge.scalars(drawn, None, real, batch=7) == found  # the annotator sees what was asked for
    swapped = judge.scalars(drawn, asked.flip(0), real, batch=7)
    assert (swapped["share:ant"], swapped["diversity:ant"] != found["diversity:ant"]) == (0.5, True)


def test_variety_is_drawn_over_real_class_by_class() -> None:
    judge = annotated_judge()
    real, fake = torch.tensor([[0.0], [2.0], [5.0], [7.0], [7.0]]), torch.tensor([[1.0], [2.0], [5.0], [8.0], [9.0]])
    labelled = Stream(Memory(real), torch.tensor([0, 0, 1, 2, 2]), ("ant", "bee", "cow"), "val")
    spreads, patterns = judge.variety(real, labelled, fake, torch.tensor([0, 0, 1, 2, 2]))
    assert spreads == [pytest.approx(0.5), None, None]  # one image, or all alike: nothing to compare with
    assert patterns == [None] * 3
    hidden = Stream(Memory(real), None, ("ant", "bee", "cow"), "val")
    assert judge.variety(real, hidden, fake, torch.tensor([0, 0, 1, 2, 2]))[0] == [None] * 3
    assert float(spread(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))) == pytest.approx(5)
    many, few = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(12, 2)
    whole = Stream(Memory(many), torch.zeros(30, dtype=torch.int64), ("ant", "bee", "cow"), "val")
    assert judge.variety(many, whole, few, torch.zeros(12))[1][0] == pattern_share(many, few)


def test_without_held_out_images_training_images_are_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PEERS", 12)
    judge, known = annotated_judge(alarm=0.0), stream([0] * 40 + [1] * 30 + [2] * 11, "train")
    some = judge._few_seen(known)
    assert some.counts == [12, 12, 11]
    assert some.name == "some of train"
    rows = torch.randperm(81, generator=dice(0, "alarm")).tolist()
    first = [row for row in rows if row < 40][:12] + [row for row in rows if 40 <= row < 70][:12]
    assert [some.samples.name(at) for at in range(24)] == [str(row) for row in first]
    assert judge._few_seen(known) is some
    assert judge._few_seen(stream([0, 1, 2], "train")).counts == [1, 1, 1]
    drawn = images([0, 1, 2] * 20, 1)
    found = judge.watch(drawn, None, known, batch=7)
    assert "fid" not in found
    assert found["share:ant"] == pytest.approx(1 / 3)
    assert found == judge.watch(drawn, torch.tensor([0, 1, 2] * 20), known, batch=7)
    turned = judge.watch(drawn, torch.tensor([1, 2, 0] * 20), known, batch=7)
    assert turned["share:ant"] == pytest.approx(1 / 3)
    assert turned["diversity"] != found["diversity"]
    again = judge._few_seen(known)
    spreads, _ = judge.variety(seen(again.fetch(torch.arange(35))), again, seen(drawn), torch.tensor([0, 1, 2] * 20))
    assert found["diversity:cow"] == spreads[2]


def test_what_was_asked_for_needs_no_annotator_to_be_watched() -> None:
    """Variety is by the labels asked for, in any judge's features; shares are not told."""
    judge, known, asked = annotated_judge(), stream([0, 1, 2] * 20, "train"), torch.tensor([0, 1, 2] * 20)
    drawn = images([0, 1, 2] * 20, 1)
    drawn[1::3] = drawn[1]
    with pytest.warns(UserWarning, match=r"of class 'bee' \(0\.\d\d\) are much alike"):
        whole = judge.watch(drawn, asked, known, batch=7)
    judge.annotator = None
    judge.__dict__["extractor"] = judging.annotator(Thirds(), lambda x: x.float() / 255, "toy")  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=r"of class 'bee' \(0\.\d\d\) are much alike"):
        found = judge.watch(drawn, asked, known, batch=7)
    assert found == {key: value for key, value in whole.items() if key != "label_kl" and "share" not in key}
    assert found["collapsed"] == 1
    assert judge.watch(drawn, None, known, batch=7) == {}


def test_none_collapsed_is_said_of_classes_that_were_judged() -> None:
    judge, few = annotated_judge(), stream([0, 1, 2] * 9)
    found = judge.scalars(images([0, 1, 2] * 9, 1), None, few, batch=9)
    assert "diversity" in found
    assert not {"patterns", "collapsed"} & found.keys()


def test_the_final_table_has_groups_and_what_it_depends_on() -> None:
    judge, real = annotated_judge(neighbours=4, alarm=0.0), stream([0, 1, 2] * 20)
    labels = [0] * 30 + [1] * 20 + [2] * 10
    drawn, groups = images(labels, 1), {"head": [0, 1], "tail": [2]}
    table = judge.table(drawn, torch.tensor(labels), real, groups, batch=16)
    assert (table["k"], table["samples"], table["groups"], table["dimensions"]) == (4, 60, groups, 3)
    assert (table["features"], table["resize"]) == ("annotator", "the classifier's own view")
    assert table["reference"] == "val, 60 images"
    assert table["features_digest"] == judge.extractor.digest()
    assert table["class_shares"] == pytest.approx([1 / 2, 1 / 3, 1 / 6])
    assert table["group_shares"] == pytest.approx({"head": 5 / 6, "tail": 1 / 6})
    assert table["annotator_agreement"] == 1
    assert table["group_agreement"] == {"head": 1, "tail": 1}
    values = [score["value"] for score in table["class_fid"]]
    assert table["group_fid"] == pytest.approx({"head": (values[0] + values[1]) / 2, "tail": values[2]})
    assert "inception_score" not in table
    features = seen(real.fetch(torch.arange(60)))
    assert (table["diversity"], table["patterns"]) == judge.variety(features, real, seen(drawn), torch.tensor(labels))
    ant, bee, cow = table["patterns"]
    assert ant != bee
    assert table["group_patterns"] == pytest.approx({"head": (ant + bee) / 2, "tail": cow})
    lacking = judge.table(images([0, 0, 1] * 9, 1), None, real, groups, batch=16)
    assert lacking["class_shares"] == pytest.approx([2 / 3, 1 / 3, 0])
    unasked = judge.table(drawn, None, real, groups, batch=16)
    assert unasked["diversity"] == table["diversity"]
    assert "group_agreement" not in unasked
    logits = torch.nn.functional.softmax(2 * seen(drawn), 1)
    assert table["annotator_score"] == pytest.approx(
        math.exp(float((logits * (logits / logits.mean(0)).log()).sum(1).mean())), rel=1e-5
    )


def test_without_an_annotator_nothing_is_labelled() -> None:
    judge = annotated_judge(features="inception")
    judge.annotator = None
    judge.__dict__["extractor"] = judging.annotator(Thirds(), seen, "toy")  # type: ignore[arg-type]
    found = judge.scalars(images([0, 1, 2] * 5, 1), None, stream([0, 1, 2] * 5), batch=4)
    assert list(found) == ["fid"]
    table = judge.table(images([0, 1, 2] * 5, 1), None, stream([0, 1, 2] * 5), {"head": [0]}, batch=4)
    assert not {"class_shares", "diversity", "annotator_score"} & table.keys()
    assert table["inception_score"] > 1  # these features' own classes
    with pytest.raises(UserError, match=r"set needs\.annotator"):
        judge.label(images([0], 1))


def test_labels_are_the_annotators_and_reals_are_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, sizes, made = annotated_judge(), [], judging.embed

    def counted(extractor: Any, samples: Any, *, batch: int) -> Any:
        sizes.append((len(samples), batch))
        return made(extractor, samples, batch=batch)

    monkeypatch.setattr(judging, "embed", counted)
    assert judge.label(images([2, 0, 1], 1)).tolist() == [2, 0, 1]
    assert judge.label(images([1], 1), batch=3).tolist() == [1]
    assert sizes == [(3, 512), (1, 3)]
    one, other = stream([0, 1], "val"), stream([2, 1], "val")
    first = judge._real(one, 5)
    assert judge._real(one, 5) is first
    assert not torch.equal(judge._real(other, 5).features, first.features)  # another stream of the same name
    assert len(sizes) == 4
    other_way = annotated_judge()
    other_way.__dict__["extractor"] = judging.annotator(Thirds(), lambda x: -seen(x), "other")  # type: ignore[arg-type]
    drawn = images([0, 1, 2], 1)
    logits = other_way._annotated(made(other_way.extractor, drawn, batch=3), drawn, 3)
    assert logits is not None
    assert logits.argmax(1).tolist() == [0, 1, 2]  # the annotator's, not those of what features are by


def test_features_are_by_whom_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "fid_inception", lambda weights, device: ("inception", weights, str(device)))
    monkeypatch.setattr(judging, "mobilenet", lambda device: ("mobilenet", str(device)))
    assert annotated_judge(features="inception", inception="x.pth").extractor == ("inception", "x.pth", "cpu")
    assert annotated_judge(features="mobilenet_v2").extractor == ("mobilenet", "cpu")
    own = annotated_judge()
    assert own.extractor is own.annotator
    assert Measure().model_dump() == {
        "features": "annotator", "inception": None, "judge_samples": 2000, "samples": 10_000, "neighbours": 5,
        "alarm": 0.5,
    }  # fmt: skip
    assert (judging.TRACED, judging.PEERS) == (20, 100)


def test_the_rarest_classes_are_traced() -> None:
    names = tuple(f"c{k}" for k in range(30))
    data: Any = SimpleNamespace(classes=names, counts=[k % 7 for k in range(30)])
    judge = Judge(Measure(), data, None, torch.device("cpu"))
    assert len(judge.traced) == 20
    assert judge.traced == sorted(judge.traced)
    assert {data.counts[k] for k in judge.traced} == {0, 1, 2, 3, 4}
    assert [k for k in range(30) if k not in judge.traced] == [5, 6, 12, 13, 18, 19, 20, 25, 26, 27]


def test_long_lists_are_cut_and_means_pass_over_what_is_no_number() -> None:
    assert _few(list("abcd")) == "['a', 'b', 'c']... (4)"
    assert _few(list("abc")) == "['a', 'b', 'c']"
    assert _few(3) == "3"
    assert group_means([math.nan, 2.0, math.inf], {"all": [0, 1, 2], "odd": [0]}) == {"all": 2.0, "odd": None}


def test_a_classifier_of_other_data_is_refused() -> None:
    def known(classes: str = "abcd", inputs: int = 3, size: int = 8) -> Any:
        return SimpleNamespace(classes=tuple(classes), inputs=inputs, facts=SimpleNamespace(size=[size, size]))

    same_classes(known(), known(), "annotator")
    for other, said in ((known("abce"), "other classes"), (known(inputs=1), "other channels"), (known(size=9), "size")):
        with pytest.raises(UserError, match=rf"needs\.annotator was trained for .*{said}"):
            same_classes(other, known(), "annotator")
