"""What the tokens of a run's transformer do: where they look, how CLS and DIST differ, what the teacher knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from evenhand import atomic
from evenhand.data.prepared import Data
from evenhand.data.stream import Stream
from evenhand.errors import UserError, did_you_mean
from evenhand.measure.attention import attention_distance, entropies, feature_rank, rollout
from evenhand.methods.recognise.deit_lt import DeiTLT
from evenhand.nets.vit import VisionTransformer
from evenhand.pieces.mixing import mixup_or_cutmix
from evenhand.randomness import dice
from evenhand.report.charts.attention import plot_attention, plot_rollout
from evenhand.run.opening import OpenRun, open_run

TOKENS = ("cls", "dist")
BINS = 24


def study(
    folder: Path, *, classes: Sequence[str] | None = None, every_checkpoint: bool = False, max_samples: int = 256,
    pictures: int = 6, centre_both: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Distances, ranks, cosine, rollouts and the teacher's entropy; writes attention.json and plots.

    The images are those of the validation split, or where there is none of training, without augmentation; the rare
    classes are the tail's unless named. The teacher is asked about training images.
    """
    names: list[str | None] = [None]
    if every_checkpoint:
        names = [path.name for path in sorted(folder.glob("epoch-*.pt"))]
        if not names:
            raise UserError(f"{folder} kept no checkpoints: train with --set run.keep_every=10")
    rows: list[dict[str, Any]] = []
    data: Data | None = None
    for name in names:
        run = open_run(folder, name=name)
        data = data or run.data()
        rows.append({"checkpoint": run.checkpoint, "epoch": round(run.epoch, 2), **of_run(
            run, data, classes, max_samples=max_samples, centre_both=centre_both
        )})  # fmt: skip
    assert data is not None
    found = {"rows": rows, "cosine_in_training": _logged(folder), "teacher": of_teacher(run, data, max_samples)}
    atomic.write_json(folder / "attention.json", found)
    plot_attention(found, folder / "attention.svg", title=folder.name)
    written = ["attention.json", "attention.svg"]
    if pictures:
        _draw(run, data, classes, pictures, folder / "attention-rollout.png")
        written.append("attention-rollout.png")
    _print(found)
    print("  ".join(str(folder / name) for name in written))
    return found


