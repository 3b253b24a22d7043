"""``phrases``: the same texts for everybody, of the words of their subject."""

from __future__ import annotations

from evenhand.data.sets import phrases


def test_the_set_is_the_same_for_everybody() -> None:
    train, test = phrases.load().values()
    texts = train.samples.texts  # type: ignore[attr-defined]
    assert [texts[row] for row in (0, 61, 130, 299)] == [
        "Heron lynx morning with this swallow little morning swallow old very this.",
        "Evening very morning rice and with we rice.",
        "Never drum very flute choir is a choir.",
        "Hail with sunshine rain wind very is near.",
    ]
    assert test.samples.texts[0] == "Saw was hare never again evening saw little little heron."  # type: ignore[attr-defined]
    assert train.counts == test.counts == [60] * 5
    assert (train.name, train.samples.name(3), test.samples.name(299)) == ("phrases train", "train/3", "test/299")


def test_two_to_four_words_are_of_the_subject_and_twice_two_to_four_are_not() -> None:
    few, many = set(), set()
    for stream in phrases.load().values():
        for row, k in enumerate(stream.labels.tolist()):  # type: ignore[union-attr]
            words = stream.samples.texts[row].removesuffix(".").lower().split()  # type: ignore[attr-defined]
            own = [word for word in words if word in phrases.SUBJECTS[stream.classes[k]].split()]
            few.add(len(own))
            many.add(len(words) - len(own))
            assert all(word in own or word in phrases.COMMON.split() for word in words)
    assert (few, many) == ({2, 3, 4}, {4, 6, 8})
