from pathlib import Path

import pytest

from stoker.data.prepare import prepare
from stoker.data.shards import TokenSet
from stoker.spec.data import Data, TrainTokenizer
from tests.observe.ledgers import Ledgers


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenSet:
    folder = tmp_path_factory.mktemp("batch")
    text = "".join(f"line {i} of the text that the run is trained on\n" for i in range(200))
    (folder / "a.txt").write_text(text)
    prepared = prepare(Data(path=str(folder / "a.txt"), tokenizer=TrainTokenizer(train=270)), folder / "tokens")
    assert isinstance(prepared, TokenSet)
    return prepared


@pytest.fixture
def ledgers(tmp_path: Path, tokens: TokenSet) -> Ledgers:
    return Ledgers(tmp_path / "run", tokens)
