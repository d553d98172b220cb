"""Correct and wrong answers to the exercises on patterns, the wrong ones with the message they must get."""

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from lessons_lib.checks import patterns as check

# --- correct answers --------------------------------------------------------------------------------------------------


def parts(weights, target, visible):
    """What lies on the targets, what chance puts there, and which rows have a target."""
    wanted = target & visible
    return (weights * wanted).sum(-1), wanted.sum(-1) / visible.sum(-1), wanted.any(-1)


def pattern_score(weights, target, visible):
    on, chance, has = parts(weights, target, visible)
    return ((on - chance) * has).sum() / ((1 - chance) * has).sum()


def score_in_loops(weights, target, visible):
    above = below = 0.0
    for row, wanted, seen in zip(weights.tolist(), target.tolist(), visible.tolist(), strict=True):
        here = [j for j in range(len(row)) if wanted[j] and seen[j]]
        if here:
            above += sum(row[j] for j in here) - len(here) / sum(seen)
            below += 1 - len(here) / sum(seen)
    return above / below


def score_by_indices(weights, target, visible):
    i, j = (target & visible).nonzero(as_tuple=True)
    rows = i.unique()
    u = torch.bincount(i, minlength=len(weights))[rows].double() / visible[rows].sum(-1)
    return (weights[i, j].sum() - u.sum()) / (len(rows) - u.sum())


def score_in_double_precision(weights, target, visible):
    counted = (target & visible).double()
    chance, has = counted.sum(1) / visible.double().sum(1), counted.sum(1) > 0
    return float(((weights * counted).sum(1) - chance)[has].sum() / (1 - chance)[has].sum())


def circuit_scores(e, w_ov, w_qk):
    before = torch.cat([e[:1], e[:-1]])
    return e @ w_qk @ (e + before @ w_ov).T


def circuit_by_a_map(e, w_ov, w_qk):
    back = torch.diag(torch.ones(len(e) - 1, dtype=e.dtype), -1)
    back[0, 0] = 1
    return torch.einsum("ia,ab,jb->ij", e, w_qk, e + back @ e @ w_ov)


def circuit_in_loops(e, w_ov, w_qk):
    n = len(e)
    return torch.stack(
        [torch.stack([e[i] @ w_qk @ (e[j] + e[max(j - 1, 0)] @ w_ov) for j in range(n)]) for i in range(n)]
    )


def along_a_direction(a, delta):
    """As far along it as no weight is negative."""
    t = torch.where(delta < 0, -a / delta, torch.inf)
    new = a + t.min() * delta
    new[t.argmin()] = 0.0
    return new.clamp_min(0.0)


def constraints(v):
    return torch.cat([v, torch.ones(len(v), 1, dtype=v.dtype)], 1)


def other_weights(a, v):
    return along_a_direction(a, torch.linalg.svd(constraints(v).T)[2][-1])


def by_qr(a, v):
    return along_a_direction(a, torch.linalg.qr(constraints(v), mode="complete")[0][:, -1])


def by_solving(a, v):
    """One weight more for the last key, and what the first d + 1 keys must do about it."""
    c = constraints(v)
    k = c.shape[1]
    delta = torch.zeros_like(a)
    delta[-1] = 1.0
    delta[:k] = -torch.linalg.solve(c[:k].T, c[-1])
    return along_a_direction(a, delta)


def by_projection(a, v):
    c = constraints(v)
    random = torch.arange(1.0, len(a) + 1, dtype=a.dtype).sin()
    return along_a_direction(a, random - c @ torch.linalg.lstsq(c, random[:, None]).solution[:, 0])


def attend(x, w_q, w_k, w_v):
    q, k, v = (x.unsqueeze(-3) @ w for w in (w_q, w_k, w_v))
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def run(x, weights, edit=lambda z: z):
    """The notebook's model."""
    z = attend(x, *weights[:3])
    x = x + (edit(z) @ weights[3]).sum(-3)
    x = x + (attend(x, *weights[4:7]) @ weights[7]).sum(-3)
    return x @ weights[8], z


def loss(logits, targets):
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def ablation_effect(x, targets, weights, head):
    def ablate(z):
        z[:, head] = z[:, head].mean(0)
        return z

    return loss(run(x, weights, ablate)[0], targets) - loss(run(x, weights)[0], targets)


