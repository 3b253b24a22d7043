"""The [data] table of a recipe."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from pydantic import Field, field_validator, model_validator

from evenhand.data.sources.frames import Asked
from evenhand.data.tokenising import TextSettings
from evenhand.data.views.images import PRESETS
from evenhand.errors import UserError
from evenhand.settings import Settings

STEPS = (
    "crop", "flip", "centre-crop", "resized-crop", "jitter", "grayscale", "blur", "cutout", "erase",
    "randaugment", "autoaugment", "crop-reflect", "resized-crop-bicubic", "resize", "jitter-0.3", "three-augment",
    "randaugment-deit", "erase-noise",
)  # fmt: skip
MOST = 10**12  # samples: beyond it is a slip of the pen


class DataSettings(Settings):
    """Which samples, made how uneven, seen how."""

    set: str = Field(
        "fashion-mnist", description="built-in name, folder, CSV, TSV, JSONL, .npz, or image list (with root)"
    )
    label_column: str = Field("label", min_length=1, description="of a CSV, TSV or JSONL: the column of classes")
    text_column: str = Field("text", min_length=1, description="of a CSV, TSV or JSONL of texts: theirs")
    columns: list[str] = Field([], description="of a CSV or TSV of numbers: those to learn from; default: all others")
    root: str | None = Field(None, description="folder that the paths of an image list or a COCO file start from")
    test_list: str | None = Field(None, description="image list of the test split")
    val_list: str | None = Field(None, description="image list of the validation split, where there is one")
    source: list[str] = Field([], description="domains to learn from; default: set itself. Needs target")
    target: str = Field("", description="domain to adapt to: of the set, or a built-in name, folder, CSV or list")
    classes: Literal["same", "intersection"] = Field(
        "same", description="all domains have the same, or keep those shared"
    )
    fog: float | None = Field(None, gt=0, le=1, description="of Foggy Cityscapes: the level to read, such as 0.02")
    size: int | None = Field(None, gt=0, le=2**14, description="image side; default: as stored")
    frame: Asked = Field("auto", description="crop, pad or squash pictures to squares; auto chooses by their aspect")
    squares: bool = Field(False, description="large files in training: random squares of the shorter side, not boxes")
    whole: bool = Field(False, description="files lose no margin and are not framed at random, as generators read them")
    enlarge: int | None = Field(None, gt=0, le=2**12, description="side that views enlarge images to, such as 224")
    embed: str = Field(
        "",
        description="replace images by features of a frozen net: mobilenet_v2, resnet18, resnet50, net:file, timm:name",
    )
    embed_size: int = Field(
        96, ge=32, le=2**14, description="side images are resized to before embedding; 224 for photographs"
    )
    grey: bool = Field(False, description="read images as grey")
    imbalance: float = Field(
        1.0, gt=0, le=1e9, description="largest over smallest class; 1 leaves the data as they are"
    )
    kind: Literal["exp", "step"] = Field("exp", description="profile of the long tail")
    n_max: int | None = Field(None, gt=0, le=MOST, description="samples of the largest class; default: all there are")
    unlabelled_max: int | None = Field(None, gt=0, le=MOST, description="as n_max, of unlabelled samples of the rest")
    unlabelled_kind: Literal["equal", "uniform", "inverted"] = Field("equal", description="their profile")
    labelled_share: float = Field(1.0, gt=0, le=1, description="of every class, once long-tailed; the rest unlabelled")
    added: str = Field(
        "", description="more training samples, such as drawn ones, beside those left: a folder, CSV or .npz"
    )
    order: str | list[str] = Field("index", description="most frequent class first: index, reversed, or class names")
    by_frequency: bool = Field(False, description="renumber classes by descending training count (image lists)")
    val_per_class: int = Field(
        0, ge=0, le=MOST, description="balanced validation carved from training before anything else"
    )
    val_share: float | None = Field(
        None, ge=0, lt=1, description="of every class (of the source), held out as validation; default: 0.1 with target"
    )
    test_share: float = Field(0.2, gt=0, lt=1, description="held out as test when the data name no test split")
    target_test_share: float = Field(
        0.0, ge=0, lt=1, description="with target: held out of its classes as test, out of reach of training"
    )
    target_max: int | None = Field(None, gt=0, le=MOST, description="use only that many samples of the target's pool")
    labels: str = Field(
        "", description="CSV name,label of samples of target, pool or the unlabelled part that training may know"
    )
    pool: str = Field("", description="without target: folder, CSV or .npz of the samples that labels is about")
    min_per_class: int = Field(
        2, ge=2, le=MOST, description="classes of fewer different samples train and are left out of held-out shares"
    )
    test_per_class: int | None = Field(None, gt=0, le=MOST, description="use only that many test samples of each class")
    split_seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="seeds the split, not the training; also of built-in sets that come without one",
    )
    groups: str = Field("thirds", description="head/mid/tail: thirds, 3/4/3, shots:100,20 or halves")
    augment: list[str] = Field(["crop", "flip"], description=f"training view of images: {', '.join(STEPS)}")
    strong: list[str] = Field(
        list(PRESETS["strong"]), description="the second, strong view of unlabelled images: the same steps"
    )
    normalise: Literal["data", "imagenet"] | list[list[float]] = Field("data", description="or [[means], [stds]]")
    skip_unreadable: bool = Field(False, description="drop damaged files instead of stopping")
    text: TextSettings = TextSettings()

    @property
    def in_memory(self) -> bool | None:
        """False where a view cuts random boxes out of whole pictures: these then stay files, whatever their size."""
        boxes = {"resized-crop", "resized-crop-bicubic"}
        return False if boxes & {*self.augment, *self.strong} else None

    @field_validator("order")
    @classmethod
    def _known_order(cls, value: str | list[str]) -> str | list[str]:
        if isinstance(value, str) and value not in ("index", "reversed"):
            raise ValueError(f"'{value}' is not an order; use index, reversed, or a list of class names")
        return value

    @model_validator(mode="after")
    def _one_source_of_unlabelled(self) -> DataSettings:
        if self.labelled_share < 1 and self.unlabelled_max is not None:
            raise ValueError("labelled_share and unlabelled_max both choose unlabelled samples; leave one out")
        if self.val_per_class and self.val_share:
            raise ValueError("val_per_class and val_share both hold out validation; leave one out")
        return self


def refuse_without_effect(settings: DataSettings, parts: Collection[str]) -> None:
    """Keys that would change nothing in data that have these parts."""
    useless = {
        "test_share": "the data bring a test split" if "test" in parts else "",
        "val_share": "the data bring a val split" if "val" in parts else "",
        "embed_size": "" if settings.embed else "data.embed is not set",
        "test_list": "" if settings.root else "data.root is not set",
        "by_frequency": "" if settings.root else "data.root is not set",
        "unlabelled_kind": "" if settings.unlabelled_max else "data.unlabelled_max is not set",
        "fog": "it is for scenes of Foggy Cityscapes",
        "kind": "" if settings.imbalance != 1 else "data.imbalance is 1",
    }
    for key, why in useless.items():
        if why and _set(settings, key) and getattr(settings, key):
            raise UserError(f"data.{key} = {getattr(settings, key)!r} has no effect, for {why}; leave it out")


def refuse_of_texts(settings: DataSettings) -> None:
    """What changes images has no effect on texts, so it is refused; the defaults are passed over."""
    for key in ("augment", "strong"):
        if _set(settings, key):
            raise UserError(f"data.{key} is for images; the views of texts are data.text.{key}")
    for key in ("size", "frame", "grey", "normalise"):
        if _set(settings, key):
            raise UserError(f"data.{key} is for images and has no effect on texts; leave it out")


def refuse_of_vectors(settings: DataSettings) -> None:
    """As of texts; the images behind embedded vectors have a size, a frame and colours."""
    for key in ("augment", "strong"):
        value = getattr(settings, key)
        if value and _set(settings, key):
            raise UserError(f"data.{key} = {value} changes images, but the samples are vectors; set data.{key} = []")
    if settings.normalise == "imagenet":
        raise UserError('data.normalise = "imagenet" is for images, but the samples are vectors; use "data"')
    for key in () if settings.embed else ("size", "frame", "grey"):
        if _set(settings, key):
            raise UserError(f"data.{key} is for images and has no effect on vectors; leave it out")


def _set(settings: DataSettings, key: str) -> bool:
    return bool(getattr(settings, key) != DataSettings.model_fields[key].default)
