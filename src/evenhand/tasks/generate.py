"""Generate: images of every class. Judged in features of real and drawn images, by an annotator, class by class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenhand.tasks import Scores, Task
from evenhand.tasks.metric import Metric, score

if TYPE_CHECKING:  # what measures imports torch, which a report does without
    from pathlib import Path

    from evenhand.data.prepared import Data
    from evenhand.data.stream import Stream, Streams
    from evenhand.methods.protocol import Drawer
    from evenhand.report.sections import Sections


class Generate(Task):
    """FID and its kin, shares and variety of the classes drawn."""

    name = "generate"
    noun = "images drawn"
    metrics = (
        score("fid", "FID", digits=2, lower=True),
        score("kid", "KID × 1000", digits=2, lower=True, scale=1000.0, late=True),
        score("precision", late=True),
        score("recall", late=True),
        score("density", late=True),
        score("coverage", late=True),
        score("label_kl", "label KL", lower=True),
        score("inception_score", "Inception score", digits=2, late=True),
        score("annotator_score", "annotator score", digits=2, shown=False, late=True),
        Metric("annotator_agreement", "agreement", late=True),
        Metric("tail_agreement", "tail agreement", shown=False, path=("group_agreement", "tail"), late=True),
        score("head", "head FID", digits=2, lower=True, path=("group_fid", "head"), late=True),
        score("mid", "mid FID", digits=2, lower=True, path=("group_fid", "mid"), late=True),
        score("tail", "tail FID", digits=2, lower=True, path=("group_fid", "tail"), late=True),
        Metric("cas", "CAS", path=("classifier_score", "accuracy"), late=True),
        Metric("cas_worst", "CAS, worst class", path=("classifier_score", "min_recall"), late=True),
        score("tail_z_sensitivity", "tail z-sensitivity", digits=2, path=("group_z_sensitivity", "tail"), late=True),
        score("tail_patterns", "tail patterns", digits=2, shown=False, path=("group_patterns", "tail"), late=True),
    )
    headline, tail = metrics[0], metrics[13]
    per_class = (
        score("class_fid", "FID", digits=2, lower=True),
        Metric("class_shares", "drawn"),
        Metric("class_agreement", "agreement"),
        score("diversity", digits=2),
        score("patterns", digits=2),
        score("z_sensitivity", "z-sensitivity", digits=2),
    )
    judged_by = ("features", "resize", "dimensions", "reference", "real_count", "fake_count", "k")
    whole = True

    def lacks(self, method: Drawer, key: str) -> str:
        needed = key == "label_kl" and method.judge.annotator is None
        return "nobody names the classes of what is drawn: set needs.annotator" if needed else ""

    def score(self, method: Drawer, stream: Stream, *, batch: int = 512) -> Scores:
        images, labels = method.exhibit(method.judge.settings.judge_samples, "judge")
        return method.judge.scalars(images, labels, stream, batch=batch) | method.traces()

    def table(self, method: Drawer, stream: Stream, *, batch: int = 512) -> dict[str, Any]:
        from evenhand.measure.judging import group_means

        images, labels = method.exhibit(method.judge.settings.samples, "examine")
        told, groups = method.details(), method.data.groups
        if "z_sensitivity" in told:
            told["group_z_sensitivity"] = group_means(told["z_sensitivity"], groups)
        return method.judge.table(images, labels, stream, groups, batch=batch) | told

    def watch(self, method: Drawer, streams: Streams, *, batch: int = 512) -> dict[str, Scores]:
        """Without validation: shares and variety of the classes drawn, and what the method says of itself.

        Classes are those asked for, or the annotator's; where there are neither, nothing can be said of them.
        """
        if "val" in streams or not (method.labelled or method.judge.annotator):
            return {}
        images, labels = method.exhibit(method.judge.settings.judge_samples, "judge")
        found = method.judge.watch(images, labels, streams["labelled"], batch=batch)
        return {"traces": found | method.traces()}

    def finish(self, method: Drawer, data: Data, folder: Path, *, batch: int = 512) -> dict[str, Any]:
        """Real and drawn images side by side, as ``sheet.png``, latents as ``latents.png``; how near to copies."""
        from evenhand import parallel
        from evenhand.measure.latents import write_plane
        from evenhand.measure.memorised import copying_of
        from evenhand.measure.sheet import write_sheet

        found: dict[str, Any] = {}
        if (latents := method.latents()) is not None and parallel.is_writer():
            write_plane(folder / "latents.png", *latents, method.data.classes)
        if "test" in data.streams:
            write_sheet(folder / "sheet.png", method, data.streams["test"], data.counts)
        if {"labelled", "test"} <= data.streams.keys():
            images, _ = method.exhibit(method.judge.settings.judge_samples, "copying")
            seen, held, turned = data.streams["labelled"], data.streams["test"], data.train_view.mirrors
            found["copying"] = copying_of(method.judge.extractor, images, seen, held, batch=batch, mirrored=turned)
        return found

    def sections(self) -> Sections:
        from evenhand.report.generate import SECTIONS

        return SECTIONS


GENERATE = Generate()
