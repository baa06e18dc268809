#!/usr/bin/env bash
# PyTorch 2.15.0, gloo: a collective on a column of a matrix takes the elements that lie behind one another, not the column.
#
# What happens: two ranks have a matrix of 4 rows and 3 columns, 0 to 11 on rank 0 and 100 more on rank 1, and call all_reduce on the first column.
# Not the column is summed but the first four elements in memory, which are the first row and one more: two of four elements of the column stay as
# they were, and two elements that are not in it are overwritten. broadcast, reduce and scatter do the same. Two tensors of one shape with other
# strides (a transposed one on rank 1) are summed in the order of memory: the ranks end with different results, neither of them the sum. No error, no
# warning. all_reduce_coalesced, reduce_scatter, gather and all_gather take the column, and all_to_all_single says "Tensors must be contiguous".
#
# Why it surprises: calls that are used side by side have three rules: right, refused, wrong. all_reduce is wrong where all_reduce_coalesced of the
# same tensor is right. A program that gathers columns with success reduces them too, and trains on: most elements have plausible values, and those
# that were overwritten belong to another column.
#
# Installs torch==2.15.0 from PyPI, with all it needs: a download of several GB, into a temporary folder that is removed at the end.
# TORCH_PYTHON=/path/to/python uses that Python's torch, and installs nothing. The ranks meet by a file, and speak over the loopback interface.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 torch could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=120
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
python=${TORCH_PYTHON-}
if [[ -z $python ]]; then
    python=$work/venv/bin/python
    export TMPDIR=$work
    { python3 -m venv "$work/venv" &&
        "$python" -m pip install --quiet --no-cache-dir --disable-pip-version-check torch==2.15.0; } >&2 ||
        { echo "cannot install: pip does not give torch 2.15.0" >&2; exit 2; }
fi

cat >"$work/strided.py" <<'PY'
import datetime
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing

RANKS = 2
RIGHT, REFUSED = "right", "ValueError: Tensors must be contiguous"
# What each call gives: the matrix of rank 0 with its first column changed alone ("right"), another matrix, or an error.
SUM = [[100, 102, 104], [106, 4, 5], [6, 7, 8], [9, 10, 11]]
EXPECTED = {
    "all_reduce": SUM, "reduce": SUM, "broadcast": [[100, 101, 102], [103, 4, 5], [6, 7, 8], [9, 10, 11]],
    "scatter": [[100, 103, 106], [109, 4, 5], [6, 7, 8], [9, 10, 11]], "all_reduce_coalesced": RIGHT, "reduce_scatter": RIGHT,
    "gather": RIGHT, "all_gather": RIGHT, "all_to_all_single": REFUSED,
}


def matrix(rank):
    return torch.arange(12.0).reshape(4, 3) + 100 * rank


def column(matrix):
    return matrix[:, 0]


def outcome(call):
    """Calls with this rank's matrix; the call returns what should be equal."""
    try:
        mine, found, right = call()
    except ValueError as error:
        return f"ValueError: {error}"
    return RIGHT if torch.equal(found, right) else mine.int().tolist()


def changed_column(call, right):
    def run():
        mine, whole = matrix(dist.get_rank()), matrix(dist.get_rank())
        call(column(mine))
        whole[:, 0] = right
        return mine, mine, whole
    return run


def parts():
    return [torch.zeros(4) for _ in range(RANKS)]


def all_gather():
    found = parts()
    dist.all_gather(found, column(matrix(dist.get_rank())))
    return found[0], torch.stack(found), torch.stack([column(matrix(rank)) for rank in range(RANKS)])


def gather():
    found = parts() if dist.get_rank() == 0 else None
    dist.gather(column(matrix(dist.get_rank())), found, 0)
    right = torch.stack([column(matrix(rank)) for rank in range(RANKS)])
    return right, right if found is None else torch.stack(found), right


def reduce_scatter():
    found, mine = torch.zeros(4), matrix(dist.get_rank())
    dist.reduce_scatter(found, [mine[:, rank] for rank in range(RANKS)])
    return found, found, sum(matrix(rank)[:, dist.get_rank()] for rank in range(RANKS))


def all_to_all_single():
    found = torch.zeros(4)
    dist.all_to_all_single(found, column(matrix(dist.get_rank())))
    return found, found, found


def scatter(mine):
    # The parts lie one behind the other; only the place for them is a column.
    dist.scatter(mine, [column(matrix(1)).contiguous()] * RANKS if dist.get_rank() == 0 else None, 0)


def transposed():
    """The same 2 x 3 matrix on both ranks, with other strides on rank 1."""
    mine = torch.arange(6.0).reshape(2, 3)
    if dist.get_rank() == 1:
        mine = mine.t().contiguous().t()
    dist.all_reduce(mine)
    answers = [torch.zeros(2, 3) for _ in range(RANKS)]
    dist.all_gather(answers, torch.tensor(mine.tolist()))
    return [answer.int().tolist() for answer in answers]


def main(rank, store):
    limit = datetime.timedelta(seconds=20)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=limit)
    total = sum(column(matrix(rank)) for rank in range(RANKS))
    calls = {
        "all_reduce": changed_column(dist.all_reduce, total),
        "reduce": changed_column(lambda mine: dist.reduce(mine, 0), total),
        "broadcast": changed_column(lambda mine: dist.broadcast(mine, 1), column(matrix(1))),
        "scatter": changed_column(scatter, column(matrix(1))),
        "all_reduce_coalesced": changed_column(lambda mine: dist.all_reduce_coalesced([mine]), total),
        "reduce_scatter": reduce_scatter, "gather": gather, "all_gather": all_gather, "all_to_all_single": all_to_all_single,
    }
    found = {name: outcome(call) for name, call in calls.items()}
    layouts = transposed()
    dist.destroy_process_group()
    if rank == 0:
        for name, answer in found.items():
            print(f"{name} of a column: {answer}" + ("" if answer == EXPECTED[name] else f", changed: expected {EXPECTED[name]}"))
        print("all_reduce of [[0, 1, 2], [3, 4, 5]], transposed in memory on rank 1:", *layouts)
        as_described = found == EXPECTED and layouts == [[[0, 4, 3], [7, 6, 10]], [[0, 3, 6], [4, 7, 10]]]
        print("torch", torch.__version__)
        print("as described" if as_described and torch.__version__.split("+")[0] == "2.15.0" else "changed")


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (sys.argv[1],), RANKS)
PY
# -W: torch warns when there is no numpy, which is not needed here, and of names that are to be renamed.
output=$(GLOO_SOCKET_IFNAME=lo PYTHONWARNINGS=ignore timeout "$RUN_LIMIT_S" "$python" "$work/strided.py" "$work/store" 2>&1) || true
echo "$output"
[[ $output == *"as described" ]]
