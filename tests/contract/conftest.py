"""Runs that share their [data] table share the data: streams and views are read-only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from evenhand.data.facts import Facts
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.run import opening

BUILT: dict[str, Data] = {}


@pytest.fixture(scope="module", autouse=True)
def data_built_once() -> Iterator[None]:
    def remembered(settings: DataSettings, facts: Facts | None = None, **how: Any) -> Data:
        key = f"{settings.model_dump_json()} {facts and facts.model_dump_json()} {how}"
        if key not in BUILT:
            BUILT[key] = prepare_data(settings, facts, **how)
        return BUILT[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "prepare_data", remembered)
        yield
