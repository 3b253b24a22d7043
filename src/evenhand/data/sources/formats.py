"""What a user has on disk (class, split and domain folders, CSV, .npz, benchmark files) as named streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from evenhand.data.sources import databases, published
from evenhand.data.sources.classes import shared_classes
from evenhand.data.sources.files import Files, readable, sizes_of, typical_size
from evenhand.data.sources.frames import Asked, choose_frame
from evenhand.data.sources.paths import (
    SPLITS,
    SUFFIXES,
    existing,
    folders_in,
    images_in,
    natural,
    other_files,
    read_text,
    relative_names,
)
from evenhand.data.sources.rows import TABLES, Columns, header_of, rows_of
from evenhand.data.sources.stl import is_stl, read_stl
from evenhand.data.sources.tables import is_table_of_numbers, read_table
from evenhand.data.sources.texts import PLAIN, is_table_of_texts, read_texts
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError, did_you_mean

SLASHES = "\u2044\u2215\u29f8\uff0f\u2571"  # characters that look like one
Rows = list[tuple[Path, str | None]]  # a file and the name of its class


def read(
    path: str | Path,
    *,
    columns: Columns = PLAIN,
    size: int | None = None,
    mode: str = "RGB",
    skip_unreadable: bool = False,
    skipped: list[str] | None = None,
    memory: bool | None = None,
    classes: str | Sequence[str] | None = None,
    whole: bool = False,
    frame: Asked = "auto",
    empty: list[str] | None = None,
) -> Streams:
    """Streams from class, split or domain folders, a CSV, an ``.npz``, or own files of CIFAR, MNIST, STL-10 or LSUN.

    A CSV or TSV with a column ``text`` and a ``.jsonl`` hold texts, one of numbers and ``label`` vectors; ``columns``
    names them otherwise.

    ``<class>/*`` gives the key "all"; ``train|val|test/<class>/*`` and ``unlabelled/*`` the splits;
    ``<domain>/<class>/*`` the domains; a CSV ``path,label,domain,split`` splits, domains or "domain/split".
    Classes and files are in natural order of their names, whatever the disk says.

    size: default the median side that the frame fills, at most 224; arrays keep their own size and channels, STL-10
    takes it.
    frame: "crop", "pad" or "squash" to a square; "auto" chooses by the pictures' aspect.
    memory: None decodes images of at most 64 pixels into memory, False never, True always.
    classes: fixes names and order; "intersection" drops what some domain lacks.
    whole: no margin is cropped away, for generators.
    empty: class folders without images are added to it instead of being an error.
    skip_unreadable: drops bad files with a warning, and adds their names to ``skipped``.
    """
    place, kind = existing(path), Path(path).suffix.lower()
    given = None if isinstance(classes, str) else classes
    columns.check("" if place.is_dir() else kind, str(path))
    content = read_text(place) if place.is_file() and kind in (*TABLES, ".jsonl") else ""
    if place.is_dir():
        if databases.databases_in(place):
            if skip_unreadable:
                raise UserError(f"records of the LMDB '{place}' cannot be skipped; set data.skip_unreadable = false")
            return databases.read_databases(place, size=size, mode=mode, memory=memory, whole=whole, frame=frame)
        if is_stl(place):
            return read_stl(place, given, size=size)
        benchmark = published.read_folder(place, given)
        if benchmark is not None:
            return benchmark
        table, by_domain = _from_folder(place, empty)
    elif kind in TABLES and is_table_of_numbers(place, content, columns):
        return read_table(place, content, columns)
    elif kind == ".jsonl" or (kind in TABLES and is_table_of_texts(place, content, columns)):
        return read_texts(place, content, columns)
    elif kind in TABLES:
        table, by_domain = _from_csv(place, content, columns)
    elif kind == ".npz":
        return published.read_npz(place, given, bare=columns.bare)
    else:
        raise UserError(f"'{path}' is of unknown type '{kind}'; give a folder, a .csv, a .tsv, a .jsonl or an .npz")
    names, root = _agree(table, by_domain, classes), place if place.is_dir() else place.parent
    _refuse_twice(table)
    number = {name: index for index, name in enumerate(names)}
    for key, rows in table.items():
        rows = [row for row in rows if row[1] is None or row[1] in number]
        table[key] = readable(rows, mode, skipped) if skip_unreadable else rows
        if not table[key]:
            raise UserError(f"'{key}' has no images left after skipping files or classes")
    sizes = sizes_of([file for rows in table.values() for file, _ in rows])
    how = choose_frame(sizes)[0] if frame == "auto" else frame
    size = size or typical_size(sizes, how)
    streams = {}
    for key, rows in table.items():
        paths = [file for file, _ in rows]
        files = Files(paths, size=size, mode=mode, whole=whole, names=relative_names(paths, root), frame=how)
        labels = [number[label] for _, label in rows if label is not None]
        streams[key] = Stream(files.held(memory), torch.tensor(labels) if labels else None, names, key)
    return streams


def _from_folder(root: Path, empty: list[str] | None = None) -> tuple[dict[str, Rows], bool]:
    """The rows of each split or domain, and whether they are domains."""
    inside = folders_in(root)
    splits = [folder.name for folder in inside if folder.name in SPLITS]
    # A class may be called like a split, as VisDA's "train" is; it holds images where a split holds class folders.
    a_class = len(splits) < len(inside) and "unlabelled" not in splits and not any(folders_in(root / s) for s in splits)
    if splits and not a_class:
        for folder in inside:
            if folder.name not in SPLITS:
                hint = did_you_mean(folder.name, SPLITS)
                raise UserError(f"'{folder}' lies beside the split '{splits[0]}' but is no split itself; {hint}")
        return {
            name: [(p, None) for p in _some_images(root / name)]
            if name == "unlabelled"
            else _classes(root / name, empty)
            for name in SPLITS
            if name in splits
        }, False
    if all(len(image.relative_to(root).parts) != 2 for image in _some_images(root)):  # none directly in a class folder
        domains = [f for f in inside if folders_in(f) or not any(f.iterdir())]  # image_list/*.txt is no domain
        if domains:
            return {domain.name: _classes(domain, empty) for domain in domains}, True
    return {"all": _classes(root, empty)}, False


def _some_images(folder: Path) -> list[Path]:
    found = images_in(folder)
    if not found:
        others = ", ".join(f"{n} {suffix}" for suffix, n in sorted(other_files(folder).items()))
        raise UserError(f"no images under '{folder}'{f' ({others})' * bool(others)}; add some ({', '.join(SUFFIXES)})")
    return found


def _classes(folder: Path, empty: list[str] | None = None) -> Rows:
    rows: Rows = []
    inside = folders_in(folder)
    if not inside:
        raise UserError(f"'{folder}' has no class folders; expected {folder.name}/<class>/<image>")
    for each in inside:
        if odd := set(each.name) & set(SLASHES):
            raise UserError(f"class folder '{each}' has '{min(odd)}' in its name, which looks like a slash; rename it")
        found = images_in(each)
        if not found and empty is not None:
            empty.append(str(each))
        elif not found:
            raise UserError(f"class folder '{each}' is empty; add images ({', '.join(SUFFIXES)}) or remove it")
        rows += [(file, each.name) for file in found]
    return rows


def _from_csv(path: Path, content: str, columns: Columns) -> tuple[dict[str, Rows], bool]:
    header = columns.renamed(header_of(path, content), f"'{path}'")
    for column in ("path", "label"):
        if column not in header:
            raise UserError(f"'{path}' has no column '{column}'; {did_you_mean(column, header)}")
    optional = [column for column in ("domain", "split") if column not in header]
    for column in header:  # a misspelt optional column would silently merge the splits
        hint = did_you_mean(column, optional)
        if column not in ("path", "label") and hint.startswith("did"):
            raise UserError(f"'{path}' has an unknown column '{column}'; {hint}")
    table: dict[str, Rows] = {}
    for where, cells in rows_of(path, content, columns, quote="paths"):
        for column in {"path", "domain"} & set(header):
            if not cells[column]:
                raise UserError(f"{where} has no {column}; fill it in")
        split = cells.get("split")
        if split is not None and split not in SPLITS:
            raise UserError(f"{where}: split '{split}' is unknown; {did_you_mean(split, SPLITS)}")
        key = "/".join(part for part in (cells.get("domain"), split) if part) or "all"
        label = None if split == "unlabelled" else cells["label"] or None
        rows = table.setdefault(key, [])
        if rows and (rows[0][1] is None) != (label is None):
            raise UserError(f"{where}: '{key}' mixes rows with and without label; use split 'unlabelled'")
        rows.append((path.parent / cells["path"], label))
    if not table:
        raise UserError(f"'{path}' has a header but no rows; add some")
    return table, "domain" in header


def _refuse_twice(table: dict[str, Rows]) -> None:
    """A file that is listed twice would be trained on twice, or tested on what it was trained on."""
    seen: dict[Path, tuple[str, str | None]] = {}
    for key, rows in table.items():
        for file, label in rows:
            if file in seen:
                was = seen[file]
                raise UserError(f"'{file}' is listed twice, in {was[0]} as {was[1]} and in {key} as {label}; keep one")
            seen[file] = key, label


def _agree(table: dict[str, Rows], by_domain: bool, wanted: str | Sequence[str] | None) -> tuple[str, ...]:
    """The class names of all streams; domains must have the same, unless their intersection is wanted."""
    found: dict[str, set[str]] = {}
    for key, rows in table.items():
        for file, label in rows:
            if label is not None:
                if wanted and not isinstance(wanted, str) and label not in wanted:
                    raise UserError(
                        f"label '{label}' of '{file}' is outside the classes; {did_you_mean(label, wanted)}"
                    )
                found.setdefault(key.split("/")[0] if by_domain else "", set()).add(label)
    if wanted and not isinstance(wanted, str):
        return tuple(wanted)
    if wanted not in (None, "intersection"):
        raise UserError(f"classes must be names or 'intersection', got '{wanted}'")
    remedy = "add them or pass classes='intersection'"
    shared = shared_classes(found, intersection=wanted is not None, remedy=remedy)
    return tuple(sorted(shared, key=natural))
