import pytest

from stoker.data.bert.sentences import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four…", ["One.", "Two!", "Three?", "Four…"]),
        ('"Stop!" he said. (So he did.) Then', ['"Stop!"', "he said.", "(So he did.)", "Then"]),
        ("A line\nthat goes on.\nThe next", ["A line\nthat goes on.", "The next"]),
        ("A heading\n\nIts text\n \n\nMore", ["A heading", "Its text", "More"]),
        ("3.14 is no end, e.g.this neither", ["3.14 is no end, e.g.this neither"]),
        ("これは文です。次の文！", ["これは文です。", "次の文！"]),
        (" \n\n ", []),
    ],
)
def test_sentences_end_at_punctuation_and_empty_lines(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected
