"""Classify: which class is it? Judged class by class; of a domain without labels, by what needs none."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evenhand.tasks import Scores, Task
from evenhand.tasks.metric import Metric, score

if TYPE_CHECKING:  # what measures imports torch, which a report does without
    from pathlib import Path

    from torch import Tensor

    from evenhand.data.prepared import Data
    from evenhand.data.stream import Stream, Streams
    from evenhand.methods.protocol import Recogniser
    from evenhand.report.sections import Sections

PREDICTED, COMPARED, PICTURED = 2000, 400, 300  # rows that suffice for scores, for distances, for a picture
LABEL_FREE = ("entropy", "infomax", "density")  # of measure.shift.SCORES
EXPERTS = ("cls", "dist")  # the two heads of a distilled transformer
EXPERT_NUMBERS = {"mean_recall": "mean recall", "head": "head recall", "mid": "mid recall", "tail": "tail recall"}
TRACED = 20  # classes with a line of their own in the log: the largest and the rarest


class Classify(Task):
    """Recalls, precision, calibration; of a target domain, label-free scores and distances."""

    name = "classify"
    noun = "samples"
    metrics = (
        Metric("accuracy", "accuracy"),
        Metric("mean_recall", "mean recall"),
        Metric("head", "head recall", path=("group_recall", "head")),
        Metric("mid", "mid recall", path=("group_recall", "mid")),
        Metric("tail", "tail recall", path=("group_recall", "tail")),
        Metric("min_recall", "min recall"),
        Metric("ece", "ECE", higher_is_better=False),
        Metric("ece_scaled", "ECE after temperature scaling", higher_is_better=False, shown=False,
               path=("temperature", "ece"), late=True),
        Metric("g_mean", "G-mean of recalls", shown=False),
        Metric("h_mean", "H-mean of recalls", shown=False),
        Metric("macro_f1", "macro F1", shown=False),
        Metric("micro_f1", "micro F1", shown=False),
        Metric("top5", "top-5 accuracy", shown=False),
        Metric("min_coverage", "min coverage", digits=2, shown=False),
        Metric("coverage_violation", "coverage below 0.95/K", digits=2, higher_is_better=False, shown=False),
        Metric("min_head_tail_recall", "worse of head and tail recall", shown=False, groups=("head", "tail")),
        Metric("min_head_tail_coverage", "worse of head and tail coverage", digits=2, shown=False,
               groups=("head", "tail")),
        score("loss", "cross-entropy", lower=True, shown=False),
        *(Metric(f"{expert}_{key}", f"{name} of {expert.upper()} alone", shown=False, late=True,
                 path=("experts", expert, key))
          for expert in EXPERTS for key, name in EXPERT_NUMBERS.items()),
        *(score(name, path=("adaptation", name), shown=False, late=True) for name in LABEL_FREE),
    )  # fmt: skip
    headline, tail = metrics[1], metrics[4]
    per_class = (Metric("recall", "recall"),)
    aims = MappingProxyType({
        "coverage": ("min_coverage", "coverage_violation"),
        "head-tail-coverage": ("min_head_tail_coverage",),
        "f-beta": ("macro_f1",),
    })  # fmt: skip

    def score(self, method: Recogniser, stream: Stream, *, batch: int = 512) -> Scores:
        from evenhand.measure.classification import evaluate
        from evenhand.measure.confusion import absent_classes, coverages, recalls

        found, groups = evaluate(method.predict, stream, batch=batch), method.data.groups
        C = found.confusion
        by_class = {"recall": recalls(C), "coverage": coverages(C)}
        numbers = found.scalars(groups) | found.group_recalls(groups)
        return numbers | _traces(method.data, by_class, absent_classes(C)) | method.traces()

    def table(self, method: Recogniser, stream: Stream, *, batch: int = 512) -> dict[str, Any]:
        from evenhand import parallel
        from evenhand.measure.classification import evaluate
        from evenhand.measure.examples import files_of

        found, groups = evaluate(method.predict, stream, batch=batch), method.data.groups
        files = files_of(found, stream) if parallel.is_writer() else {}
        table = found.table(groups) | files | method.details()
        for name, answers in method.experts().items():
            alone = evaluate(answers, stream, batch=batch).table(groups)
            numbers = {key: alone[key] for key in ("accuracy", "mean_recall", "min_recall")}
            table.setdefault("experts", {})[name] = {**numbers, **alone["group_recall"], "recall": alone["recall"]}
        return table

    def watch(self, method: Recogniser, streams: Streams, *, batch: int = 512) -> dict[str, Scores]:
        """Of a target domain: what its predictions look like, and how far it is from the source.

        Features of samples trained on lie apart from those of others of the same domain. So seen is compared with
        seen: with the source's training samples if the target's are trained on, else with its held-out ones; where
        none are held out there is nothing to compare it with. Seen is not all: the source's labels were learned too.
        """
        from evenhand.measure import shift

        if "target" not in streams:
            return {}
        target = streams["target"]
        source = streams.get("source" if "target" in method.feeds(streams) else "val")
        logits = on_some(method.predict, target, PREDICTED, batch)
        values = {name: score(logits) for name, score in shift.SCORES.items() if len(logits) > 1}
        values["target_entropy"] = shift.target_entropy(logits)
        values["largest_share"] = shift.largest_share(logits)
        values["effective_classes"] = shift.effective_classes(logits)
        values["possible_classes"] = float(min(logits.shape))
        return {"target": values | ({} if source is None else self._apart(method, source, target, batch))}

    def _apart(self, method: Recogniser, source: Stream, target: Stream, batch: int) -> Scores:
        """How far two domains are from each other, by features and by the method's own discriminator."""
        from torch.nn.functional import softplus

        from evenhand.measure import shift

        if not method.embeds or min(len(source), len(target)) < 2:
            return {}
        values = {"a_distance": shift.proxy_a_distance(*(
            on_some(method.embed, stream, COMPARED, batch) for stream in (source, target)
        ))}  # fmt: skip
        if method.tells:
            ours, theirs = (on_some(method.tell, stream, COMPARED, batch) for stream in (source, target))
            values["domain_accuracy"] = shift.domain_accuracy(ours, theirs)
            values["domain_loss"] = float(softplus(-ours).mean() + softplus(theirs).mean()) / 2
        return values

    def troubles(self, watched: dict[str, Scores], keys: Collection[str] = ()) -> dict[str, str]:
        from evenhand.measure.shift import adaptation_troubles

        return adaptation_troubles(watched.get("target", {}), keys)

    def finish(self, method: Recogniser, data: Data, folder: Path, *, batch: int = 512) -> dict[str, Any]:
        return self._scaled(method, data.streams, batch) | self._domains(method, data, batch)

    def temperature(self, method: Recogniser, streams: Streams, *, batch: int = 512) -> float | None:
        """What logits are to be divided by so that confidences are right on validation; None without one."""
        from evenhand.measure.calibration import fit_temperature
        from evenhand.measure.classification import predict_all

        val = streams.get("val")
        if val is None or val.labels is None or not len(val):
            return None
        return fit_temperature(predict_all(method.predict, val, batch=batch), val.labels)

    def _scaled(self, method: Recogniser, streams: Streams, batch: int) -> dict[str, Any]:
        """What a temperature makes of the calibration on the test split; it is fitted on validation, never there."""
        from evenhand.measure.classification import evaluate

        test = streams.get("test")
        if test is None or test.labels is None or (fitted := self.temperature(method, streams, batch=batch)) is None:
            return {}
        found = evaluate(lambda x: method.predict(x) / fitted, test, batch=batch)
        numbers = found.scalars()
        return {
            "temperature": {
                "value": fitted, "fitted_on": "val", "ece": numbers["ece"], "loss": numbers["loss"],
                "reliability": found.table({})["reliability"],
            }
        }  # fmt: skip

    def _domains(self, method: Recogniser, data: Data, batch: int) -> dict[str, Any]:
        """Of an adaptation: its label-free numbers, and both domains in the plane of largest variance, with labels.

        Where both domains have samples that nothing was trained on, these are compared in the place of those seen.
        """
        import torch

        from evenhand.measure.shift import principal_plane

        watched = self.watch(method, data.streams, batch=batch)
        if not watched:
            return {}
        found: dict[str, Any] = dict(watched["target"])
        if not method.embeds:
            return {"adaptation": found}
        target, val = data.streams["target"], data.streams.get("val")
        test = data.streams.get("test", target)
        seen = "target" in method.feeds(data.streams)
        fresh = not (seen and _overlap(test, target))
        if seen and fresh and val is not None:
            found |= self._apart(method, val, test, batch)
        streams = {"source": val if fresh and val is not None else data.labelled, "target": test}
        features = [on_some(method.embed, stream, PICTURED, batch) for stream in streams.values()]
        planes = principal_plane(torch.cat(features)).split([len(part) for part in features])
        for (name, stream), points in zip(streams.items(), planes, strict=True):
            labels = None if stream.labels is None else stream.labels[some_rows(stream, PICTURED)].tolist()
            found[f"{name}_points"] = {"xy": points.tolist(), "labels": labels}
        return {"adaptation": found}

    def sections(self) -> Sections:
        from evenhand.report.classify import SECTIONS

        return SECTIONS


