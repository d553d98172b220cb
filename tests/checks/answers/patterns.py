"""Correct and wrong answers to the exercises on patterns, the wrong ones with the message they must get."""

import torch

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


RIGHT = {
    check.pattern_score: [
        pattern_score,
        score_in_loops,
        score_by_indices,
        score_in_double_precision,
        lambda w, t, v: pattern_score(w.float(), t, v).float().item(),
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
