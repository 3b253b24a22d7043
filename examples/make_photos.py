"""A stand-in for a folder of photographs: python examples/make_photos.py photos

Writes photos/train/<class>/*.png, long-tailed, and photos/test/<class>/*.png, balanced, from the drawn shapes.
"""

import sys
from pathlib import Path

import torch
from PIL import Image

from evenhand.data import longtail_counts, longtail_subset
from evenhand.data.sets import shapes

root = Path(sys.argv[1] if len(sys.argv) > 1 else "photos")
streams = shapes.load(per_class=60)
kept = {"train": longtail_counts(60, 10, imbalance=10), "test": [20] * 10}
for split, counts in kept.items():
    stream = streams[split]
    images = stream.fetch(torch.arange(len(stream)))
    for i in longtail_subset(stream.labels, counts, seed=0).tolist():
        folder = root / split / stream.classes[stream.labels[i]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i].permute(1, 2, 0).numpy()).save(folder / f"{i:03d}.png")
    print(f"{root / split}: {dict(zip(stream.classes, counts, strict=True))}")
