"""Generated text: several sources write sentences of a small made-up language, by one grammar.

All sources share grammar and words, but every source has favourite words. So what one source writes
helps to predict the others, and sources differ as the authors of real texts do. A sample is a piece
of consecutive characters of one source; its label is the source.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from dystop.data.catalogue import DataSource
from dystop.data.dataset import Dataset, Splits, assemble
from dystop.params import param
from dystop.rng import stream
from dystop.sparse import Floats, Ints

ALPHABET = "\n ,.abcdefghijklmnopqrstuvwxyz"
"""The characters; a token id is a position in it."""

_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
_WORDS = {"noun": 60, "verb": 30, "adjective": 30}
_SENTENCES = (
    "the noun verb the noun.",
    "the adjective noun verb.",
    "a noun verb the adjective noun.",
    "every noun verb, and the noun verb.",
    "the noun of the noun verb a noun.",
)
_FAVOUR = 1.2  # how strongly a source prefers some words: exponent of a Zipf law


def _chances(count: int) -> Floats:
    """Return the chance of the first words together, for every number of first words."""
    summed = np.cumsum(np.arange(1, count + 1.0) ** -_FAVOUR)
    out: Floats = summed / summed[-1]
    return out


_CHANCES = {kind: _chances(count) for kind, count in _WORDS.items()}


@dataclass(frozen=True)
class GeneratedText(DataSource):
    """A text whose size and language are chosen."""

    name = "generated-text"
    summary = "characters of sentences that ten sources write, drawn from the seed; any size"
    licence = "none needed"
    task = "next-token"

    train: Annotated[int, Ge(1)] = param(2000, "training samples")
    test: Annotated[int, Ge(1)] = param(500, "test samples")
    length: Annotated[int, Ge(2)] = param(32, "characters in a sample")
    sources: Annotated[int, Ge(1)] = param(10, "sources, each with favourite words")
    first: Annotated[int, Ge(0)] = param(0, "number of the first source; others like other words")
    language: Annotated[int, Ge(0)] = param(0, "seed of all words and of the sources' favourites")

    @property
    def shape(self) -> tuple[int]:
        """Shape of a sample."""
        return (self.length,)

    @property
    def classes(self) -> int:
        """Number of labels."""
        return self.sources

    def load(self, seed: int) -> Dataset:
        """Generate the text of a seed."""
        return make_text(self, seed)


def make_text(params: GeneratedText, seed: int) -> Dataset:
    """Generate the text of a seed. Sources are balanced; the target is each next character.

    The words do not depend on the seed, so that a model of one text can learn from another.
    """
    train, y_train = _split(params, params.train, seed, "train")
    test, y_test = _split(params, params.test, seed, "test")
    made = assemble(
        "generated-text",
        Splits(train[:, :-1], y_train, test[:, :-1], y_test),
        classes=params.sources,
        class_names=[f"source {params.first + k}" for k in range(params.sources)],
        source=f"generated from seed {seed}",
    )
    targets = train[:, 1:], test[:, 1:]
    return replace(made, task="next-token", targets=targets, tokens=len(ALPHABET))


def decode(tokens: NDArray[np.integer]) -> str:
    """Return token ids as text.

    >>> decode(np.array([23, 8, 1]))
    'te '
    """
    return "".join(ALPHABET[k] for k in tokens.tolist())


def _split(
    params: GeneratedText, count: int, seed: int, split: str
) -> tuple[NDArray[np.int16], Ints]:
    """Return samples [count, length + 1] and their sources, in a random order."""
    size = params.length + 1
    labels = np.arange(count) % params.sources
    parts = []
    for source in range(params.sources):
        text = _text(
            params, params.first + source, int(np.sum(labels == source)) * size, seed, split
        )
        parts.append(np.array([ALPHABET.index(c) for c in text], np.int16).reshape(-1, size))
    joined = np.concatenate(parts)
    order = stream(seed, "text", split, "order").permutation(count)
    return joined[order], np.sort(labels)[order]


def _text(params: GeneratedText, source: int, characters: int, seed: int, split: str) -> str:
    """Return so many characters of one source."""
    words = _favourites(source, params.language)
    rng = stream(seed, "text", split, source)
    lines, written = [], 0
    while written < characters:
        lines.append(_sentence(words, rng) + ("\n" if rng.random() < 0.2 else " "))
        written += len(lines[-1])
    return "".join(lines)[:characters]


def _sentence(words: dict[str, list[str]], rng: np.random.Generator) -> str:
    text = _SENTENCES[rng.integers(len(_SENTENCES))]
    for kind, known in words.items():
        while kind in text:
            word = known[np.searchsorted(_CHANCES[kind], rng.random())]
            text = text.replace(kind, word, 1)
    return text


def _favourites(source: int, language: int) -> dict[str, list[str]]:
    """Return the words of every kind, those that a source likes best first."""
    rng, own = stream(language, "text", "words"), stream(language, "text", "favourites", source)
    words = {}
    for kind, count in _WORDS.items():
        made = ["".join(rng.choice(_SYLLABLES, rng.integers(2, 4))) for _ in range(count)]
        words[kind] = [made[k] for k in own.permutation(count)]
    return words
