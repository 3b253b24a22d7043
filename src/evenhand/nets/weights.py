"""Weights from a file into a network: safetensors or a torch state dict, never pickled code."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from evenhand.errors import UserError
from evenhand.nets.heads import HeadedNet
from evenhand.nets.timm import TimmNet

WRAPPERS = ("state_dict", "model", "net")
PREFIXES = ("module.", "model.", "backbone.", "_orig_mod.")
HEADS = ("fc.", "head.", "head_dist.", "linear.", "classifier.")


def load_weights(net: nn.Module, path: str | Path, *, strict: bool = True, skip_head: bool = False) -> list[str]:
    """Copy the weights in ``path`` into ``net``; returns the entries of ``net`` the file did not set.

    Wrappers' prefixes (``module.``, ``model.``, ``backbone.``) and nesting under ``state_dict`` or ``model``
    are removed. ``skip_head`` leaves the last layer as initialised, whatever head the file has.
    ``strict=False`` allows names that only one side has; a shape that differs is an error, but for the positions of a
    vision transformer, which are resized.
    ``net`` is changed only when everything fits.
    """
    own = net.state_dict()
    found = _unprefixed(read_tensors(Path(path)), own, path)
    if isinstance(net, HeadedNet):
        found = net.fitted(found)
    expected = [name for name in own if not (skip_head and name.startswith(HEADS))]
    if skip_head:
        found = {name: value for name, value in found.items() if not name.startswith(HEADS)}

    # Files older than torch 0.4.1 lack this counter, and BatchNorm fills it in.
    missing = [n for n in expected if n not in found and not n.endswith("num_batches_tracked")]
    unexpected = [name for name in found if name not in own]
    misshapen = [name for name in expected if name in found and found[name].shape != own[name].shape]
    fitting = {name: found[name] for name in expected if name in found}
    if misshapen or not fitting or (strict and (missing or unexpected)):
        shapes = (f"{n} {tuple(found[n].shape)} for {tuple(own[n].shape)}" for n in misshapen)
        wrong = [_first("missing", missing), _first("unexpected", unexpected), _first("mis-shaped", shapes)]
        only_head = fitting and all(n.startswith(HEADS) for n in [*missing, *unexpected, *misshapen])
        remedy = "build the net the file comes from"
        if only_head and not skip_head:
            remedy = "pass skip_head=True to keep the new head"
        elif fitting and not misshapen:
            remedy += ", or pass strict=False to load what fits"
        raise UserError(f"weights '{path}' do not fit: {'; '.join(w for w in wrong if w)}; {remedy}")
    net.load_state_dict(fitting, strict=False)
    return [name for name in own if name not in fitting]


def load_backbone(net: HeadedNet, path: str | Path) -> None:
    """Everything but the head from ``path``; a network of timm's is inside ours, under names of its own."""
    load_weights(net.backbone if isinstance(net, TimmNet) else net, path, skip_head=True)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The file's tensors by name, taken out of one or more wrapping dictionaries."""
    if not path.is_file():
        raise UserError(f"weights '{path}' are not a file; check the path")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"weights '{path}' are refused: they hold Python objects, which can run code, not only tensors; "
            "save net.state_dict() where the file was made"
        ) from error
    except Exception as error:  # whatever stray bytes provoke in the two readers: KeyError, EOFError, ...
        what = type(error).__name__
        raise UserError(f"weights '{path}' are damaged or of another format ({what}); save again") from error
    while isinstance(content, dict):
        inner = [content[key] for key in WRAPPERS if isinstance(content.get(key), dict)]
        if not inner:
            break
        content = inner[0]
    tensors = isinstance(content, dict) and content and all(isinstance(v, Tensor) for v in content.values())
    if not tensors:
        raise UserError(f"weights '{path}' hold no state dict (names to tensors); save net.state_dict()")
    return content


def _unprefixed(state: dict[str, Tensor], own: Iterable[str], path: str | Path) -> dict[str, Tensor]:
    """Names without the prefixes that wrappers add, unless the network itself has the name."""
    bare = {}
    for full, value in state.items():
        name = full
        while name not in own and (prefix := next((p for p in PREFIXES if name.startswith(p)), None)):
            name = name.removeprefix(prefix)
        if name in bare:
            raise UserError(f"weights '{path}' name {name} twice (once as {full}); save one network per file")
        bare[name] = value
    return bare


def _first(what: str, names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}" if names else ""