def ablation_by_a_stored_mean(x, targets, weights, head):
    """With the mean of the first run, and the logarithms by hand."""
    logits, z = run(x, weights)
    chosen = (torch.arange(z.shape[1]) == head)[:, None, None]
    ablated, _ = run(x, weights, lambda now: torch.where(chosen, z.mean(0), now))
    before, after = (y.log_softmax(-1).gather(-1, targets[..., None]) for y in (logits, ablated))
    return (before - after).mean().item()


def ablation_text_by_text(x, targets, weights, head):
    mean = sum(run(text, weights)[1][head] for text in x) / len(x)
    change = 0.0
    for text, wanted in zip(x, targets, strict=True):
        ablated, _ = run(text, weights, lambda z: torch.cat([z[:head], mean[None], z[head + 1 :]]))
        change += float(cross_entropy(ablated, wanted) - cross_entropy(run(text, weights)[0], wanted))
    return change / len(x)


def ablation_with_a_copied_weight(x, targets, weights, head):
    """The difference from the mean, taken away where the head is added to the stream."""
    only = torch.zeros(len(weights[0]), 1, 1, dtype=x.dtype)
    only[head] = 1.0
    edited, _ = run(x, weights, lambda z: z - only * (z - z.mean(0, keepdim=True)))
    return loss(edited, targets).numpy() - loss(run(x, weights)[0], targets).numpy()


def ablation_in_single_precision(x, targets, weights, head):
    return ablation_effect(x.float(), targets, [w.float() for w in weights], head)


def patch_recovery(clean, corrupted, weights, head, position, right, wrong):
    intact, z_clean = run(clean, weights)

    def patch(z):
        z[head, position] = z_clean[head, position]
        return z

    def difference(logits):
        return logits[-1, right] - logits[-1, wrong]

    broken = difference(run(corrupted, weights)[0])
    return (difference(run(corrupted, weights, patch)[0]) - broken) / (difference(intact) - broken)


def recovery_by_adding(clean, corrupted, weights, head, position, right, wrong):
    """The difference of the head's outputs, added at one position; log-probabilities have the same differences."""
    (intact, z), (broken, z_corrupted) = run(clean, weights), run(corrupted, weights)
    site = torch.zeros_like(z)
    site[head, position] = 1.0
    patched, _ = run(corrupted, weights, lambda now: now + site * (z - z_corrupted))
    a, b, c = (y.log_softmax(-1)[-1, [right, wrong]].tolist() for y in (patched, broken, intact))
    return ((a[0] - a[1]) - (b[0] - b[1])) / ((c[0] - c[1]) - (b[0] - b[1]))


def recovery_in_a_batch(clean, corrupted, weights, head, position, right, wrong):
    """The three runs as one batch."""

    def patch(z):
        z[2, head, position] = z[0, head, position]
        return z

    logits, _ = run(torch.stack([clean, corrupted, corrupted]), weights, patch)
    intact, broken, patched = logits[:, -1, right] - logits[:, -1, wrong]
    return (patched - broken).div(intact - broken)


def recovery_by_one_minus(clean, corrupted, weights, head, position, right, wrong):
    """One minus the share that is missing, with NumPy."""
    intact, z_clean = run(clean, weights)
    broken, z = run(corrupted, weights)
    z[head, position] = z_clean[head, position]
    patched, _ = run(corrupted, weights, lambda _: z)
    a, b, c = ((y[-1, right] - y[-1, wrong]).numpy() for y in (patched, broken, intact))
    return 1 - (c - a) / (c - b)


def recovery_in_single_precision(clean, corrupted, weights, *site_and_tokens):
    return patch_recovery(clean.float(), corrupted.float(), [w.float() for w in weights], *site_and_tokens).item()


