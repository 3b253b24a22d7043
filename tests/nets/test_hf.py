"""A Hugging Face encoder from a folder made here; skipped where transformers is not installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.vocabulary import FIRST, PAD, UNKNOWN, Pieces
from evenhand.errors import UserError
from evenhand.nets import build_net
from evenhand.nets.text import masked_mean

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "dull", "film", "##s"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("encoder")
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(dict(zip(WORDS, range(9), strict=True)), unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    marks = {f"{key}_token": f"[{key.upper()}]" for key in ("pad", "unk", "cls", "sep", "mask")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **marks).save_pretrained(place)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12,
    )  # fmt: skip
    with torch.random.fork_rng():
        transformers.BertModel(config).save_pretrained(place)
    return place


def test_its_tokeniser_and_its_own_states(folder: Path) -> None:
    name = f"hf:{folder}"
    vocabulary = Pieces(name, length=6)
    texts = ["Fine films", "dull", "film film film fine"]
    x = vocabulary.encode(texts)
    assert x[1].tolist() == [FIRST + WORDS.index("dull"), *[PAD] * 5]
    net = build_net(name, num_classes=3, inputs=vocabulary.size).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        own = transformers.AutoModel.from_pretrained(folder).eval()
        states = own(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        torch.testing.assert_close(net.features(x), masked_mean(states, batch["attention_mask"] == 1))
    assert net(x).shape == (3, 3)
    ids, _ = net.framed(torch.tensor([[UNKNOWN, FIRST + 5]]), torch.ones(1, 2, dtype=torch.bool))  # type: ignore[operator]
    assert ids.tolist() == [[WORDS.index(word) for word in ("[CLS]", "[MASK]", "fine", "[SEP]")]]


def test_data_speak_its_vocabulary(folder: Path, tmp_path: Path) -> None:
    name = f"hf:{folder}"
    data = prepare_data(DataSettings(set="phrases", text={"tokens": name, "length": 8}))  # type: ignore[arg-type]
    assert data.inputs == FIRST + len(WORDS)
    with pytest.raises(UserError, match=r"set data\.text\.tokens = 'hf:"):
        build_net(name, num_classes=2, inputs=5)
    net = build_net(name, num_classes=2, inputs=data.inputs)
    with pytest.raises(UserError, match=r"this encoder takes 10: lower data\.text\.length"):
        net(torch.full((1, 11), FIRST))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UserError, match="tokeniser"):
        Pieces(f"hf:{tmp_path}")
