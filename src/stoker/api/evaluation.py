"""The data that a model is evaluated on: the text that its run held out, a prepared set, or any text."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stoker.data.any_set import AnySet
from stoker.data.bert.hdf5 import are_hdf5
from stoker.data.bert.pairs import Pairs, PairSet, PairSplit
from stoker.data.prepare import PrepareProgress, ignore, is_prepared
from stoker.data.sets import open_set
from stoker.data.shards import Split, TokenSet
from stoker.data.tokenizer import TOKENIZER_FILE, LoadedTokenizer, load, load_folder
from stoker.inference.evaluate import tokenise
from stoker.models.load import LoadedModel
from stoker.observe.step_batch import token_set
from stoker.spec.data import Data
from stoker.spec.errors import UserError

HELD_OUT = "validation"
Show = Callable[[], AbstractContextManager[Callable[[PrepareProgress], None]]]
"""Opens a progress display for the preparation of text."""


class EvaluationData(NamedTuple):
    name: str
    """For messages."""
    tokens: TokenSet
    split: Split


class MaskedEvaluationData(NamedTuple):
    name: str
    """For messages."""
    pairs: PairSet
    split: PairSplit


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
) -> Iterator[EvaluationData]:
    """For a causal model. `data`: text or a prepared set; empty for the run's own."""
    if not data:
        name, tokens = _own_set(loaded)
        yield _token_split(name, tokens, split)
        return
    name = ", ".join(data)
    like = loaded.run.spec().data if loaded.run else Data(path=".")
    spec = like.model_copy(update={"path": list(data), "mix": None, "stream": False, "tokenizer": None})
    if is_prepared(spec):
        tokens = open_set(Path(data[0]))
        _check_tokenizer(name, tokens, loaded, tokenizer)
        yield _token_split(name, tokens, split)
        return
    if split:
        raise UserError("--split is for prepared sets, and --data names text", remedy="Leave --split out")
    with TemporaryDirectory(prefix="stoker-eval-") as folder:
        with show() as progress:
            tokens = tokenise(spec, open_tokenizer(loaded, tokenizer), Path(folder), progress)
        assert isinstance(tokens, TokenSet)
        yield EvaluationData(name, tokens, tokens.train)


@contextmanager
def masked_evaluation_data(
    loaded: LoadedModel,
    data: Sequence[str],
    *,
    split: str | None = None,
    tokenizer: str | None = None,
    length: int | None = None,
    show: Show = show_nothing,
) -> Iterator[MaskedEvaluationData]:
    """For a masked model. `data`: text, HDF5 files or a prepared set; empty for the run's own."""
    if not data:
        name, pairs = _own_set(loaded)
        yield _pair_split(name, pairs, split)
        return
    name, like = ", ".join(data), loaded.run.spec().data if loaded.run else Data(path=".")
    spec = like.model_copy(update={"path": list(data), "tokenizer": None})
    if is_prepared(spec):
        prepared = open_set(Path(data[0]))
        if isinstance(prepared, PairSet):
            _check_tokenizer(name, prepared, loaded, tokenizer)
        yield _pair_split(name, prepared, split)
        return
    if split:
        raise UserError("--split is for prepared sets, and --data names files", remedy="Leave --split out")
    with TemporaryDirectory(prefix="stoker-eval-") as folder:
        with show() as progress:
            opened = None if are_hdf5(list(data)) else open_tokenizer(loaded, tokenizer)
            shape = Pairs(length=sequence_length(loaded, length), vocab=loaded.shape.vocab)
            pairs = tokenise(spec, opened, Path(folder), progress, pairs=shape)
        assert isinstance(pairs, PairSet)
        if not pairs.train.records:
            raise UserError(f"{name} has fewer than two sentences, and so no pair", remedy="Name a longer text")
        yield MaskedEvaluationData(name, pairs, pairs.train)


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


def has_tokenizer(tokens: AnySet) -> bool:
    return (tokens.tokenizer / TOKENIZER_FILE).is_file()


def _own_set(loaded: LoadedModel) -> tuple[str, AnySet]:
    if loaded.run is None:
        raise UserError(f"{loaded.origin} has no data of its own", remedy="Name some: --data FILE")
    return f"run '{loaded.run.name}'", token_set(loaded.run)


def _token_split(name: str, tokens: AnySet, split: str | None) -> EvaluationData:
    if not isinstance(tokens, TokenSet):
        raise UserError(f"{name} holds sentence pairs for masked models", remedy="Name the text itself: --data FILE")
    chosen = tokens.train if split == "train" else tokens.validation
    if not chosen.tokens:
        raise UserError(
            f"{name} has no held-out text" if chosen is tokens.validation else f"{name} has no text to train on",
            remedy="Name some with --data FILE, or evaluate on the training text with --split train",
        )
    chosen.check_when_read()
    return EvaluationData(f"{name}, {split or HELD_OUT}", tokens, chosen)


def _pair_split(name: str, pairs: AnySet, split: str | None) -> MaskedEvaluationData:
    if not isinstance(pairs, PairSet):
        raise UserError(
            f"{name} holds tokens, and a masked model is evaluated on sentence pairs",
            remedy="Name the text itself: --data FILE",
        )
    chosen = pairs.train if split == "train" else pairs.validation
    if not chosen.records:
        raise UserError(
            f"{name} has no held-out pairs" if chosen is pairs.validation else f"{name} has no pairs to train on",
            remedy="Name some with --data FILE, or evaluate on the training text with --split train",
        )
    chosen.check_when_read()
    return MaskedEvaluationData(f"{name}, {split or HELD_OUT}", pairs, chosen)


def _check_tokenizer(name: str, tokens: AnySet, loaded: LoadedModel, tokenizer: str | None) -> None:
    """With another tokenizer than the model's, the results would be meaningless."""
    if not has_tokenizer(tokens) or not (tokenizer or loaded.tokenizer):
        return
    vocabulary = load_folder(tokens.tokenizer).tokenizer.get_vocab()
    if open_tokenizer(loaded, tokenizer).tokenizer.get_vocab() != vocabulary:
        raise UserError(
            f"{name} was prepared with another tokenizer than the model's", remedy="Name the text itself: --data FILE"
        )
