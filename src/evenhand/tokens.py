"""What data and text networks agree on: how tokens are numbered, and where a Hugging Face folder is.

0 fills up short texts, 1 is an unknown (or hidden) word, a vocabulary's own words start at 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenhand.errors import UserError

PAD, UNKNOWN, FIRST = 0, 1, 2
HF = "hf:"


def hf_folder(name: str) -> Path:
    """The folder behind ``hf:FOLDER``; it must be on disk."""
    folder = Path(name.removeprefix(HF)).expanduser()
    if not (folder / "config.json").is_file():
        raise UserError(f"'{name}' is no Hugging Face model: {folder / 'config.json'} is missing; give a local folder")
    return folder


def hf_tokenizer(name: str) -> Any:
    """The tokeniser in a folder, from its files alone."""
    transformers, folder = import_transformers(name), hf_folder(name)
    try:
        found = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"'{name}' has no tokeniser ({str(error).splitlines()[0]}); save it in the folder") from error
    if len(found) <= len(found.all_special_ids):  # what transformers makes up when the files are missing
        raise UserError(f"'{name}' has a tokeniser without words; save its files (tokenizer.json) in the folder")
    return found


def import_transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            f"'{name}' needs transformers: pip install 'evenhand[text]', or use tokens = 'words'"
        ) from error
    return transformers