@torch.no_grad()
def of_run(
    run: OpenRun, data: Data, classes: Sequence[str] | None = None, *, max_samples: int = 256, centre_both: bool = True
) -> dict[str, Any]:
    """Of rare classes: how far each head of each block looks, and of how many directions the tokens after it are.

    ``cosine`` is between CLS and DIST after the last norm, over all classes.
    """
    net, stream = transformer(run), _stream(data)
    rare, everything = _rare(stream, data, classes, max_samples), _some(torch.arange(len(stream)), max_samples, "all")
    device = next(net.parameters()).device
    few, all_ = (data.see(stream.fetch(rows).to(device)) for rows in (rare, everything))
    down, across = (side // net.patch for side in few.shape[-2:])
    distances = [attention_distance(a, net.special, down, across, net.patch).tolist() for a in net.attentions(few)]
    ranks: dict[str, list[int]] = {}
    for mine, others in zip(net.layers(few), net.layers(all_), strict=True):
        for token, name in enumerate(TOKENS[: net.special]):
            found = feature_rank(others[:, token].cpu(), mine[:, token].cpu(), centre_both=centre_both)
            ranks.setdefault(name, []).append(found)
    told = {"stream": stream.name, "images": len(rare), "of_all": len(everything), "distance": distances, "rank": ranks}
    if net.special == 2:
        tokens = net.tokens(all_)
        told["cosine"] = float(F.cosine_similarity(tokens[:, 0], tokens[:, 1]).mean())
    return told


def transformer(run: OpenRun) -> VisionTransformer:
    """The network that is judged, which must have attention to look at."""
    method: Any = run.method
    net = method.network() if hasattr(method, "network") else None
    if not isinstance(net, VisionTransformer):
        kind = type(net).__name__ if net is not None else "no network"
        raise UserError(f"attention is of our vision transformers; {run.folder} has {kind}: train one with a vit net")
    return net


@torch.no_grad()
def of_teacher(run: OpenRun, data: Data, max_samples: int = 256) -> dict[str, Any]:
    """Entropy and accuracy of the teacher on its weak views, on the student's views, and on those mixed."""
    method = run.method
    if not isinstance(method, DeiTLT) or method.teacher is None:
        return {}
    stream, s, chance = data.labelled, method.settings, dice(0, "attention", "views")
    rows = _some(torch.arange(len(stream)), max_samples, "teacher")
    assert stream.labels is not None
    raw, y = stream.fetch(rows).to(method.player.device), stream.labels[rows].to(method.player.device)
    strong = method.data.train_view(raw, chance)
    mixed, _ = mixup_or_cutmix(strong, y, chance, len(data.classes), mixup_alpha=s.mixup, cutmix_alpha=s.cutmix)
    answers = {
        "weak": method.teacher.of_own_view(method.teacher.weak_view(raw, chance)),
        "strong": method.teacher(strong),
        "mixed": method.teacher(mixed),
    }
    most = torch.tensor(float(len(data.classes))).log().item()
    return {name: _spread(logits, y, most) for name, logits in answers.items()}


def _spread(logits: Tensor, y: Tensor, most: float) -> dict[str, Any]:
    found = entropies(logits).cpu()
    return {
        "entropy": float(found.mean()), "accuracy": float((logits.argmax(1) == y).float().mean()),
        "histogram": (torch.histc(found, BINS, 0, most) / len(found)).tolist(), "largest": most,
    }  # fmt: skip


@torch.no_grad()
def _draw(run: OpenRun, data: Data, classes: Sequence[str] | None, count: int, path: Path) -> None:
    """Rollouts of some rare images: of each special token, and of their mean."""
    net, stream = transformer(run), _stream(data)
    assert stream.labels is not None
    rows = _rare(stream, data, classes, count)
    raw = stream.fetch(rows)
    x = data.see(raw.to(next(net.parameters()).device))
    grid = [side // net.patch for side in x.shape[-2:]]
    total = rollout(net.attentions(x))[:, : net.special, net.special :]  # (n, special, P)
    maps = {name: total[:, i].unflatten(1, grid).cpu().numpy() for i, name in enumerate(TOKENS[: net.special])}
    if net.special == 2:
        maps["mean"] = total.mean(1).unflatten(1, grid).cpu().numpy()
    titles = [stream.classes[k] for k in stream.labels[rows].tolist()]
    plot_rollout(raw.permute(0, 2, 3, 1).numpy(), titles, maps, path)


def _stream(data: Data) -> Stream:
    return data.streams.get("val", data.labelled)


def _rare(stream: Stream, data: Data, classes: Sequence[str] | None, most: int) -> Tensor:
    """At most so many rows of the named classes, or of the tail's."""
    for name in classes or ():
        if name not in data.classes:
            raise UserError(f"no class is called '{name}'; {did_you_mean(name, data.classes)}")
    tail = data.groups.get("tail") or [data.counts.index(min(data.counts))]
    wanted = [data.classes.index(name) for name in classes] if classes else tail
    assert stream.labels is not None
    rows = torch.isin(stream.labels, torch.tensor(wanted)).nonzero()[:, 0]
    if not len(rows):
        raise UserError(f"stream '{stream.name}' has no image of these classes; name others with --class")
    return _some(rows, most, "rare")


def _some(rows: Tensor, most: int, which: str) -> Tensor:
    return rows[torch.randperm(len(rows), generator=dice(0, "attention", which))[:most]]


def _logged(folder: Path) -> list[list[float]]:
    """(epoch, cosine) of the training log."""
    path = folder / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [[row["epoch"], row["cosine"]] for row in lines if row["kind"] == "train" and "cosine" in row]


def _print(found: dict[str, Any]) -> None:
    table = Table("checkpoint", "block", "mean attention distance (px)", *(f"rank {t}" for t in TOKENS), box=None)
    for row in found["rows"]:
        for i, heads in enumerate(row["distance"]):
            ranks = [str(row["rank"][t][i]) if t in row["rank"] else "-" for t in TOKENS]
            table.add_row(row["checkpoint"], str(i + 1), " ".join(f"{d:.1f}" for d in sorted(heads)), *ranks)
    Console().print(table)
    for row in found["rows"]:
        if "cosine" in row:
            print(f"{row['checkpoint']}: cosine of CLS and DIST {row['cosine']:.3f}")
    for name, numbers in found["teacher"].items():
        said = f"entropy {numbers['entropy']:.2f} nats, right on {100 * numbers['accuracy']:.0f} %"
        print(f"teacher on {name} views: {said}")
