"""Runs that share their [data] table share the data: streams and views are read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from evenhand.data.prepared import Data, DataSettings, build_data
from evenhand.run import runs


@pytest.fixture(scope="session", autouse=True)
def data_built_once() -> Iterator[None]:
    built: dict[str, Data] = {}

    def remembered(settings: DataSettings, words: Sequence[str] | None = None) -> Data:
        key = f"{settings.model_dump_json()} {words}"
        if key not in built:
            built[key] = build_data(settings, words)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "build_data", remembered)
        yield
