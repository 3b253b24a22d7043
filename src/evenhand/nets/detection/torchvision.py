"""torchvision, wherever it can be imported at all.

The wheel beside a CPU build of torch lacks its compiled operations and stops at import. Then, and only then, ours are
put in their place before the import.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType

import torch

from evenhand.errors import UserError
from evenhand.nets.detection import ops

_MISSING = "torchvision::nms"
_library: torch.library.Library | None = None  # definitions last as long as this does


@cache
def torchvision() -> ModuleType:
    """The package with working ``ops.nms`` and ``ops.roi_align``."""
    try:
        found = importlib.import_module("torchvision")
    except ImportError as error:
        raise UserError('detection needs torchvision: pip install "evenhand[detect]"') from error
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
        found = _completed()
    importlib.import_module("torchvision.models.detection")
    return found


def _completed() -> ModuleType:
    global _library
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    found = importlib.import_module("torchvision")
    for place in ("ops", "ops.boxes"):
        setattr(importlib.import_module(f"torchvision.{place}"), "nms", ops.nms)  # noqa: B010
    for place in ("ops", "ops.poolers", "ops.roi_align"):
        setattr(importlib.import_module(f"torchvision.{place}"), "roi_align", ops.roi_align)  # noqa: B010
    return found
