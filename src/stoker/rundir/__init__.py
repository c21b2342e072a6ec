"""The run directory: everything that a run writes, read and written in one place."""

from stoker.rundir.directory import (
    DataRef,
    Exit,
    Location,
    OriginRef,
    RunDir,
    RunHeld,
    Saved,
    append_line,
    refresh_folder,
    write_json,
)
from stoker.rundir.files import write_atomic
from stoker.rundir.records import Record

__all__ = [
    "DataRef",
    "Exit",
    "Location",
    "OriginRef",
    "Record",
    "RunDir",
    "RunHeld",
    "Saved",
    "append_line",
    "refresh_folder",
    "write_atomic",
    "write_json",
]
