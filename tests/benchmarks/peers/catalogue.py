"""The peers, by what they do the work in."""

from __future__ import annotations

from tests.benchmarks.peers import dataloader2, grain, nodes, spdl, torch_loaders, webdataset
from tests.benchmarks.peers.peer import Peer

TORCH = "torch DataLoader"
STATEFUL = "StatefulDataLoader"

STATEFUL_NEEDS = ("torchdata.stateful_dataloader",)
NODES_NEEDS = ("torchdata.nodes",)
SPDL_NEEDS = ("spdl.pipeline",)
GRAIN_NEEDS = ("grain",)
WEBDATASET_NEEDS = ("webdataset",)

IN_PROCESS = [
    Peer(TORCH, torch_loaders.in_process, ("torch",)),
    Peer("torch DataLoader, batched in the dataset", torch_loaders.batched_in_process, ("torch",)),
    Peer(STATEFUL, torch_loaders.stateful_in_process, STATEFUL_NEEDS),
    Peer("torchdata nodes", nodes.in_process, NODES_NEEDS),
    Peer("torchdata nodes, one call a batch", nodes.one_call_a_batch, NODES_NEEDS),
    Peer("torchdata 0.9 DataLoader2", dataloader2.in_process, (), dataloader2.ENVIRONMENT),
    Peer("SPDL, threads, one call a batch", spdl.threads, SPDL_NEEDS),
    Peer("grain", grain.in_process, GRAIN_NEEDS),
    Peer("webdataset", webdataset.in_process, WEBDATASET_NEEDS),
]
PROCESSES = [
    Peer(TORCH, torch_loaders.processes, ("torch",)),
    Peer(STATEFUL, torch_loaders.stateful_processes, STATEFUL_NEEDS),
    Peer("torchdata nodes, processes", nodes.processes, NODES_NEEDS),
    Peer("torchdata 0.9 DataLoader2", dataloader2.processes, (), dataloader2.ENVIRONMENT),
    Peer("SPDL, processes", spdl.processes, SPDL_NEEDS),
    Peer("grain, processes", grain.processes, GRAIN_NEEDS),
    Peer("webdataset", webdataset.processes, WEBDATASET_NEEDS),
]
THREADS = [
    Peer("torchdata nodes, threads", nodes.threads, NODES_NEEDS),
    Peer("SPDL, threads", spdl.threads, SPDL_NEEDS),
    Peer("grain, threads", grain.threads, GRAIN_NEEDS),
]
