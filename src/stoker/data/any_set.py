"""A prepared set of either kind: tokens, or sentence pairs."""

from pathlib import Path

from stoker.data.bert.pairs import KIND, PairSet, PairSplit
from stoker.data.shards import Split, TokenSet, read_index
from stoker.spec.errors import UserError

AnySet = TokenSet | PairSet
AnySplit = Split | PairSplit


def require_tokens(prepared: AnySet) -> TokenSet:
    """Refuses sentence pairs."""
    if isinstance(prepared, PairSet):
        raise UserError(f"{prepared.path} holds sentence pairs", remedy="Name text, or a set of tokens")
    return prepared


def open_prepared(path: Path) -> AnySet:
    """A set that is neither a mixture nor a stream."""
    return PairSet.open(path) if read_index(path).get("kind") == KIND else TokenSet.open(path)
