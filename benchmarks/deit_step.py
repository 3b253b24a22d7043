"""Time of one DeiT-LT step ÷ its bare passes: the student forward and backward, the teacher forward, AdamW's step.

    OMP_NUM_THREADS=1 python benchmarks/deit_step.py [--repeats 10] [--batch 64]

The student is the small recipe's ViT, the teacher its ResNet-8. All are interleaved, so that a busy machine slows them
alike; a ratio is the median over the repeats of the ratio within one. What a step adds is mixing, resizing,
normalising anew and the two losses. Making the views of a batch is timed apart.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

from evenhand.data.loader import Loader
from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods.common import Net
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.methods.recognise.deit_lt import DEIT, DeiTLT, DeiTLTSettings
from timing import timed


def steps_of(batch: int) -> dict[str, Callable[[], object]]:
    device = torch.device("cpu")
    augment = ["crop", "flip", "randaugment-deit", "erase-noise"]
    data = prepare_data(DataSettings(set="shapes", augment=augment))
    how = {"seed": 0, "device": device}
    table = ClassifierSettings(net=Net(name="resnet8", stem_stride=2))
    cnn = LongTailClassifier(table, data, **how)  # type: ignore[arg-type]
    settings = DeiTLTSettings(net=Net(name="vit-tiny"), batch=batch, repeats=1)
    method = DeiTLT(settings, data, teacher=cnn, **how)  # type: ignore[arg-type]
    loader = Loader(data.streams, method.feeds(data.streams)["labelled"], seed=0, device=device)
    (given,) = loader.iterate(0, 1)
    method.schedule(Progress(0, 10, 100))
    x, y = given.x, given.y
    student = settings.net.model_copy(update={"size": data.side}).build(len(data.classes), data.inputs, distilled=True)
    optimizer = DEIT.player(student, seed=0).optimizer
    teacher = cnn.net.eval()

    def bare() -> None:
        with torch.no_grad():
            told = teacher(x).argmax(1)
        cls, dist = student.heads(x)  # type: ignore[operator]
        (torch.nn.functional.cross_entropy(cls, y) + torch.nn.functional.cross_entropy(dist, told)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def taught() -> None:
        with torch.no_grad():
            teacher(x)

    views = loader.iterate(1, 10**6)
    return {
        "bare passes": bare, "DeiT-LT": lambda: method.update({"labelled": given}), "teacher alone": taught,
        "views": lambda: next(views),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="DeiT-LT step time as a ratio")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    steps = steps_of(args.batch)
    for step in steps.values():
        timed(step)
    rows = [{name: timed(step) for name, step in steps.items()} for _ in range(args.repeats)]
    print(f"torch {torch.__version__}, batch {args.batch}, {args.repeats} repeats, milliseconds of one core\n")
    print("| | median ms | ÷ bare passes |\n|---|---|---|")
    for name in steps:
        ratio = statistics.median(row[name] / row["bare passes"] for row in rows)
        print(f"| {name} | {statistics.median(row[name] for row in rows):.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
