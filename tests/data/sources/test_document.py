import itertools
import random

import pytest

from stoker.data.sources.document import PIECE_CHARACTERS, BadRecords, cut
from stoker.spec.errors import UserError


def test_pieces_join_to_the_document_and_the_last_is_marked() -> None:
    seed = random.randrange(10**9)
    print(f"{seed=}")
    draw = random.Random(seed)
    for alphabet in ("ab \n", "é漢.\r\n", "x", "\n"):
        text = "".join(draw.choices(alphabet, k=3 * PIECE_CHARACTERS + draw.randrange(PIECE_CHARACTERS)))
        pieces = list(cut(text, 7))
        assert "".join(piece.text for piece in pieces) == text
        assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert all(0 < len(piece.text) <= PIECE_CHARACTERS for piece in pieces)


def test_pieces_end_between_a_word_and_a_line_end_when_there_is_such_a_place() -> None:
    for line_end in ("\n", "\r\n"):
        text = f"some words. {{}}{line_end}a line that ends in a word{line_end}" * 10_000
        pieces = list(cut(text, 7))
        assert len(pieces) > 2
        for piece, following in itertools.pairwise(pieces):
            assert piece.text[-1].isalnum()
            assert following.text.startswith(line_end)


def test_a_short_document_is_one_piece() -> None:
    assert list(cut("hello", 7)) == [("hello", True, 7)]


def test_the_remedy_for_a_bad_record_holds_for_every_verb() -> None:
    with pytest.raises(UserError) as caught:
        BadRecords(skip=False).add("a.jsonl, line 3:", "is not JSON", remedy="Fix it")
    assert caught.value.remedy == (
        "Fix it, or set data.skip_bad=true (stoker prepare: --skip-bad) to skip such records"
    )
