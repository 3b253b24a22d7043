"""IMDb and Reuters from packages of the real layout, offline."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand.data.prepared import prepare_data
from evenhand.data.sets.catalogue import DATASETS, load
from evenhand.data.settings import DataSettings
from evenhand.data.stream import Stream


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """place(name, files, sizes): the package of that set now lies in the cache's downloads, with these files."""
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))

    def make(name: str, files: dict[str, Any], sizes: tuple[int, int]) -> None:
        row = DATASETS[name]
        archive = tmp_path / "downloads" / row.package.file
        archive.parent.mkdir(exist_ok=True)
        with tarfile.open(archive, "w:gz") as tar:
            for path, content in {**files, "package/LICENSE": "free"}.items():
                member, raw = tarfile.TarInfo(path), json.dumps(content).encode()
                member.size = len(raw)
                tar.addfile(member, io.BytesIO(raw))
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        package = replace(row.package, sha256=digest)
        monkeypatch.setitem(DATASETS, name, replace(row, package=package, sizes=sizes))

    return make


def strings(stream: Stream) -> list[str]:
    return list(stream.samples.texts)


def test_checksums_are_those_of_the_specification() -> None:
    assert DATASETS["imdb"].package.sha256.startswith("165c6c90367afed6")
    assert DATASETS["reuters"].package.sha256.startswith("627d6d8144d8793d")


def test_imdb(place: Any) -> None:
    reviews = [{"t": f"film {i}<br /><br />é", "s": i % 2} for i in range(30)]
    reviews += [{"t": "film 3 é", "s": 1}, {"t": "said twice", "s": 0}, {"t": "said twice", "s": 1}]
    place("imdb", {"package/reviews.json": reviews}, (24, 6))
    streams = load("imdb")
    train, test = streams["train"], streams["test"]
    assert train.classes == ("negative", "positive")
    assert (train.counts, test.counts) == ([12, 12], [3, 3])
    assert set(strings(train)) | set(strings(test)) == {f"film {i} é" for i in range(30)}  # the repetitions are gone
    for stream in (train, test):
        assert stream.labels is not None
        assert [int(text.split()[1]) % 2 for text in strings(stream)] == stream.labels.tolist()
    again = load("imdb")
    assert again["train"].digest() == train.digest()  # now from the safetensors file
    data = prepare_data(DataSettings(set="imdb", groups="1/1", val_per_class=2))
    assert data.streams["val"].counts == [2, 2]
    assert data.streams["test"].fetch(torch.tensor([0])).dtype == torch.int64


def test_reuters(place: Any) -> None:
    def story(i: int, *topics: str, **more: str) -> dict[str, Any]:
        return {"title": f"STORY {i}", "body": f"on {'-'.join(topics)}\n Reuter\n\x03", "topics": [*topics], **more}

    stories = [story(i, "earn") for i in range(40)] + [story(i, "tin") for i in range(40, 60)]
    stories += [story(i, "zinc") for i in range(60, 79)]  # one too few to be a class
    stories += [story(0, "earn"), story(80, "earn", "tin"), {"id": "81", "topics": ["tin"]}, {"title": "no topic"}]
    place(
        "reuters",
        {"package/data/full/reuters-000.json": stories[:30], "package/data/full/reuters-001.json": stories[30:]},
        (42, 18),
    )
    streams = load("reuters")
    assert streams["train"].classes == ("earn", "tin")
    assert (streams["train"].counts, streams["test"].counts) == ([28, 14], [12, 6])
    assert all("\x03" not in text for text in strings(streams["train"]))
    assert "STORY 0 on earn Reuter" in [*strings(streams["train"]), *strings(streams["test"])]
