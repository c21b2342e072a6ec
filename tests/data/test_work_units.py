from pathlib import Path

from stoker.data.files import DataFile, discover, fingerprint
from stoker.data.sources.document import BadRecords
from stoker.data.work_units import MAX_UNITS, MIN_UNIT_BYTES, pieces, plan


def look(folder: Path) -> list[DataFile]:
    return fingerprint(discover(str(folder)), cache=folder.parent / "hashes", threads=1, progress=lambda *_: None)


def test_units_cover_all_text_once_in_order_and_are_of_like_size(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    sizes = [10, 300_000, 5_000_000, 2_000, 700_000, 900_000, 1_500_000]
    for number, size in enumerate(sizes):
        (data / f"{number}.txt").write_text((f"file {number} line\n" * size)[:size])
    units = plan(look(data))
    assert [unit.number for unit in units] == list(range(len(units)))
    assert all(MIN_UNIT_BYTES <= unit.size < 3 * MIN_UNIT_BYTES for unit in units[:-1])
    text = "".join(piece.text for unit in units for _, piece in pieces(unit, "text", BadRecords(skip=False)))
    assert text == "".join(path.read_text() for path in sorted(data.iterdir()))


def test_many_small_files_share_a_unit(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(500):
        (tmp_path / f"data/{number:03d}.txt").write_text("x" * 100)
    (unit,) = plan(look(tmp_path / "data"))
    assert len(unit.parts) == 500


def test_a_large_file_gives_no_more_units_than_an_index_should_list(tmp_path: Path) -> None:
    path, size = tmp_path / "a.jsonl", 4 << 30
    with open(path, "wb") as sparse:
        for place in range(0, size, 1 << 20):
            sparse.seek(place)
            sparse.write(b"\n")
        sparse.truncate(size)
    file = DataFile(path=path, name="a", format="jsonl", stamp=[size, 0, 0], sha256="?", problem=None)
    assert MAX_UNITS // 2 < len(plan([file])) <= MAX_UNITS + 1
