"""Any Hugging Face encoder in a local folder as a classifier: ``net.name = "hf:FOLDER"``.

Its weights start from the folder, and ``data.text.tokens = "hf:FOLDER"`` makes the data speak its vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.errors import UserError
from evenhand.nets.heads import HeadedNet, HeadKind, make_head
from evenhand.nets.text import masked_mean, unpadded
from evenhand.tokens import FIRST, PAD, UNKNOWN, hf_folder, hf_tokenizer, import_transformers


class HFEncoder(HeadedNet):
    """The encoder between its marks for begin and end, the mean of its last states, and a new head."""

    def __init__(self, name: str, *, num_classes: int, words: int, head: HeadKind = "linear") -> None:
        transformers = import_transformers(name)
        tokenizer = hf_tokenizer(name)
        if words != FIRST + len(tokenizer):
            raise UserError(f"net '{name}' has its own vocabulary: set data.text.tokens = '{name}'")
        try:
            encoder = transformers.AutoModel.from_pretrained(
                str(hf_folder(name)), local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise UserError(f"net '{name}' cannot be loaded ({why}); save it with save_pretrained") from error
        if len(tokenizer) > encoder.config.vocab_size:
            more = f"{len(tokenizer)} pieces, its encoder {encoder.config.vocab_size}"
            raise UserError(f"the tokeniser in '{name}' has {more}; save the two that belong together")
        super().__init__(num_features=encoder.config.hidden_size)
        self.encoder = encoder
        self.longest = getattr(encoder.config, "max_position_embeddings", None) or 512
        self.fc = make_head(head, self.num_features, num_classes)
        t = tokenizer
        self.pad = t.pad_token_id if t.pad_token_id is not None else 0
        self.hidden = t.mask_token_id if t.mask_token_id is not None else (t.unk_token_id or 0)
        self.begin = t.cls_token_id if t.cls_token_id is not None else t.bos_token_id
        self.end = t.sep_token_id if t.sep_token_id is not None else t.eos_token_id

    def features(self, x: Tensor) -> Tensor:
        x, real = unpadded(x)
        ids, real = self.framed(x, real)
        if ids.shape[1] > self.longest:
            room = self.longest - (ids.shape[1] - x.shape[1])
            raise UserError(f"texts of {x.shape[1]} tokens; this encoder takes {room}: lower data.text.length")
        states = self.encoder(input_ids=ids, attention_mask=real.long()).last_hidden_state  # (N, L + 2, d)
        return masked_mean(states, real)

    def framed(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's own numbers between its marks, (N, L + 2), and which of them count."""
        ids = torch.where(x >= FIRST, x - FIRST, self.pad).masked_fill(x == UNKNOWN, self.hidden)
        ids = ids.masked_fill(x == PAD, self.pad)
        if self.end is not None:  # right behind the last word
            ids = torch.cat([ids, ids.new_full((len(ids), 1), self.pad)], 1)
            ids.scatter_(1, real.sum(1, keepdim=True), self.end)
            real = torch.cat([real.new_ones(len(real), 1), real], 1)
        if self.begin is not None:
            ids = torch.cat([ids.new_full((len(ids), 1), self.begin), ids], 1)
            real = torch.cat([real.new_ones(len(real), 1), real], 1)
        return ids, real