RIGHT = {
    check.pattern_score: [
        pattern_score,
        score_in_loops,
        score_by_indices,
        score_in_double_precision,
        lambda w, t, v: pattern_score(w.float(), t, v).float().item(),
    ],
    check.ablation_effect: [
        ablation_effect,
        ablation_by_a_stored_mean,
        ablation_text_by_text,
        ablation_with_a_copied_weight,
        ablation_in_single_precision,
    ],
    check.patch_recovery: [
        patch_recovery,
        recovery_by_adding,
        recovery_in_a_batch,
        recovery_by_one_minus,
        recovery_in_single_precision,
    ],
    check.circuit_scores: [
        circuit_scores,
        circuit_by_a_map,
        circuit_in_loops,
        lambda *given: circuit_scores(*given).float(),
    ],
    check.other_weights: [
        other_weights,
        by_qr,
        by_solving,
        by_projection,
        lambda a, v: other_weights(a, v).float(),
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------


def from_parts(way):
    return lambda weights, target, visible: way(*parts(weights, target, visible))


def all_targets(weights, target, visible):
    """Chance of hidden targets too."""
    wanted = target & visible
    u, has = target.sum(-1) / visible.sum(-1), wanted.any(-1)
    return ((weights * wanted).sum(-1) - u)[has].sum() / (1 - u)[has].sum()


def of_all_keys(weights, target, visible):
    on, _, has = parts(weights, target, visible)
    u = (target & visible).sum(-1) / len(weights)
    return (on - u)[has].sum() / (1 - u)[has].sum()


def with_notes(way):
    def answer(e, w_ov, w_qk):
        return way(e, torch.cat([e[:1], e[:-1]]), w_ov, w_qk)

    return answer


def after_note(e, w_ov, w_qk):
    return e @ w_qk @ (e + torch.cat([e[1:], e[-1:]]) @ w_ov).T


def nothing_first(e, w_ov, w_qk):
    before = torch.cat([torch.zeros_like(e[:1]), e[:-1]])
    return e @ w_qk @ (e + before @ w_ov).T


def not_far(a, v):
    return (a + other_weights(a, v)) / 2


def sparse(a, v):
    """One weight to zero, the others scaled up."""
    w = a.clone()
    w[0] = 0
    return w / w.sum()


def sum_forgotten(a, v):
    return along_a_direction(a, torch.linalg.svd(v.T)[2][-1])


def too_far(a, v):
    delta = torch.linalg.svd(constraints(v).T)[2][-1]
    t = torch.where(delta < 0, -a / delta, torch.inf).min()
    return a + 2 * t * delta


def ablating(change):
    """Another replacement of the head's output."""

    def answer(x, targets, weights, head):
        def edit(z):
            z = z.clone()
            z[:, head] = change(z, head)
            return z

        return loss(run(x, weights, edit)[0], targets) - loss(run(x, weights)[0], targets)

    return answer


def ablating_with(edit):
    """Another edit of all heads' outputs."""

    def answer(x, targets, weights, head):
        edited, _ = run(x, weights, lambda z: edit(z.clone(), head))
        return loss(edited, targets) - loss(run(x, weights)[0], targets)

    return answer


def keep_only(z, head):
    mean = z.mean(0, keepdim=True).expand_as(z).clone()
    mean[:, head] = z[:, head]
    return mean


def ablate_the_texts_axis(z, head):
    if head < len(z):
        z[head] = z[head].mean(0)
    return z


def loss_of(way, **options):
    """Another measure of the two runs, with and without ablation."""

    def answer(x, targets, weights, head):
        def ablate(z):
            z[:, head] = z[:, head].mean(0)
            return z

        return way(*(run(x, weights, *edit)[0] for edit in ([ablate], [])), targets)

    return answer


def last(logits, targets):
    return cross_entropy(logits[:, -1], targets[:, -1])


def summed(logits, targets):
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def ablation_that_changes_x(x, targets, weights, head):
    effect = ablation_effect(x, targets, weights, head)
    x += 1.0
    return effect


def recovering(way):
    """Another number from the three logit differences: patched, corrupted, clean."""

    def answer(clean, corrupted, weights, head, position, right, wrong):
        runs = (
            run(corrupted, weights, patch_of(clean, weights, head, position)),
            run(corrupted, weights),
            run(clean, weights),
        )
        return way(*(y[-1, right] - y[-1, wrong] for y, _ in runs))

    return answer


def patch_of(source, weights, head, position):
    _, z_source = run(source, weights)

    def patch(z):
        z = z.clone()
        z[head, position] = z_source[head, position]
        return z

    return patch


def measuring(measure):
    """Another measure of the logits of the same three runs."""

    def answer(clean, corrupted, weights, head, position, right, wrong):
        runs = (
            run(corrupted, weights, patch_of(clean, weights, head, position)),
            run(corrupted, weights),
            run(clean, weights),
        )
        a, b, c = (measure(y, position, right, wrong) for y, _ in runs)
        return (a - b) / (c - b)

    return answer


def patching_elsewhere(site):
    """Another place of the patch."""

    def answer(clean, corrupted, weights, head, position, right, wrong):
        return patch_recovery(clean, corrupted, weights, *site(head, position), right, wrong)

    return answer


def patching_the_clean_run(clean, corrupted, weights, head, position, right, wrong):
    runs = (
        run(clean, weights, patch_of(corrupted, weights, head, position)),
        run(corrupted, weights),
        run(clean, weights),
    )
    a, b, c = (y[-1, right] - y[-1, wrong] for y, _ in runs)
    return (a - b) / (c - b)


WRONG = {
    check.pattern_score: [
        (from_parts(lambda on, u, has: on[has].mean()), "subtract the chance level"),
        (from_parts(lambda on, u, has: on.mean()), "subtract the chance level"),
        (from_parts(lambda on, u, has: (on - u)[has].mean()), "above chance, the sum of 1 - u"),
        (from_parts(lambda on, u, has: (on - u)[has].sum()), "above chance, the sum of 1 - u"),
        (from_parts(lambda on, u, has: (on - u).sum() / (1 - u).sum()), "leave rows without targets out"),
        (
            from_parts(lambda on, u, has: ((on - u) / (1 - u))[has & (u < 1)].mean()),
            "not a mean of the rows' quotients",
        ),
        (all_targets, "the query may not attend to does not count"),
        (of_all_keys, "the keys that the query may attend to, not over all"),
        (lambda *given: max(0.0, float(pattern_score(*given))), "do not clip the score"),
        (lambda *given: 1 - pattern_score(*given), ", wanted "),
        (lambda *given: pattern_score(*given) * torch.ones(2), "a tensor must have shape"),
        (lambda w, t, v: None, "did you forget to return"),
    ],
    check.ablation_effect: [
        (ablating(lambda z, h: 0.0), "not by zero"),
        (ablating(lambda z, h: z[:, h].mean(1, keepdim=True)), "at each position separately"),
        (ablating(lambda z, h: z[:, h].mean((0, 1))), "at each position separately"),
        (ablating(lambda z, h: z[:, h].mean(-1, keepdim=True)), "not over the entries"),
        (ablating(lambda z, h: z.mean(1)), "not over the heads"),
        (ablating(lambda z, h: z[:, h].mean()), "has its own mean"),
        (ablating(lambda z, h: z[:, h].roll(1, 0)), "not by the output on another text"),
        (ablating_with(lambda z, h: z.mean(0, keepdim=True).expand_as(z)), "the other heads keep their outputs"),
        (ablating_with(keep_only), "ablating all the other heads"),
        (ablating_with(ablate_the_texts_axis), "axis 0 of z contains the texts"),
        (lambda x, t, w, h: ablation_effect(x, t, w, h - 1), "the heads are counted from 0"),
        (loss_of(lambda after, before, t: loss(before, t) - loss(after, t)), "minus the loss without"),
        (loss_of(lambda after, before, t: loss(after, t)), "subtract the loss without"),
        (loss_of(lambda after, before, t: loss(before, t)), "not the loss itself"),
        (loss_of(lambda after, before, t: last(after, t) - last(before, t)), "not that of the last position"),
        (loss_of(lambda after, before, t: summed(after, t) - summed(before, t)), "not a sum"),
        (loss_of(lambda after, before, t: loss(after, t) / loss(before, t)), "not a quotient"),
        (lambda *given: abs(ablation_effect(*given)), "may lower the loss"),
        (ablation_that_changes_x, "changed its arguments"),
        (lambda *given: ablation_effect(*given) * 1.001, ", wanted "),
        (lambda *given: ablation_effect(*given)[None], "a tensor must have shape"),
        (lambda *given: str(ablation_effect(*given)), "must be a number"),
        (lambda *given: None, "did you forget to return"),
    ],
    check.patch_recovery: [
        (recovering(lambda a, b, c: a - b), "divide by the difference between"),
        (recovering(lambda a, b, c: (a - b) / c), "divide by the difference between"),
        (recovering(lambda a, b, c: a / (c - b)), "subtract the logit difference of the corrupted run"),
        (recovering(lambda a, b, c: (c - a) / (c - b)), "the share that is not recovered"),
        (recovering(lambda a, b, c: (a - b) / (b - c)), "clean minus corrupted"),
        (patching_the_clean_run, "not the clean run with the corrupted"),
        (patching_elsewhere(lambda head, position: (head, slice(None))), "patch one position only"),
        (patching_elsewhere(lambda head, position: (slice(None), position)), "patch one head only"),
        (patching_elsewhere(lambda head, position: (head - 1, position)), "the heads are counted from 0"),
        (measuring(lambda y, p, right, wrong: y[p, right] - y[p, wrong]), "taken at the last position"),
        (measuring(lambda y, p, right, wrong: (y[:, right] - y[:, wrong]).mean()), "taken at the last position"),
        (measuring(lambda y, p, right, wrong: y.softmax(-1)[-1, right] - y.softmax(-1)[-1, wrong]), "not the probab"),
        (measuring(lambda y, p, right, wrong: y[-1, right]), "needs the token wrong too"),
        (lambda *given: patch_recovery(*given).clamp(0, 1), "do not clip"),
        (lambda *given: patch_recovery(*given) + 1e-3, ", wanted "),
        (lambda *given: [float(patch_recovery(*given))], "must be a number"),
        (lambda *given: None, "did you forget to return"),
    ],
    check.circuit_scores: [
        (with_notes(lambda e, b, ov, qk: e @ qk @ (b @ ov).T), "the layer adds its output"),
        (with_notes(lambda e, b, ov, qk: e @ qk @ e.T), "layer 1 is missing in the keys"),
        (with_notes(lambda e, b, ov, qk: (e + b @ ov) @ qk @ (e + b @ ov).T), "queries are made from the embeddings"),
        (with_notes(lambda e, b, ov, qk: (e + b @ ov) @ qk @ e.T), "in the keys, not in the queries"),
        (lambda *given: circuit_scores(*given).T, "the scores are transposed"),
        (with_notes(lambda e, b, ov, qk: e @ qk.T @ (e + b @ ov).T), "not with W_QK transposed"),
        (with_notes(lambda e, b, ov, qk: e @ qk @ (e + b @ ov.T).T), "not with W_OV transposed"),
        (after_note, "not to the next one"),
        (lambda e, ov, qk: e @ qk @ (e + e.roll(1, 0) @ ov).T, "not to the last token"),
        (nothing_first, "not to nothing"),
        (with_notes(lambda e, b, ov, qk: e @ qk @ (e + b).T), "W_OV is missing"),
        (lambda e, ov, qk: circuit_scores(e, ov, qk) / e.shape[1] ** 0.5, "do not scale the scores"),
        (lambda *given: circuit_scores(*given).softmax(-1), "without a softmax"),
        (lambda *given: circuit_scores(*given).tril(), "do not apply a mask"),
        (
            lambda *given: circuit_scores(*given).masked_fill(
                ~torch.ones(len(given[0]), len(given[0])).bool().tril(), -torch.inf
            ),
            "do not apply a mask",
        ),
        (lambda e, ov, qk: e @ qk @ (e + e.roll(1) @ ov).T, "without dims=0"),
        (lambda *given: circuit_scores(*given).exp(), "wrong values"),
        (lambda *given: circuit_scores(*given)[0], "must have shape"),
    ],
    check.other_weights: [
        (lambda a, v: a, "these are the given weights"),
        (not_far, "no weight is zero"),
        (sparse, "the weighted average of the values changed"),
        (sum_forgotten, "the weights must sum to one"),
        (too_far, "no weight may be negative"),
        (lambda a, v: other_weights(a, v)[:-1], "must have shape"),
        (lambda a, v: other_weights(a, v).tolist(), "must be a tensor"),
        (lambda a, v: (other_weights(a, v) * 1000).long(), "must be floating point"),
        (lambda a, v: other_weights(a, v) * torch.nan, "a NaN"),
        (lambda a, v: None, "did you forget to return"),
        (lambda a, v: a.flip(0), "the weighted average of the values changed"),
        (lambda a, v: torch.full_like(a, 1 / len(a)), "the weighted average of the values changed"),
    ],
}


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


WRONG[check.other_weights] += [
    (lambda a, v: along_a_direction(a, torch.linalg.svd(constraints(v).T)[2][v.shape[1] + 2]), "out of bounds"),
    (lambda a, v: other_weights(a, v) if len(a) > v.shape[1] + 2 else a, "these are the given weights"),
]
