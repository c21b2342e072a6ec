"""Which line of a log explains a failure."""

import pytest

from stoker.rundir.log_errors import error_in, last_line
from stoker.supervise.nodes.membership import Node

TRACE = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    x = table[42]"]
PEER = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:53"
ABORT = "terminate called without an active exception"
NODE = Node(index=0, address="10.0.0.1", workers=1, host="h", pod="demo-0")


@pytest.mark.parametrize(
    ("lines", "line", "kind"),
    [
        ([*TRACE, "KeyError: 42"], "KeyError: 42", "own"),
        ([*TRACE, "KeyError: 42", ABORT], "KeyError: 42", "own"),
        ([*TRACE, "KeyError: 42", ABORT, "Fatal Python error: Aborted", "", "Thread 0x1 (most recent call first):"],
         "KeyError: 42", "own"),
        ([*TRACE, "KeyError: 42", "", "During handling of the above exception, another exception occurred:", "",
          *TRACE, PEER], "KeyError: 42", "own"),
        ([f"[rank1]: {line}" for line in (*TRACE, "KeyError: 42")], "KeyError: 42", "own"),
        ([f"[1] {line}" for line in (*TRACE, "KeyError: 42")], "KeyError: 42", "own"),
        ([*TRACE, "queue.Empty"], "queue.Empty", "own"),
        ([*TRACE, "\x1b[1;35mKeyError\x1b[0m: 42"], "KeyError: 42", "own"),
        ([*TRACE, "KeyError: 42", "Exception ignored in: <function x>"], "KeyError: 42", "own"),
        (["stoker: on.image is missing. Name one"], "stoker: on.image is missing. Name one", "own"),
        ([*TRACE, PEER], PEER, "symptom"),
        ([*TRACE, PEER, ABORT], PEER, "symptom"),
        (["terminate called after throwing an instance of 'gloo::IoException'", "  what():  Broken pipe"],
         "terminate called after throwing an instance of 'gloo::IoException' what():  Broken pipe", "symptom"),
        (["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"],
         "terminate called after throwing an instance of 'std::bad_alloc' what():  std::bad_alloc", "abort"),
        ([ABORT], ABORT, "abort"),
    ],
)  # fmt: skip
def test_the_last_error_of_the_process_itself_counts_and_not_its_consequences(
    lines: list[str], line: str, kind: str
) -> None:
    error = error_in(lines)
    assert error is not None
    assert (error.line, error.kind) == (line, kind)


@pytest.mark.parametrize(
    "line",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients",
        "RuntimeError: [/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or a network error",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.27",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
    ],
)
def test_what_the_peers_of_a_failed_process_print_is_a_symptom(line: str) -> None:
    error = error_in([line])
    assert error is not None
    assert error.kind == "symptom"


@pytest.mark.parametrize("report", ["leads", "follows node 1 at 10.0.0.2", "no longer leads: another node does"])
def test_a_report_of_a_supervisor_is_not_an_error(report: str) -> None:
    note = f"stoker: {NODE} {report}"
    assert error_in(["step 1", note]) is None
    assert last_line(["step 1", note]) == "step 1"
    assert last_line([note]) == ""


def test_the_message_of_a_supervisor_that_gives_up_is_an_error() -> None:
    line = f"stoker: {NODE} found no leader that accepts it: giving up"
    error = error_in([line])
    assert error is not None
    assert (error.line, error.kind) == (line, "own")


def test_ordinary_output_is_no_error() -> None:
    assert error_in(["rank 0 of 2 on host, cpu", "step 5 loss 3.2", "Errors so far: 0"]) is None
