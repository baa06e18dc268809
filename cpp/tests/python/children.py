"""Ranks that are Python programs, and the children that Python makes: by fork, spawn and forkserver, data loaders,
subprocess, system() and posix_spawn.

children.py LIBRARY              all of it
children.py LIBRARY rank ...     one rank of it
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time

# What a killed rank's peers may take; without a child they are told at once, and the deadline is 20 s.
TOLD_WITHIN_S = 5


class Comm:
    """A communicator of the C++ library."""

    def __init__(self, library, folder, rank, size):
        self.lib = ctypes.CDLL(library)
        self.lib.rank_join.restype = ctypes.c_void_p
        self.lib.rank_sum.restype = ctypes.c_double
        self.lib.rank_sum.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t]
        self.lib.rank_end.argtypes = [ctypes.c_void_p]
        self.said = ctypes.create_string_buffer(1000)
        self.comm = self.lib.rank_join(folder.encode(), rank, size, self.said, ctypes.c_size_t(1000))
        if not self.comm:
            raise RuntimeError(self.said.value.decode())

    def sum(self, value):
        result = self.lib.rank_sum(self.comm, value, self.said, 1000)
        if result < 0:
            raise RuntimeError(self.said.value.decode())
        return result

    def end(self):
        self.lib.rank_end(self.comm)


def worker(library, folder, rank, size):
    """A child with a communicator of its own."""
    comm = Comm(library, folder, rank, size)
    for value in (1, 10):
        assert comm.sum(value * (rank + 1)) == value * size * (size + 1) / 2
    comm.end()


def load(item):
    """What a data loader's worker does: nothing with the communicator."""
    return item * item


def fork_idle():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)


# What rank 1 has beside it when it is killed; each yields what loads its data.
BESIDE = {
    "fork": lambda: fork_idle(),
    "pool of fork": lambda: multiprocessing.get_context("fork").Pool(2),
    "pool of forkserver": lambda: multiprocessing.get_context("forkserver").Pool(1),
    "pool of spawn": lambda: multiprocessing.get_context("spawn").Pool(1),
    # With what it has open.
    "subprocess": lambda: subprocess.Popen(["sleep", "60"], close_fds=False) and None,
    "system": lambda: os.system("sleep 60 &") and None,
    "posix_spawn": lambda: os.posix_spawnp("sleep", ["sleep", "60"], os.environ) and None,
}


def rank_main(library, beside, folder, number):
    rank = int(number)
    comm = Comm(library, folder, rank, 2)
    assert comm.sum(rank) == 1
    pool = BESIDE[beside]() if rank == 1 else None
    for step in range(3):
        if pool:
            assert pool.map(load, range(4)) == [0, 1, 4, 9]
        assert comm.sum(step) == 2 * step
    print("ready", flush=True)
    sys.stdin.readline()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        comm.sum(1)
    except RuntimeError as error:
        took = time.monotonic() - began
        assert "rank 1" in str(error) and "died" in str(error), str(error)
        assert took < TOLD_WITHIN_S, f"told after {took:.1f} s: {error}"
        print("told", flush=True)
    os._exit(0)


def start(library, beside, folder, rank):
    words = [sys.executable, os.path.abspath(__file__), library, "rank", beside, folder, str(rank)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def peers_are_told(library, folder):
    """Rank 1 of each job is killed beside the children that it has made. The jobs run side by side."""
    jobs = []
    try:
        for turn, beside in enumerate(BESIDE):
            place = os.path.join(folder, f"beside-{turn}")
            jobs.append((beside, [start(library, beside, place, rank) for rank in range(2)]))
        for beside, ranks in jobs:
            for rank in ranks:
                assert rank.stdout.readline() == "ready\n", beside
        # First all have been killed: what is asked is not how fast two processors are.
        for beside, (first, second) in jobs:
            second.stdin.write("\n")
            second.stdin.flush()
            assert second.wait() == -signal.SIGKILL, beside
        for beside, (first, second) in jobs:
            first.stdin.write("\n")
            first.stdin.flush()
        for beside, (first, second) in jobs:
            assert first.stdout.readline() == "told\n", f"beside {beside}: the death is not told"
            assert first.wait() == 0, beside
    finally:
        for _, ranks in jobs:
            for rank in ranks:
                # The children are in the session of the rank, which may have ended.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()


def children_meet(library, folder):
    """Children make communicators of their own, whatever their parent has."""
    own = Comm(library, os.path.join(folder, "own"), 0, 1)
    own.sum(1)
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        for turn in range(2 if method == "fork" else 1):
            place = os.path.join(folder, f"{method}-{turn}")
            children = [context.Process(target=worker, args=(library, place, rank, 3)) for rank in range(3)]
            for child in children:
                child.start()
            for child in children:
                child.join()
            assert [child.exitcode for child in children] == [0, 0, 0], method
        assert own.sum(5) == 5, "the parent goes on"
    own.end()


if __name__ == "__main__":
    if sys.argv[2:3] == ["rank"]:
        rank_main(sys.argv[1], *sys.argv[3:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            peers_are_told(sys.argv[1], folder)
            children_meet(sys.argv[1], folder)
        print("children of Python programs: right")