CLASSIFY = Classify()


def _traces(data: Data, values: dict[str, Tensor], absent: list[int]) -> Scores:
    """Values (K,) of the largest and the rarest classes there are, as the log takes them: ``recall:shirt``."""
    ranked = sorted(set(range(len(data.classes))) - set(absent), key=lambda k: (-data.counts[k], k))
    few = ranked if len(ranked) <= TRACED else [*ranked[: TRACED // 2], *ranked[-TRACED // 2 :]]
    return {f"{key}:{data.classes[k]}": float(part[k]) for key, part in values.items() for k in sorted(few)}


def _overlap(test: Stream, target: Stream) -> bool:
    """Whether they share samples: of one name, which may be a row's number in each, and of one content."""
    import torch

    from evenhand.data.labels import named

    first, second = ({name: row for row, name in enumerate(named(stream))} for stream in (test, target))
    both = sorted(first.keys() & second.keys())[:8]
    seen = (
        stream.fetch(torch.tensor([rows[name] for name in both])) for stream, rows in ((test, first), (target, second))
    )
    return bool(both) and torch.equal(*seen)


def on_some(function: Callable[[Any], Tensor], stream: Stream, most: int, batch: int) -> Tensor:
    """A function of at most ``most`` samples spread evenly over the stream, the same every time."""
    import torch

    with torch.no_grad():
        found = [function(stream.fetch(rows)).float().cpu() for rows in some_rows(stream, most).split(batch)]
        return torch.cat(found)


def some_rows(stream: Stream, most: int) -> Tensor:
    import torch

    count = min(len(stream), most)
    return torch.arange(count) * len(stream) // count
