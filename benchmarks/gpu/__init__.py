"""The benchmark for NVIDIA GPUs: correctness, speed and memory of the Triton kernels.

It runs in parts, each in a process of its own. Every part saves its measurements after every shape, so they survive an
error of a kernel and the end of the available time. ``benchmarks/flash_gpu.py`` is the command.

The files, in reading order::

    sources      the measured code: its commit, and a fingerprint of each file of the kernels
    record       the measurements of one part, on disk
    machine      the GPU: its clock, its memory, its state
    bench        a run: a machine, sizes, a seed, and tiles to try
    patterns     rules that are no band, by name
    checks       comparisons with float64, and known sources of errors
    timing       the passes of all implementations for one shape
    rivals       the implementations that are timed
    tuning       comparison of tiles
    parts        the items to measure, and the loop that measures them
    report       tables, and whether the targets are met
    results      the parts joined into one file, and whether the file is out of date
    supervision  a part in a supervised process of its own
    steps        groups of parts that take at most ten minutes each
"""
