"""The data that a model is evaluated on: the text that its run held out, a prepared set, or any text."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, NamedTuple, TypeVar

from stoker.data.any_set import AnySet
from stoker.data.bert.hdf5 import are_hdf5
from stoker.data.bert.pairs import Pairs, PairSet, PairSplit
from stoker.data.prepare import PrepareProgress, ignore, is_prepared
from stoker.data.sets import open_set
from stoker.data.shards import Split, TokenSet
from stoker.data.tokenizer import LoadedTokenizer, has_tokenizer, load, load_folder
from stoker.inference.evaluate import tokenise
from stoker.models.load import LoadedModel
from stoker.observe.step_batch import token_set
from stoker.spec.data import Data
from stoker.spec.errors import UserError

HELD_OUT = "validation"
Show = Callable[[], AbstractContextManager[Callable[[PrepareProgress], None]]]
"""Opens a progress display for the preparation of text."""
SetT = TypeVar("SetT", TokenSet, PairSet)
SplitT = TypeVar("SplitT", Split, PairSplit)


class EvaluationData(NamedTuple, Generic[SetT, SplitT]):
    name: str
    """For messages."""
    tokens: SetT
    split: SplitT


class _OpenedSet(NamedTuple):
    name: str
    tokens: AnySet
    split: str | None
    """Which split to use; None for text, all of which is in the split `train`."""

    @property
    def full_name(self) -> str:
        return f"{self.name}, {self.split}" if self.split else self.name


def show_nothing() -> AbstractContextManager[Callable[[PrepareProgress], None]]:
    return nullcontext(ignore)


@contextmanager
def evaluation_data(
    loaded: LoadedModel,
    data: Sequence[str],
    *,
    split: str | None = None,
    tokenizer: str | None = None,
    show: Show = show_nothing,
) -> Iterator[EvaluationData[TokenSet, Split]]:
    """For a causal model. `data`: text or a prepared set; empty for the run's own."""
    with _opened(loaded, data, split=split, tokenizer=tokenizer, show=show) as opened:
        tokens = opened.tokens
        if isinstance(tokens, PairSet):
            raise UserError(
                f"{opened.name} holds sentence pairs for masked models", remedy="Name the text itself: --data FILE"
            )
        chosen = tokens.validation if opened.split == HELD_OUT else tokens.train
        _check(opened, loaded, count=chosen.tokens, unit="text")
        if opened.split:
            chosen.check_when_read()
        yield EvaluationData(opened.full_name, tokens, chosen)


@contextmanager
def masked_evaluation_data(
    loaded: LoadedModel,
    data: Sequence[str],
    *,
    split: str | None = None,
    tokenizer: str | None = None,
    length: int | None = None,
    show: Show = show_nothing,
) -> Iterator[EvaluationData[PairSet, PairSplit]]:
    """For a masked model. `data`: text, HDF5 files or a prepared set; empty for the run's own."""
    pairs = Pairs(length=sequence_length(loaded, length), vocab=loaded.shape.vocab)
    with _opened(loaded, data, split=split, tokenizer=tokenizer, show=show, pairs=pairs) as opened:
        tokens = opened.tokens
        if isinstance(tokens, TokenSet):
            raise UserError(
                f"{opened.name} holds tokens, and a masked model is evaluated on sentence pairs",
                remedy="Name the text itself: --data FILE",
            )
        chosen = tokens.validation if opened.split == HELD_OUT else tokens.train
        if not opened.split and not chosen.records:
            raise UserError(f"{opened.name} has fewer than two sentences, and so no pair", remedy="Name a longer text")
        _check(opened, loaded, count=chosen.records, unit="pairs")
        if opened.split:
            chosen.check_when_read()
        yield EvaluationData(opened.full_name, tokens, chosen)


def open_tokenizer(loaded: LoadedModel, name: str | None = None) -> LoadedTokenizer:
    """The tokenizer of that name or, by default, the model's own."""
    if name or loaded.tokenizer:
        return load(name or str(loaded.tokenizer))
    raise UserError(
        f"{loaded.origin} has no tokenizer", remedy="Name the one that it was trained with: --tokenizer DIR"
    )


def sequence_length(loaded: LoadedModel, length: int | None = None) -> int:
    """Tokens in a sequence: `length`, or that of the run, or the model's context."""
    context = loaded.shape.context
    length = length or (loaded.run.spec().batch.length if loaded.run else context)
    if length > context:
        raise UserError(
            f"--length is {length}, and the model reads {context} tokens at most", remedy=f"Give {context} or less"
        )
    return length


@contextmanager
def _opened(
    loaded: LoadedModel,
    data: Sequence[str],
    *,
    split: str | None,
    tokenizer: str | None,
    show: Show,
    pairs: Pairs | None = None,
) -> Iterator[_OpenedSet]:
    """The set to evaluate on. Text is prepared in a temporary folder; with `pairs`, as sentence pairs."""
    if not data:
        if loaded.run is None:
            raise UserError(f"{loaded.origin} has no data of its own", remedy="Name some: --data FILE")
        yield _OpenedSet(f"run '{loaded.run.name}'", token_set(loaded.run), split or HELD_OUT)
        return
    name = ", ".join(data)
    like = loaded.run.spec().data if loaded.run else Data(path=".")
    spec = like.model_copy(update={"path": list(data), "mix": None, "stream": False, "tokenizer": None})
    if is_prepared(spec):
        tokens = open_set(Path(data[0]))
        if isinstance(tokens, PairSet) == (pairs is not None):
            _check_tokenizer(name, tokens, loaded, tokenizer)
        yield _OpenedSet(name, tokens, split or HELD_OUT)
        return
    if split:
        raise UserError("--split is for prepared sets, and --data names files", remedy="Leave --split out")
    with TemporaryDirectory(prefix="stoker-eval-") as folder:
        with show() as progress:
            opened = None if pairs and are_hdf5(list(data)) else open_tokenizer(loaded, tokenizer)
            tokens = tokenise(spec, opened, Path(folder), progress, pairs=pairs)
        yield _OpenedSet(name, tokens, None)


def _check(opened: _OpenedSet, loaded: LoadedModel, *, count: int, unit: str) -> None:
    """`count`: of the tokens or pairs in the split."""
    name, tokens, split = opened
    vocab = loaded.shape.vocab or 0
    if split and not count:
        raise UserError(
            f"{name} has no held-out {unit}" if split == HELD_OUT else f"{name} has no {unit} to train on",
            remedy="Name some with --data FILE, or evaluate on the training text with --split train",
        )
    if tokens.vocab > vocab:
        raise UserError(
            f"{opened.full_name} has token ids up to {tokens.vocab - 1}, and the model has {vocab} tokens",
            remedy="Name the tokenizer that it was trained with: --tokenizer DIR",
        )


def _check_tokenizer(name: str, tokens: AnySet, loaded: LoadedModel, tokenizer: str | None) -> None:
    """With another tokenizer than the model's, the results would be meaningless."""
    if not has_tokenizer(tokens.tokenizer) or not (tokenizer or loaded.tokenizer):
        return
    vocabulary = load_folder(tokens.tokenizer).tokenizer.get_vocab()
    if open_tokenizer(loaded, tokenizer).tokenizer.get_vocab() != vocabulary:
        raise UserError(
            f"{name} was prepared with another tokenizer than the model's", remedy="Name the text itself: --data FILE"
        )
