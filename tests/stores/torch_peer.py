"""The store and the client of PyTorch itself, for tests/stores/torch.rs.

torch_peer.py serve libuv|older   serves a store, and does its part of the test in it
torch_peer.py client PORT         sends one request of each kind
"""

import datetime
import sys

import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=30)


def serve(kind):
    store = dist.TCPStore("127.0.0.1", 0, None, True, LIMIT, wait_for_workers=False, use_libuv=kind == "libuv")
    ours = dist.PrefixStore("rsccl/run", store)
    ours.set("from torch", "a value of torch")
    ours.add("n", 5)
    print(store.port, flush=True)
    for line in sys.stdin:
        key = line.strip()
        print(ours.get(key).decode(), flush=True)


def client(port):
    store = dist.TCPStore("127.0.0.1", int(port), None, False, LIMIT, wait_for_workers=False)
    ours = dist.PrefixStore("rsccl/run", store)
    ours.set("key", "value")
    ours.get("key")
    ours.add("n", -2)
    ours.delete_key("key")


{"serve": serve, "client": client}[sys.argv[1]](sys.argv[2])
