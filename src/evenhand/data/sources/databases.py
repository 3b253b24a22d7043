"""LSUN's databases: ``<class>_<split>_lmdb/`` folders whose values are encoded images, decoded when asked for."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from evenhand.data.sources.files import Files
from evenhand.data.sources.frames import Asked, choose_frame
from evenhand.data.sources.paths import SPLITS, folders_in
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError

NAME = re.compile(rf"(?P<label>.+)_(?P<split>{'|'.join(SPLITS)})_lmdb")


def databases_in(folder: Path) -> list[Path]:
    """The LMDB folders of a set: directly inside, or the folder itself."""
    return [place for place in (folder, *folders_in(folder)) if NAME.fullmatch(place.name)]


def read_databases(
    folder: Path, *, size: int | None = None, mode: str = "RGB", memory: bool | None = None, whole: bool = False,
    frame: Asked = "auto",
) -> Streams:  # fmt: skip
    """A stream for each split; classes in alphabetical order, images in that of their keys."""
    found: dict[str, dict[str, Path]] = {}
    for place in databases_in(folder):
        parts = NAME.fullmatch(place.name)
        assert parts is not None
        found.setdefault(parts["split"], {})[parts["label"]] = place
    classes = tuple(sorted({label for places in found.values() for label in places}))
    streams, how = {}, frame
    for split in sorted(found, key=SPLITS.index):
        records = Records(found[split].values())
        keys = [records.keys(place.name) for place in found[split].values()]
        labels = [classes.index(label) for label, mine in zip(found[split], keys, strict=True) for _ in mine]
        every = [key for mine in keys for key in mine]
        if how == "auto":
            how = choose_frame([records.size(key) for key in every[:: max(1, len(every) // 100)]])[0]
        files = Files(every, size=size or 224, mode=mode, whole=whole, reader=records, frame=how)
        known = None if split == "unlabelled" else torch.tensor(labels)
        streams[split] = Stream(files.held(memory), known, classes, split)
    return streams


class Records:
    """From ``<database>/<key in hex>`` to the image file stored there.

    Opened for each record, which costs little beside decoding: an environment must neither cross a fork nor be open
    twice in a process, as when a generator and its classifier read the same set.
    """

    def __init__(self, places: Iterable[Path]) -> None:
        self.places = {place.name: str(place) for place in places}

    def keys(self, database: str) -> list[str]:
        with _view(self.places[database]) as view:
            found = [f"{database}/{key.hex()}" for key in view.cursor().iternext(keys=True, values=False)]
        if not found:
            raise UserError(f"'{self.places[database]}' holds no images; obtain it again or remove it")
        return found

    def size(self, name: str) -> tuple[int, int]:
        with Image.open(self(name)) as image:
            return image.size

    def __call__(self, name: str) -> io.BytesIO:
        database, _, key = name.rpartition("/")
        with _view(self.places[database]) as view:
            return _Value(view.get(bytes.fromhex(key)), name)


class _Value(io.BytesIO):
    """Errors about it say which record it is."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name

    def __str__(self) -> str:
        return self.name


@contextmanager
def _view(place: str) -> Iterator[Any]:
    try:
        import lmdb
    except ImportError as error:
        raise UserError(
            f"'{place}' is an LMDB: pip install 'evenhand[lmdb]', or export its images to folders train/<class>/*"
        ) from error
    try:
        opened = lmdb.open(place, readonly=True, lock=False, readahead=False, meminit=False)
        with opened, opened.begin() as view:
            yield view
    except lmdb.Error as error:
        raise UserError(f"cannot read the LMDB '{place}': {error}; obtain it again") from error
