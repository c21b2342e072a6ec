"""The run directory: what a run wrote, read and written in one place."""

from stoker.rundir.directory import (
    DataRef,
    Exit,
    Held,
    OriginRef,
    PlaceRef,
    RunDir,
    Saved,
    append_line,
    look_anew,
    write_json,
)
from stoker.rundir.files import write_atomic
from stoker.rundir.records import Record

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
    "write_atomic",
    "write_json",
]
