from pathlib import Path

from stoker.observe.tail import Tail


def test_only_whole_lines_are_handed_out_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    tail = Tail(path)
    assert tail.records() == []
    path.write_text('{"a": 1}\n{"a": ')
    assert tail.records() == [{"a": 1}]
    with path.open("a") as file:
        file.write('2}\n\n{"torn\n{"a": 3}\n')
    assert tail.records() == [{"a": 2}, {"a": 3}]
    assert tail.records() == []


def test_from_now_leaves_out_what_is_there_already(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    tail = Tail.from_now(path)
    with path.open("a") as file:
        file.write("new\n")
    assert tail.lines() == ["new"]
