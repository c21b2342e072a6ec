"""The run directory: what a run wrote, read and written in one place."""

from stoker.rundir.directory import (
    DataRef,
    Exit,
    Held,
    OriginRef,
    PlaceRef,
    Record,
    RunDir,
    Saved,
    append_line,
    look_anew,
    read_lines,
    write_atomic,
    write_json,
)

__all__ = [
    "DataRef",
    "Exit",
    "Held",
    "OriginRef",
    "PlaceRef",
    "Record",
    "RunDir",
    "Saved",
    "append_line",
    "look_anew",
    "read_lines",
    "write_atomic",
    "write_json",
]
