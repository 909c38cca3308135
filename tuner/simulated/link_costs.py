"""Constants of `nccl_truth`, machine by machine, with where they come from. All in seconds."""

from __future__ import annotations

from tuner.simulated.nccl_truth import LinkCosts, PairCost

H200X2_SHM = LinkCosts(
    # Printed by benchmarks/fit_simulator.py from 30 starts of NCCL 2.28.9 on 2 × H200 with NCCL_P2P_DISABLE=1 and 7
    # of SGLang 0.5.17. Held out, one start at a time: |log ratio| median 0.042, 90th percentile 0.131.
    pairs={
        ("Ring", "LL"): PairCost(1.833e-05, 1.627e-07, 4.124e-11, 0, 1.331e-07),
        ("Ring", "LL128"): PairCost(3.034e-05, 9.722e-10, 5.378e-11, 0, 0),
        ("Ring", "Simple"): PairCost(4.094e-05, 2.252e-08, 2.198e-11, 1.803e-05, 1.561e-07),
        ("Tree", "LL"): PairCost(2.024e-05, 4.982e-07, 3.617e-11, 0, 2.531e-07),
        ("Tree", "LL128"): PairCost(2.64e-05, 1.362e-07, 3.054e-11, 0, 2.284e-07),  # one start only
        ("Tree", "Simple"): PairCost(3.692e-05, 7.619e-08, 2.987e-11, 1.695e-06, 0),
    },
    p2p_latency_factor=1.0,
    bulk_from_bytes=2 << 20,  # nothing larger was measured
    bulk_s_per_byte=4.5e-11,  # 22 GB/s: the slope of the best settings between 0.5 and 1.8 MB
    # did not finish in 25 s (a hang, or very slow at the largest size: the probe could not tell)
    unfinished=(("Tree", "LL", 1, 256),),
)

PCIE8 = LinkCosts(
    # Chosen, not fitted, to agree with what users report of 8 × SM120 on PCIe. Ring with Simple and with LL are tied
    # to reports, the others are placed between them; see docs/simulator.md for each figure and how far off it is.
    pairs={
        ("Ring", "LL"): PairCost(4.69e-05, 1.75e-07 / 4, 3.4e-09, 0, 0),
        ("Ring", "LL128"): PairCost(7.5e-05, 0, 2.8e-09, 0, 0),
        ("Ring", "Simple"): PairCost(1.48e-04, 0, 2.6e-09, 5e-05, 0),
        ("Tree", "LL"): PairCost(5.5e-05, 0, 3.9e-09, 0, 0),
        ("Tree", "LL128"): PairCost(7.0e-05, 0, 3.4e-09, 0, 0),
        ("Tree", "Simple"): PairCost(1.2e-04, 0, 3.4e-09, 2e-05, 0),
    },
    p2p_latency_factor=0.95,  # NCCL_P2P_LEVEL=SYS: reported + 3.6 % tok/s at one stream
    bulk_from_bytes=512 << 10,
    bulk_s_per_byte=2.4e-10,  # 4.2 GB/s: where the reported 205, 585, 1169 µs lead if continued to prefill's sizes
)

PCIE_IPC_S = ((12 << 10, 5.3e-6), (96 << 10, 15.3e-6), (384 << 10, 34.6e-6))
"""SGLang's PCIe-IPC all-reduce on 8 × SM120: (message bytes, seconds), as the docstring of its pcie_ipc_ar.py says."""
