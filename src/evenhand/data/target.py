"""What is to be learnt of each sample: its class, or boxes with classes. A stream without one hides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from evenhand.errors import UserError


class Target(Protocol):
    """The truth about N samples. A new kind (several labels a sample, masks) is a new class with these members."""

    def __len__(self) -> int: ...

    def of(self, rows: Tensor) -> Any:
        """What a batch of these samples carries."""
        ...

    def pick(self, rows: Tensor) -> Target: ...

    def join(self, others: Sequence[Any]) -> Target:
        """This truth, then that of others of its kind."""
        ...

    def counts(self, num_classes: int) -> list[int]:
        """How often each class is there."""
        ...

    def check(self, num_classes: int, where: str) -> None:
        """Refuse labels outside 0..num_classes-1."""
        ...

    def identity(self) -> bytes: ...


@dataclass(frozen=True)
class Classes:
    """One class for each sample: ``labels`` (N,)."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, rows: Tensor) -> Tensor:
        return self.labels[rows]

    def pick(self, rows: Tensor) -> Classes:
        return Classes(self.labels[rows])

    def join(self, others: Sequence[Classes]) -> Classes:
        return Classes(torch.cat([self.labels, *(other.labels for other in others)]))

    def counts(self, num_classes: int) -> list[int]:
        return torch.bincount(self.labels, minlength=num_classes).tolist()

    def check(self, num_classes: int, where: str) -> None:
        outside = (self.labels < 0) | (self.labels >= num_classes)
        if outside.any():
            at = int(outside.nonzero()[0])
            raise UserError(
                f"{where}: label {int(self.labels[at])} of sample {at} is outside 0..{num_classes - 1}; "
                "renumber the labels or name every class"
            )

    def identity(self) -> bytes:
        return self.labels.numpy().tobytes()


class Found(NamedTuple):
    """The objects of one image: boxes (m, 4) as left, top, right, bottom in pixels, and their classes (m,).

    ``optional`` (m,) marks those that need not be found (VOC's difficult ones, COCO's crowds) and are not trained on.
    """

    boxes: Tensor
    labels: Tensor
    optional: Tensor | None = None

    def pick(self, rows: Tensor) -> Found:
        return Found(self.boxes[rows], self.labels[rows], None if self.optional is None else self.optional[rows])

    @property
    def needed(self) -> Found:
        """Without the optional ones."""
        return self if self.optional is None else self.pick(~self.optional)


@dataclass(frozen=True)
class Boxes:
    """Any number of objects for each image, none included."""

    objects: Sequence[Found]

    def __len__(self) -> int:
        return len(self.objects)

    def of(self, rows: Tensor) -> list[Found]:
        return [self.objects[row] for row in rows.tolist()]

    def pick(self, rows: Tensor) -> Boxes:
        return Boxes(self.of(rows))

    def join(self, others: Sequence[Boxes]) -> Boxes:
        return Boxes([found for part in (self, *others) for found in part.objects])

    def _labels(self) -> Tensor:
        return torch.cat([torch.empty(0, dtype=torch.int64), *(found.labels for found in self.objects)])

    def counts(self, num_classes: int) -> list[int]:
        return torch.bincount(self._labels(), minlength=num_classes).tolist()

    def check(self, num_classes: int, where: str) -> None:
        for at, found in enumerate(self.objects):
            if found.boxes.shape != (len(found.labels), 4):
                shape, count = tuple(found.boxes.shape), len(found.labels)
                raise UserError(f"{where}: sample {at} has boxes {shape} for {count} labels; give (m, 4) and (m,)")
            Classes(found.labels).check(num_classes, f"{where}, image {at}")

    def identity(self) -> bytes:
        return b"".join(part.numpy().tobytes() + b"\0" for found in self.objects for part in found if part is not None)
