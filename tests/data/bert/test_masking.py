"""BERT's recipe, as a pure function of (seed, epoch, sample)."""

from dataclasses import replace

import numpy as np
import pytest

from stoker.data.bert.masking import NONE, Masking, Masks, draw, fixed, listed
from stoker.data.bert.pairs import FACTS, Fields, fields
from stoker.data.wordpiece import MaskingVocabulary

LENGTH, VOCAB = 64, 200
SPECIAL = np.arange(VOCAB) < 5
VOCABULARY = MaskingVocabulary(
    begin=2, separator=3, mask=4, special=SPECIAL, inner=(np.arange(VOCAB) % 3 == 0) & ~SPECIAL,
    plain=np.arange(5, VOCAB),
)  # fmt: skip


def rows(number: int) -> Fields:
    chance = np.random.default_rng(1)
    records = np.zeros((number, LENGTH + FACTS), np.int64)
    for row in records:
        real = int(chance.integers(8, LENGTH + 1))
        row[:real] = chance.integers(5, VOCAB, real)
        row[[0, real // 2, real - 1]] = 2, 3, 3
        row[LENGTH:] = real, real // 2 + 1, 0
    return fields(records, LENGTH)


def drawn(masking: Masking, number: int = 400, epoch: int = 0) -> tuple[Fields, Masks]:
    records = rows(number)
    return records, draw(records, np.arange(number), np.full(number, epoch), masking, VOCABULARY)


def test_fifteen_in_a_hundred_are_chosen_and_of_them_eight_in_ten_masked_one_kept_one_changed() -> None:
    records, masks = drawn(Masking(predictions=100), 2000)
    chosen = masks.goals_NL != NONE
    assert np.array_equal(chosen.sum(axis=1), np.rint(records.real_N * 0.15))
    assert np.array_equal(masks.goals_NL[chosen], records.tokens_NL[chosen])
    assert np.array_equal(masks.tokens_NL[~chosen], records.tokens_NL[~chosen])
    given, were = masks.tokens_NL[chosen], masks.goals_NL[chosen]
    shares = [(given == 4).mean(), (given == were).mean(), ((given != 4) & (given != were)).mean()]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    changed = given[(given != 4) & (given != were)]
    assert changed.min() >= 5
    assert len(np.unique(changed)) > 150
    places = np.nonzero(chosen)[1] / records.real_N[np.nonzero(chosen)[0]]
    assert np.histogram(places, 4, (0, 1))[0].min() > 0.2 * len(places)


def test_nothing_special_and_nothing_past_the_end_is_masked() -> None:
    records, masks = drawn(Masking(rate=0.9, predictions=100))
    chosen = masks.goals_NL != NONE
    assert not VOCABULARY.special[masks.goals_NL[chosen]].any()
    assert not chosen[np.arange(LENGTH) >= records.real_N[:, None]].any()


def test_there_are_never_more_than_the_predictions_and_never_none() -> None:
    _, masks = drawn(Masking(predictions=3))
    numbers = (masks.goals_NL != NONE).sum(axis=1)
    assert (numbers.min(), numbers.max()) == (1, 3)


def test_the_masks_of_a_sample_do_not_depend_on_its_batch() -> None:
    records, all_masks = drawn(Masking(seed=7))
    picked = np.array([17, 3, 250])
    part = Fields(*(field[picked] for field in records))
    alone = draw(part, picked, np.zeros(3, np.int64), Masking(seed=7), VOCABULARY)
    assert np.array_equal(alone.goals_NL, all_masks.goals_NL[picked])
    assert np.array_equal(alone.tokens_NL, all_masks.tokens_NL[picked])


def test_each_epoch_and_seed_draws_new_masks_and_static_masks_stay() -> None:
    first, second = drawn(Masking())[1], drawn(Masking())[1]
    assert np.array_equal(first.tokens_NL, second.tokens_NL)
    for other in (drawn(Masking(), epoch=1)[1], drawn(Masking(seed=1))[1]):
        assert (first.goals_NL != other.goals_NL).any(axis=1).mean() > 0.9
    static = [drawn(Masking(static=True), epoch=epoch)[1] for epoch in (0, 5)]
    assert np.array_equal(static[0].tokens_NL, static[1].tokens_NL)


def test_whole_words_are_masked_whole() -> None:
    records, masks = drawn(Masking(whole_words=True, predictions=100))
    chosen = masks.goals_NL != NONE
    continues = VOCABULARY.inner[records.tokens_NL] & (np.arange(LENGTH) < records.real_N[:, None])
    joined = continues[:, 1:] & ~VOCABULARY.special[records.tokens_NL[:, :-1]]
    assert joined.sum() > 1000
    assert np.array_equal(chosen[:, 1:][joined], chosen[:, :-1][joined])
    numbers = chosen.sum(axis=1)
    assert (numbers <= np.maximum(1, np.rint(records.real_N * 0.15))).all()
    assert numbers.sum() > 0.9 * np.rint(records.real_N * 0.15).sum()


def test_masks_that_are_listed_are_read_back_the_same() -> None:
    records, masks = drawn(replace(Masking(), predictions=12))
    positions, ids = listed(masks.goals_NL, 12)
    read_back = fixed(records._replace(tokens_NL=masks.tokens_NL, positions_NP=positions, ids_NP=ids))
    assert np.array_equal(read_back.goals_NL, masks.goals_NL)
    assert np.array_equal(read_back.tokens_NL, masks.tokens_NL)


def test_the_first_zero_place_ends_a_list() -> None:
    records = rows(1)._replace(positions_NP=np.array([[4, 2, 0, 6]]), ids_NP=np.array([[11, 12, 13, 14]]))
    goals = fixed(records).goals_NL[0]
    assert {place: int(goals[place]) for place in np.flatnonzero(goals != NONE)} == {4: 11, 2: 12}
