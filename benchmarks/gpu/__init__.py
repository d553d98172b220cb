"""The benchmark for NVIDIA GPUs: are the kernels right, how fast are they, what memory do they take.

It runs in parts, each a process of its own, and every part writes what it knows after every shape: whatever ends it,
an error of a kernel or the end of the time, what was measured stays. ``benchmarks/flash_gpu.py`` is the command.

The files, in reading order::

    sources      which code is measured: its commit, and a fingerprint of each file that makes the kernels
    record       what one part has found, on disk
    machine      the GPU: its clock, its memory, its state
    bench        a run: a machine, sizes, a seed, and tiles to try
    patterns     rules that are no band, by name
    checks       against float64, and where kernels are known to go wrong
    timing       everyone's passes over one shape
    rivals       who is timed
    tuning       tiles beside one another
    parts        what there is to measure, and the loop that measures it
    report       tables, and whether the targets are met
    results      the parts joined into one file, and whether it is out of date
    supervision  a part in a process of its own, watched
    steps        the parts in an order that fits ten minutes a time
"""
