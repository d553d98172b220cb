"""The drawings of the chapter on complexity: memory traffic, prefill and decoding, paged KV caches, batches."""

from collections.abc import Sequence

from lessons_lib.page.sketch import Sketch


def operation_traffic() -> Sketch:
    """Draw what attention reads from memory and writes to it: operation by operation, and in one fused kernel."""
    d = Sketch(
        402,
        252,
        alt="Above, three operations over a bar, the memory. The scores read Q and K and write S; the softmax reads S "
        "and writes A; the average reads A and V and writes O. So four arrows carry tables of n by n numbers. Below, "
        "one fused kernel reads Q, K and V and writes O: no table of n by n numbers passes through memory.",
    )
    tables = {"$S$", "$A$"}
    d.text((1, 8), "operation by operation", anchor="start")
    steps = {"scores": ("$Q$, $K$", "$S$"), "softmax": ("$S$", "$A$"), "average": ("$A$, $V$", "$O$")}
    for i, (name, (read, written)) in enumerate(steps.items()):
        box = d.box(8 + 136 * i, 24, 114, 28, name)
        for x, what, up in ((box.x + 26, read, True), (box.x + 92, written, False)):
            ends = ((x, 104), (x, 52)) if up else ((x, 52), (x, 104))
            role = "key" if any(table in what for table in tables) else ""
            d.arrow(*ends, role=role)
            d.text((x + 6 if up else x - 6, 78), what, anchor="start" if up else "end", small=True)
    d.box(1, 104, 400, 22, "memory")
    d.text((1, 148), "in one fused kernel", anchor="start")
    kernel = d.box(8, 164, 386, 28, "scores, softmax, average")
    for x, what, up in ((kernel.x + 26, "$Q$, $K$, $V$", True), (kernel.x + 360, "$O$", False)):
        ends = ((x, 230), (x, 192)) if up else ((x, 192), (x, 230))
        d.arrow(*ends)
        d.text((x + 6, 211) if up else (x - 6, 211), what, anchor="start" if up else "end", small=True)
    d.box(1, 230, 400, 22, "memory")
    return d


def prefill_and_decoding(n: int = 8) -> Sketch:
    """Draw a weight matrix that meets all ``n`` tokens at once in prefill, and a single token in decoding.

    Raises:
        ValueError: if ``n`` is not between 2 and 12.
    """
    if not 2 <= n <= 12:
        raise ValueError(f"n must be between 2 and 12, got {n}")
    d = Sketch(
        402,
        282,
        alt=f"Three products. In prefill a square weight matrix W meets a matrix of {n} columns, the tokens: each "
        f"weight that is read is used {n} times. In decoding W meets one column, the new token: each weight is used "
        f"once. Below, in decoding the keys K of the cache, {n} rows, meet one column, the new query: each "
        "key is used for that token alone.",
    )
    column, side, x = 9.0, 56.0, 96.0
    rows = (
        ("prefill", "$W$", n, "value", ("a weight is read once", f"and used for {n} tokens")),
        ("decoding: weights", "$W$", 1, "value", ("a weight is read", "and used for one token")),
        ("decoding: KV cache", "$K$", 1, "key", ("a key is read", "and used for one token")),
    )
    for i, (name, matrix, columns, role, notes) in enumerate(rows):
        y = 24.0 + 94 * i
        d.text((1, y - 16), name, anchor="start")
        grid = (n, 1) if matrix == "$K$" else None
        d.matrix(8, y, side, side, "" if grid else matrix, grid=grid, role=role)
        d.text((80, y + side / 2), r"$\times$")
        d.matrix(x, y, columns * column, side, grid=(1, columns), role="query")
        for j, note in enumerate(notes):
            d.text((x + 12 * column + 8, y + 19 + 19 * j), note, anchor="start", small=True)
    return d


