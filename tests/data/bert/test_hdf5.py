"""HDF5 files of sentence pairs: others' are read, ours are what others read, and a broken one is named."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from stoker.data.any_set import open_prepared
from stoker.data.bert import hdf5
from stoker.data.bert.export import export, masked
from stoker.data.bert.masking import Masking, fixed
from stoker.data.bert.pairs import Pairs, PairSet, fields, join
from stoker.data.prepare import prepare, prepared
from stoker.data.tokenizer import load_folder
from stoker.data.wordpiece import masking_vocabulary
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError
from stoker.train.batches import Batches

LENGTH, PLACES, VOCAB = 16, 4, 50


def arrays(rows: int, seed: int) -> dict[str, np.ndarray]:
    """As the scripts of NVIDIA and AWS write them."""
    chance = np.random.default_rng(seed)
    real = chance.integers(6, LENGTH + 1, rows)
    at = np.arange(LENGTH)
    mask = at < real[:, None]
    number = chance.integers(1, PLACES + 1, rows)
    places = np.sort(chance.permuted(np.tile(np.arange(1, 6), (rows, 1)), axis=1)[:, :PLACES], axis=1)
    listed = np.arange(PLACES) < number[:, None]
    return {
        "input_ids": (chance.integers(5, VOCAB, (rows, LENGTH)) * mask).astype("i4"),
        "input_mask": mask.astype("i1"),
        "segment_ids": (mask & (at >= real[:, None] // 2)).astype("i1"),
        "masked_lm_positions": (places * listed).astype("i4"),
        "masked_lm_ids": (chance.integers(5, VOCAB, (rows, PLACES)) * listed).astype("i4"),
        "next_sentence_labels": chance.integers(2, size=rows).astype("i1"),
    }


def write(path: Path, arrays_by_key: dict[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, array in arrays_by_key.items():
            file.create_dataset(key, data=array, compression="gzip")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        write(tmp_path / "data" / f"wiki_training_{number}.hdf5", arrays(20 + number, number))
    write(tmp_path / "data" / "wiki_test_0.hdf5", arrays(9, 9))
    return tmp_path / "data"


def read(path: Path | str, out: Path, **settings: object) -> PairSet:
    data = Data(path=str(path), validation=settings.pop("validation", 0.0))
    pairs = prepare(data, out, pairs=Pairs(length=LENGTH, vocab=VOCAB), workers=1)
    assert isinstance(pairs, PairSet)
    return pairs


def test_records_are_the_files_rows_in_their_order(folder: Path, tmp_path: Path) -> None:
    pairs = read(folder, tmp_path / "set")
    expected = [arrays(20 + number, number) for number in range(3)]  # and not those of the test file
    rows = fields(pairs.train.read(np.arange(pairs.train.records), LENGTH), LENGTH)
    assert pairs.train.records == 63
    for key, got in (("input_ids", rows.tokens_NL), ("masked_lm_positions", rows.positions_NP)):
        assert np.array_equal(got, np.concatenate([file_arrays[key] for file_arrays in expected])), key
    at, mask = np.arange(LENGTH), np.concatenate([file_arrays["input_mask"] for file_arrays in expected])
    assert np.array_equal(at < rows.real_N[:, None], mask)
    segments = np.concatenate([file_arrays["segment_ids"] for file_arrays in expected])
    assert np.array_equal((at >= rows.second_N[:, None]) & (mask == 1), segments)
    assert np.array_equal(
        rows.label_N, np.concatenate([file_arrays["next_sentence_labels"] for file_arrays in expected])
    )
    goals = fixed(rows).goals_NL
    labels = np.full_like(goals, -100)
    for number, (places, ids) in enumerate(zip(rows.positions_NP, rows.ids_NP, strict=True)):  # as the script has it
        end = np.flatnonzero(places == 0)[0] if (places == 0).any() else PLACES
        labels[number, places[:end]] = ids[:end]
    assert np.array_equal(goals, labels)


def test_held_out_records_are_the_last_of_each_file(folder: Path, tmp_path: Path) -> None:
    pairs = read(folder, tmp_path / "set", validation=0.2)
    assert [shard.records for shard in pairs.index.validation] == [4, 4, 4]
    last = pairs.validation.read(np.array([3]), LENGTH)[0, :LENGTH]
    assert np.array_equal(last, arrays(20, 0)["input_ids"][19])


def test_the_same_files_give_the_same_batches_at_any_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    """Three files, and more ranks than files."""
    pairs = read(folder, tmp_path / "set")
    batches_by_world = []
    for world in (1, 2, 3, 4):
        readers = [
            Batches(
                pairs.train, part=rank, parts=world, seed=5, sequences=10,
                length=LENGTH, rows=10, positions=None, since=(0, 0),
            )
            for rank in range(world)
        ]  # fmt: skip
        steps = [[reader.read(step) for reader in readers] for step in range(1, 14)]
        batches_by_world.append(
            [np.concatenate([batch.rows[: batch.live].numpy() for batch in parts]) for parts in steps]
        )
        samples = np.concatenate([batch.samples for parts in steps for batch in parts])
        assert sorted(samples[:63].tolist()) == list(range(63))
    for batches in batches_by_world[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(batches_by_world[0], batches, strict=True))


def test_files_are_converted_once(folder: Path, tmp_path: Path) -> None:
    data = Data(path=str(folder), validation=0.0)
    first, second = (prepared(data, tmp_path / "store", pairs=Pairs(length=LENGTH, vocab=VOCAB)) for _ in range(2))
    assert first.path == second.path
    other = prepared(data, tmp_path / "store", pairs=Pairs(length=LENGTH, vocab=VOCAB + 1))
    assert other.path != first.path


def broken(key: str, change: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    good = arrays(8, 1)
    return good | {key: change(good[key].copy())}


def put(row: int, column: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[row, column] = value
        return array

    return change


@pytest.mark.parametrize(
    ("file_arrays", "message"),
    [
        ({k: v for k, v in arrays(4, 1).items() if k != "segment_ids"}, "has no segment_ids"),
        (broken("masked_lm_ids", lambda a: a[:5]), "differ in length (input_ids 8"),
        (broken("input_mask", lambda a: a[:, :9]), "input_mask is 9 wide, and input_ids 16"),
        (broken("input_mask", put(3, 1, 0)), "row 3: input_mask is not ones and then zeros"),
        (broken("segment_ids", put(2, 0, 1)), "row 2: segment_ids is not zeros"),
        (broken("masked_lm_positions", put(5, 0, 16)), "row 5: masked_lm_positions has a place outside"),
        (broken("input_ids", put(1, 0, VOCAB)), "row 1: a token is outside the vocabulary of 50"),
        (broken("next_sentence_labels", lambda a: a + 2), "row 0: next_sentence_labels is neither 0 nor 1"),
        (broken("input_ids", lambda a: a.astype("f4")), "input_ids is not a table of integers"),
        ({k: v[:0] for k, v in arrays(4, 1).items()}, "has no sequences"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, file_arrays: dict[str, np.ndarray], message: str) -> None:
    path = write(tmp_path / "mine.h5", file_arrays)
    with pytest.raises(UserError) as error:
        read(path, tmp_path / "set")
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_file_that_is_no_hdf5_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x_training_0.hdf5").write_text("hello")
    with pytest.raises(UserError, match=r"x_training_0\.hdf5 cannot be read as HDF5"):
        read(tmp_path / "x_training_0.hdf5", tmp_path / "set")


def test_a_damaged_chunk_is_reported_by_file_array_and_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "data.hdf5", arrays(400, 1))
    with h5py.File(path) as file:
        chunk = file["segment_ids"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"data\.hdf5 is damaged: segment_ids cannot be read in rows 0 to 399"):
        read(path, tmp_path / "out")


def test_unusable_data_is_reported_with_what_to_type(folder: Path, tmp_path: Path) -> None:
    for settings, pairs, message in (
        ({}, None, r"sentence pairs for masked models.*bert-base"),
        ({}, Pairs(length=LENGTH), r"how large its vocabulary is.*model\.vocab"),
        ({}, Pairs(length=32, vocab=VOCAB), r"sequences of 16 tokens, and 32 were asked for"),
        ({"tokenizer": TrainTokenizer(train=300)}, Pairs(length=LENGTH), r"holds tokens already"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(Data(path=str(folder), **settings), tmp_path / "set", pairs=pairs)
    (folder / "notes_training_1.txt").write_text("text")
    with pytest.raises(UserError, match=r"notes_training_1\.txt is no HDF5 file"):
        read(str(folder / "*"), tmp_path / "other")
    write(tmp_path / "empty" / "a.hdf5", arrays(3, 1))
    with pytest.raises(UserError, match="no file is called"):
        read(tmp_path / "empty", tmp_path / "other")


def test_files_of_different_form_are_refused_together(tmp_path: Path) -> None:
    write(tmp_path / "d" / "a_training_0.hdf5", arrays(4, 1))
    narrower = arrays(4, 1)
    narrower |= {key: narrower[key][:, :3] for key in ("masked_lm_positions", "masked_lm_ids")}
    write(tmp_path / "d" / "a_training_1.hdf5", narrower)
    with pytest.raises(UserError, match=r"4 masked positions per sequence, and .*has 3"):
        read(tmp_path / "d", tmp_path / "set")


@pytest.mark.parametrize("whole_words", [False, True])
def test_written_records_are_read_back(books: Path, tmp_path: Path, whole_words: bool) -> None:
    data = Data(path=str(books), tokenizer=TrainTokenizer(train=300), validation=0.1)
    masking, out = Masking(predictions=6, whole_words=whole_words), tmp_path / "out"
    made = export(data, out, Pairs(length=32), masking, workers=1)
    resumed = export(data, out, Pairs(length=32), masking, workers=1)
    assert resumed.key == made.key
    back = prepare(
        Data(path=str(out), tokenizer=str(out / "tokenizer"), validation=0.0), tmp_path / "back", pairs=Pairs(length=32)
    )
    assert isinstance(back, PairSet)
    ids = np.arange(made.train.records)
    vocabulary_ids = masking_vocabulary(load_folder(made.tokenizer).tokenizer, "x")
    expected = join(masked(made.train.read(ids, 32), ids, 32, masking, vocabulary_ids))
    assert np.array_equal(back.train.read(ids, 32), expected)
    assert back.train.records == len(ids)
    assert open_prepared(back.path).index.predictions == 6
    with h5py.File(out / "pairs_training_00000.hdf5") as file:
        assert {key: file[key].dtype for key in file} == {key: np.dtype(kind) for key, kind in hdf5.KEYS.items()}
    vocabulary = (out / "tokenizer" / "vocab.txt").read_text().splitlines()
    assert len(vocabulary) == made.vocab
    with pytest.raises(UserError, match="other masks"):
        export(data, out, Pairs(length=32), Masking(predictions=5), workers=1)
