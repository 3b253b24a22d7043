"""Texts from CSV, JSONL and built-in packages to tokens: what is read, refused, numbered, and never leaked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.sets import phrases
from evenhand.data.settings import DataSettings
from evenhand.data.sources.files import Files
from evenhand.data.sources.formats import read
from evenhand.data.sources.soundness import check
from evenhand.data.sources.texts import Texts, pack, unpack
from evenhand.data.stream import Stream
from evenhand.data.uneven import make_longtailed
from evenhand.data.vocabulary import PAD, UNKNOWN, Pieces, Words, words
from evenhand.errors import UserError

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

ROWS = [
    ("a fine film", "good", "train"),
    ("a fine, fine cast", "good", "train"),
    ("a dull film", "bad", "train"),
    ("so dull", "bad", "train"),
    ("who knows this zebra", "", "unlabelled"),
    ("validwords fine", "good", "val"),
    ("validwords dull", "bad", "val"),
    ("testwords fine", "good", "test"),
    ("testwords dull", "bad", "test"),
]


def save(path: Path, rows: list[tuple[str, str, str]] = ROWS, header: str = "text,label,split") -> Path:
    path.write_text("\n".join([header, *(",".join(f'"{cell}"' for cell in row) for row in rows)]) + "\n")
    return path


def reviews(path: Path, **text: Any) -> Data:
    return prepare_data(DataSettings(set=str(path), groups="1/1", text={"length": 6, **text}))  # type: ignore[arg-type]


# tables


def test_csv_and_jsonl_give_the_same_streams(tmp_path: Path) -> None:
    table = save(tmp_path / "reviews.csv")
    lines = tmp_path / "reviews.jsonl"
    keys = ("text", "label", "split")
    lines.write_text("\n\n".join(json.dumps({k: v for k, v in zip(keys, row, strict=True) if v}) for row in ROWS))
    first, second = read(table), read(lines)
    assert list(first) == ["train", "unlabelled", "val", "test"]
    assert {name: stream.digest() for name, stream in first.items()} == {n: s.digest() for n, s in second.items()}
    assert first["train"].classes == ("bad", "good")
    assert first["train"].counts == [2, 2]
    assert first["unlabelled"].labels is None


def test_half_an_emoji_is_a_question_mark(tmp_path: Path) -> None:
    lines = tmp_path / "cut.jsonl"
    rows = [{"text": f"{i} fine \ud83d", "label": label} for i, label in enumerate(("a", "b\ud83d"))]
    lines.write_text("\n".join(map(json.dumps, rows)))
    stream = read(lines)["all"]
    assert stream.classes == ("a", "b?")
    assert [stream.samples.text(row) for row in range(2)] == ["0 fine ?", "1 fine ?"]


def test_rows_without_label_are_unlabelled_without_a_split(tmp_path: Path) -> None:
    rows = [(f"text {i} {label}", label) for label in ("b", "a", "") for i in range(5)]
    table = tmp_path / "t.csv"
    table.write_text("label,text\n" + "".join(f"{label},{text}\n" for text, label in rows))
    data = prepare_data(DataSettings(set=str(table), groups="1/1"))
    assert {name: len(stream) for name, stream in data.streams.items()} == {"labelled": 8, "test": 2, "unlabelled": 5}
    assert data.classes == ("a", "b")
    kept = data.streams["labelled"].samples
    assert isinstance(kept.origin, Texts)
    assert all(text.endswith(f" {'ab'[k]}") for text, k in zip(kept.origin.texts, data.labelled.labels, strict=True))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "text,lable\nx,a\n", r"t\.csv' has no column 'label'; did you mean 'lable'"),
        ("t.csv", "text,label\n ,a\n", r"t\.csv' line 2 has no text"),
        ("t.csv", "text,label,split\nx,a,train\ny,a,trian\n", "line 3: split 'trian' is unknown; did you mean 'train'"),
        ("t.csv", "text,label,split\nx,a,train\ny,,test\n", "line 3 is in split 'test' but has no label"),
        ("t.csv", "text,label,split\nx,a,\n", "line 2 has no split"),
        ("t.csv", "text,label,split\nx,good,train\ny,goood,test\n", "line 3: no training text has label 'goood'; did"),
        ("t.csv", "text,label,splt\nx,a,train\n", "unknown column 'splt'; did you mean 'split'"),
        ("t.csv", "text,label,back_translaton\nx,a,y\n", "did you mean 'back_translation'"),
        ("t.csv", "text,label\n", "has no rows"),
        ("t.csv", "text,label\ngood film, really,pos\n", "line 2 has more cells than the header; quote texts"),
        ("t.jsonl", '{"text": "x", "label": "a"}\n{"text": "x"\n', r"line 2 is not JSON"),
        ("t.jsonl", '["x", "a"]\n', "line 1 is a list; write an object"),
        ("t.jsonl", '{"txt": "x", "label": "a"}\n', "line 1 has no column 'text'; did you mean 'txt'"),
        ("t.jsonl", '{"text": 5, "label": "a"}\n', "line 1: text is 5; write a string"),
        ("t.jsonl", '{"text": null, "label": "a"}\n', "line 1 has no text"),
    ],
)
def test_bad_rows_are_one_line_with_file_and_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert [p.kind for p in check(tmp_path / name)] == ["layout"]


def test_a_long_text_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\n" + "word " * 40_000 + ",a\nshort,b\n")
    assert len(read(tmp_path / "t.csv")["all"].samples.texts[0]) == 199_999


def test_not_utf8_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("text,label\nfine,a\ncafé,b\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"t\.csv' is not UTF-8 text \(line 3: "):
        read(tmp_path / "t.csv")


def test_no_labels_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\nfine,\n")
    with pytest.raises(UserError, match="no training part"):
        prepare_data(DataSettings(set=str(tmp_path / "t.csv")))


def test_a_table_of_paths_stays_a_table_of_images(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label,text\nx.png,a,fine\n")
    assert isinstance(read(tmp_path / "t.csv", size=8, memory=False)["all"].samples, Files)


def test_look_finds_texts_in_two_splits(tmp_path: Path) -> None:
    save(tmp_path / "t.csv", [*ROWS, ("a dull film", "bad", "test")])
    (found,) = check(tmp_path / "t.csv")
    assert found.kind == "duplicate"
    assert "test/bad" in found.message


def test_texts_cannot_be_adapted(tmp_path: Path) -> None:
    save(tmp_path / "t.csv")
    with pytest.raises(UserError, match="domains of images"):
        prepare_data(DataSettings(set=str(tmp_path / "t.csv"), target="shapes"))


def test_packing() -> None:
    texts = ["", "naïve", "日本", "", "x" * 1000]
    assert unpack(*pack(texts)) == texts


# the vocabulary


def test_words() -> None:
    assert words("Don't STOP, naïve—Ünï 42!") == ["don't", "stop", ",", "naïve", "—", "ünï", "42", "!"]
    assert words(" \t") == []


def test_numbers_by_frequency_then_alphabet() -> None:
    vocabulary = Words.of(["b b a", "c a d"], 3, length=5)
    assert vocabulary.words == ("a", "b", "c")
    assert vocabulary.encode(["c d a", ""]).tolist() == [[4, UNKNOWN, 2, PAD, PAD], [PAD] * 5]


def test_cuts() -> None:
    text = " ".join("abcdefgh")
    known = list("abcdefgh")
    assert Words(known, length=5).encode([text]).tolist() == [[2, 3, 4, 5, 6]]
    assert Words(known, length=5, cut="ends").encode([text]).tolist() == [[2, 3, 4, 8, 9]]
    assert Words(known, length=8, cut="ends").encode([text]).tolist() == [[2, 3, 4, 5, 6, 7, 8, 9]]


def test_trap_16_validation_and_test_shape_no_vocabulary(tmp_path: Path) -> None:
    data = reviews(save(tmp_path / "t.csv"))
    assert data.vocabulary is not None
    assert "zebra" in data.vocabulary.words  # unlabelled texts do
    assert not {"validwords", "testwords"} & set(data.vocabulary.words)
    assert data.streams["test"].fetch(torch.tensor([0]))[0, 0] == UNKNOWN
    assert data.inputs == len(data.vocabulary.words) + 2
    assert data.facts.words == data.vocabulary.words


def test_streams_hold_the_right_tokens(tmp_path: Path) -> None:
    data = reviews(save(tmp_path / "t.csv"))
    assert data.vocabulary is not None
    for name, split in (("labelled", "train"), ("test", "test")):
        stream = data.streams[name]
        assert stream.labels is not None
        wanted = [(text, label) for text, label, where in ROWS if where == split]
        assert torch.equal(stream.fetch(torch.arange(len(stream))), data.vocabulary.encode([t for t, _ in wanted]))
        assert [data.classes[k] for k in stream.labels.tolist()] == [label for _, label in wanted]


def test_words_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    settings = DataSettings(set=str(save(tmp_path / "t.csv")), groups="1/1")
    earlier = prepare_data(settings).facts.model_copy(update={"words": ("dull", "fine"), "inputs": 4})
    data = prepare_data(settings, earlier)
    assert data.inputs == 4
    assert data.streams["test"].fetch(torch.tensor([0, 1]))[:, :3].tolist() == [[1, 3, 0], [1, 2, 0]]


def test_tokens_by_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.text\.tokens = 'bpe' is unknown"):
        reviews(save(tmp_path / "t.csv"), tokens="bpe")
    with pytest.raises(UserError, match=r"pip install 'evenhand\[text\]'|config\.json is missing"):
        Pieces(f"hf:{tmp_path}")


def test_back_translations_ride_along(tmp_path: Path) -> None:
    rows = [("a fine film", "good", "une fine film"), ("a dull film", "bad", ""), ("so fine", "good", "very fine")]
    rows += [("so dull", "bad", "very dull")]
    path = save(tmp_path / "t.csv", rows, "text,label,back_translation")
    data = prepare_data(DataSettings(set=str(path), groups="1/1", text={"length": 4, "strong": ["back-translation"]}))  # type: ignore[arg-type]
    assert data.vocabulary is not None
    x = data.labelled.fetch(torch.arange(2))
    assert x.shape == (2, 8)
    chance = torch.Generator()
    assert torch.equal(data.eval_view(x, chance), x[:, :4])
    assert torch.equal(data.train_view(x, chance), x[:, :4])
    strong = data.strong_view(x, chance)
    for row, first, second in zip(strong, x[:, :4], x[:, 4:], strict=True):
        assert torch.equal(row, second if (second != PAD).any() else first)
    assert data.streams["test"].fetch(torch.tensor([0])).shape == (1, 8)
    with pytest.raises(UserError, match="needs texts with a column back_translation"):
        reviews(save(tmp_path / "u.csv"), strong=["back-translation"])


# splits


def test_labelled_share_is_stratified_and_keeps_every_sample() -> None:
    whole = prepare_data(DataSettings(set="phrases", val_per_class=4))
    data = prepare_data(DataSettings(set="phrases", val_per_class=4, labelled_share=0.1))
    assert data.counts == [6] * 5
    assert len(data.streams["unlabelled"]) == 5 * (60 - 4 - 6)
    assert data.streams["unlabelled"].labels is None
    assert len(data.streams["labelled"]) + len(data.streams["unlabelled"]) == len(whole.streams["labelled"])


def test_labelled_share_after_the_long_tail_never_empties_a_class() -> None:
    settings = {"set": "phrases", "n_max": 50, "imbalance": 10}
    data = prepare_data(DataSettings(**settings, labelled_share=0.08))  # type: ignore[arg-type]
    assert data.counts == [4, 2, 1, 1, 1]  # of 50, 28, 15, 8, 5
    assert len(data.streams["unlabelled"]) == 46 + 26 + 14 + 7 + 4
    with pytest.raises(ValueError, match="leave one out"):
        DataSettings(**settings, labelled_share=0.1, unlabelled_max=5)  # type: ignore[arg-type]


def test_the_counts_of_the_thesis_on_imdb() -> None:
    """Spec 06, section 4: 12,500 + 1,250 texts of which 1,000 have labels; rho = 100: 12,500 + 125."""
    labels = torch.arange(2).repeat_interleave(12_500)
    train = Stream(Texts(["x"] * 25_000), labels, ("negative", "positive"))
    for imbalance, share, few, rest in (
        (10, 1000 / 13_750, [909, 91], 12_750),
        (100, 1000 / 12_625, [990, 10], 11_625),
    ):
        settings = DataSettings(n_max=12_500, imbalance=imbalance, labelled_share=share)
        labelled, unlabelled = make_longtailed(train, settings)
        assert labelled.counts == few
        assert unlabelled is not None
        assert len(unlabelled) == rest


def test_phrases_are_the_same_every_time() -> None:
    first, second = (prepare_data(DataSettings(set="phrases")) for _ in range(2))
    assert first.streams["test"].digest() == second.streams["test"].digest()
    assert first.facts == second.facts
    train = phrases.load()["train"]
    assert train.subset(torch.tensor([3, 1])).samples.texts == [train.samples.texts[i] for i in (3, 1)]


def test_settings_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.augment is for images; the views of texts are data\.text\.augment"):
        prepare_data(DataSettings(set="phrases", augment=["swap"]))
    with pytest.raises(UserError, match=r"bring unlabelled samples: leave out data\.labelled_share"):
        prepare_data(DataSettings(set=str(save(tmp_path / "t.csv")), groups="1/1", labelled_share=0.5))
