"""Before training: does the recipe hold, are the files sound, how much memory and time will it take?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand import parallel
from evenhand.data.loader import Loader
from evenhand.data.sources.soundness import Problem, find_problems
from evenhand.data.stream import Streams
from evenhand.methods.protocol import Method, Progress
from evenhand.run.loop import use_threads
from evenhand.run.needs import needed_recipe
from evenhand.run.opening import build_method, check_needs, open_run, read_data
from evenhand.run.recipe import Recipe
from evenhand.run.selection import check_selection
from evenhand.run.training import check_method, check_start
from evenhand.settings import Settings

WARM, TIMED = 2, 4
PATIENCE = 20.0  # seconds after which fewer steps must do


def check_recipe(recipe: Recipe) -> list[Problem]:
    """Print what a run would use; returns the problems that would spoil it."""
    say = Console()
    check_start(recipe)
    if recipe.run.threads:
        use_threads(recipe.run.threads)
    data = read_data(recipe)
    problems = [p for p in find_problems(data.streams) if p.severity == "error"]
    _print_streams(data.streams, say)
    if data.facts.frame is not None and data.facts.size:
        told = data.facts.framing
        say.print(f"frame: {told.how} to {told.side} pixels (data.frame, data.size)", highlight=False)
    _print_problems(problems, say)
    device = parallel.local_device(recipe.run.device)
    check_needs(recipe)
    check_method(recipe, data)
    needs, before = _needed(recipe, device, say)
    recipe = _without_searches(recipe, say)
    method = build_method(recipe, data, device, needs)
    check_selection(method, data.streams, recipe.run.select, recipe.run.select_also)
    seconds, total, size = time_steps(method, data.streams, recipe, device)
    say.print(f"{size:,} parameters; {total:,} steps at {1000 * seconds:.0f} ms", highlight=False)
    say.print(f"about {clock(seconds * total)} on {device}, without evaluation; {_memory(device)}", highlight=False)
    if before:
        say.print(f"with the runs it needs about {clock(before + seconds * total)}", highlight=False)
    return problems


def _needed(recipe: Recipe, device: torch.device, say: Console) -> tuple[dict[str, Method], float]:
    """What [needs] names, with fresh weights where it is yet to be trained, and the seconds that will take."""
    found: dict[str, Method] = {}
    seconds = 0.0
    for name, need in recipe.needs.items():
        place = Path(need.recipe)
        if not (place / "model.json").is_file():
            other = needed_recipe(name, need, recipe)
            place = Path(other.run.folder)
            if not (place / "measure.json").is_file():
                found[name], took = _untrained(other, device, say)
                say.print(f"needs.{name}: {need.recipe}, about {clock(took)}", highlight=False, markup=False)
                seconds += took
                continue
        found[name] = open_run(place, device=str(device)).method
        say.print(f"needs.{name}: {place}, which is trained", highlight=False, markup=False)
    return found, seconds


def _untrained(recipe: Recipe, device: torch.device, say: Console) -> tuple[Method, float]:
    """A needed run's method with fresh weights, and the seconds that it and what it needs itself will take."""
    recipe = _without_searches(recipe, say)
    needs, before = _needed(recipe, device, say)
    check_start(recipe)
    data = read_data(recipe)
    method = build_method(recipe, data, device, needs)
    each, total, _ = time_steps(method, data.streams, recipe, device)
    return method, before + each * total


def _without_searches(recipe: Recipe, say: Console) -> Recipe:
    """A check does not train, so what a method would find by short trainings has its default here."""

    def plain(table: Any, where: str) -> Any:
        changed: dict[str, Any] = {}
        for key, field in type(table).model_fields.items():
            value = getattr(table, key)
            if isinstance(value, Settings):
                changed[key] = plain(value, f"{where}.{key}")
            elif value == "auto":
                say.print(f"{where}.{key} = 'auto' takes short trainings at the start (not estimated)", highlight=False)
                changed[key] = field.default
        return table.model_copy(update=changed)

    return recipe.model_copy(update={"method": plain(recipe.method, "method")})


def time_steps(method: Method, streams: Streams, recipe: Recipe, device: torch.device) -> tuple[float, int, int]:
    """Seconds per step on a throw-away method, steps of the whole run, and parameters."""
    run = recipe.run
    loaders = {
        name: Loader(streams, feed, seed=run.seed, device=device) for name, feed in method.feeds(streams).items()
    }
    epoch_steps = next(iter(loaders.values())).steps_per_epoch
    total = run.steps if run.steps is not None else round(run.epochs * epoch_steps)
    method.refresh(Progress(0, epoch_steps, max(1, total)), streams)
    method.schedule(Progress(0, epoch_steps, max(1, total)))
    batches = {name: loader.iterate(0, WARM + TIMED) for name, loader in loaders.items()}
    took: list[float] = []
    while len(took) < WARM + TIMED and sum(took) < PATIENCE:
        began = time.perf_counter()
        scalars = method.update({name: next(batch) for name, batch in batches.items()})
        sum(float(value) for value in scalars.values())  # waits for the device
        took.append(time.perf_counter() - began)
    timed = took[WARM:] or took[-1:]
    return sum(timed) / len(timed), total, method.size()


def _memory(device: torch.device) -> str:
    if device.type == "cuda":
        return f"peak GPU memory {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB"
    import resource

    return f"peak memory so far {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB"


def clock(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _print_streams(streams: Streams, say: Console) -> None:
    table = Table("stream", "samples", "classes", "largest", "smallest", "imbalance", box=None)
    for name, stream in streams.items():
        if stream.target is None:
            table.add_row(name, str(len(stream)), "-", "-", "-", "-")
            continue
        counts = stream.counts
        low, high = min(counts), max(counts)
        share = f"{high / low:.1f}" if low else "a class is empty"
        table.add_row(
            name, str(len(stream)), str(len(counts)), escape(f"{high} {stream.classes[counts.index(high)]}"),
            escape(f"{low} {stream.classes[counts.index(low)]}"), share,
        )  # fmt: skip
    say.print(table)


def _print_problems(problems: list[Problem], say: Console) -> None:
    for problem in problems[:20]:
        line = f"{problem.severity}: {problem.file}: {problem.message}"
        say.print(line, highlight=False, markup=False, soft_wrap=True)
    if len(problems) > 20:
        say.print(f"... and {len(problems) - 20} more")