def paged_cache(lengths: Sequence[int] = (10, 6), block: int = 4) -> Sketch:
    """Draw a paged KV cache: the blocks of each text in order, and their places in one pool of blocks.

    Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, 2023.

    Raises:
        ValueError: if ``block`` is not from 2 to 8, there is no text, a text is empty, or all need more than 6 blocks.
    """
    if not 2 <= block <= 8:
        raise ValueError(f"block must be between 2 and 8, got {block}")
    needed = [-(-length // block) for length in lengths]
    if not lengths or min(lengths) < 1 or sum(needed) > 6:
        raise ValueError(f"lengths must be positive and fill 1 to 6 blocks of {block}, got {list(lengths)}")
    pool, free = 7, block * sum(needed) - sum(lengths)
    places = [(3 * i + 1) % pool for i in range(sum(needed))]
    said = "; ".join(
        f"text {i + 1}, {length} tokens, has {count}"
        for i, (length, count) in enumerate(zip(lengths, needed, strict=True))
    )
    d = Sketch(
        402,
        pool * 30 + 26,
        alt=f"Left, the blocks of {block} tokens of each text in order: {said}. Arrows lead from each block to its "
        f"place in a pool of {pool} blocks on the right, in no particular order. {free} slots of the last blocks are "
        f"empty, and {pool - len(places)} blocks of the pool are free.",
    )
    cell, left, right = 15.0, 52.0, 402 - 15.0 * block - 8
    d.text((1, 8), "order in the text", anchor="start")
    d.text((394, 8), "in memory", anchor="end")
    filled = {}
    y, i = 24.0, 0
    gap = 30 * (pool - sum(needed)) / max(1, len(lengths) - 1) if len(lengths) > 1 else 0.0
    for text, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        role = ("query", "value", "output")[text % 3]
        d.text((1, y + 10), f"text {text + 1}", anchor="start", small=True)
        for j in range(count):
            used = min(block, length - j * block)
            _block(d, left, y, cell, block, used, role)
            place = places[i]
            filled[place] = (used, role)
            d.arrow((left + cell * block, y + 10), (right, 34 + 30 * place), role=role)
            y, i = y + 30, i + 1
        y += gap
    for place in range(pool):
        used, role = filled.get(place, (0, ""))
        _block(d, right, 24 + 30 * place, cell, block, used, role)
    return d


def batching(lengths: Sequence[int] = (3, 8, 5, 2, 6, 4), slots: int = 3) -> Sketch:
    """Draw requests in a batch of ``slots``: a new batch when all are finished, and a new request in each free slot.

    Yu et al., *Orca: A Distributed Serving System for Transformer-Based Generative Models*, 2022.

    Raises:
        ValueError: if ``slots`` is not from 1 to 4, or there are not 1 to 9 requests of 1 to 12 steps.
    """
    if not 1 <= slots <= 4:
        raise ValueError(f"slots must be between 1 and 4, got {slots}")
    if not 1 <= len(lengths) <= 9 or min(lengths) < 1 or max(lengths) > 12:
        raise ValueError(f"lengths must be 1 to 9 numbers between 1 and 12, got {list(lengths)}")
    fixed = _schedule(lengths, slots, whole=True)
    continuous = _schedule(lengths, slots, whole=False)
    ends = [max(start + steps for _, start, steps in plan) for plan in (fixed, continuous)]
    panel = 24.0 * slots + 46
    d = Sketch(
        402,
        2 * panel - 10,
        alt=f"{len(lengths)} requests that generate {', '.join(map(str, lengths))} tokens, in {slots} slots, as bars "
        f"over the steps. Above, a new batch starts when all requests of the last one are finished: {ends[0]} steps. "
        f"Below, a new request starts as soon as a slot is free: {ends[1]} steps.",
    )
    unit = 340 / max(ends)
    for i, (name, plan, end) in enumerate(
        zip(("fixed batches", "continuous batching"), (fixed, continuous), ends, strict=True)
    ):
        top = i * panel + 8
        d.text((1, top), f"{name}: {end} steps", anchor="start")
        for slot in range(slots):
            d.text((1, top + 26 + 24 * slot), f"slot {slot + 1}", anchor="start", small=True)
        for request, (slot, start, steps) in enumerate(plan):
            role = ("query", "key", "value", "output")[request % 4]
            d.box(56 + unit * start, top + 16 + 24 * slot, unit * steps, 20, str(request + 1), role=role)
    return d


def _schedule(lengths: Sequence[int], slots: int, *, whole: bool) -> list[tuple[int, int, int]]:
    """Return slot, first step and number of steps of each request; ``whole`` batches wait for the longest."""
    free, plan = [0] * slots, []
    for i, steps in enumerate(lengths):
        if whole and i % slots == 0:
            free = [max(free)] * slots
        slot = i % slots if whole else free.index(min(free))
        plan.append((slot, free[slot], steps))
        free[slot] += steps
    return plan


def _block(d: Sketch, x: float, y: float, cell: float, block: int, used: int, role: str) -> None:
    """Draw a block of the cache with its first ``used`` slots filled."""
    for j in range(used):
        d.matrix(x + j * cell, y, cell, 20, role=role)
    d.matrix(x, y, block * cell, 20, grid=(1, block))
