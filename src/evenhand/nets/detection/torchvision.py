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
    boxes, pool = (importlib.import_module(f"torchvision.ops.{name}") for name in ("boxes", "poolers"))
    align = importlib.import_module("torchvision.ops.roi_align")
    for module in (boxes, found.ops):
        module.nms = ops.nms
    for module in (pool, align, found.ops):
        module.roi_align = ops.roi_align
    return found
