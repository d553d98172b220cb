"""Analysis: entropy, geometry and patterns of attention weights; activations; ablation and patching.

Files in reading order: each imports only from files above it and from earlier rooms.

    information    entropy, divergence and mutual information, in nats
    geometry       norms, angles and the effective rank
    markov         attention weights as a Markov chain
    patterns       scores for known attention patterns of a head; used as a module
    diagnostics    activations, entropies and gradient norms of a model
    interventions  head outputs, ablation and activation patching
    paths          path patching
"""

from lessons_lib.analysis.diagnostics import (
    LayerSummary,
    Observation,
    attention_entropy,
    entropy_collapse,
    head_entropies,
    observe,
    observe_routing,
    parameter_gradient_norms,
    rank_collapse,
    summarise_layers,
    token_spread,
)
from lessons_lib.analysis.geometry import (
    ScoreDecomposition,
    angles,
    cosine_similarity,
    effective_rank,
    score_decomposition,
)
from lessons_lib.analysis.information import (
    cross_entropy,
    effective_count,
    entropy,
    kl_divergence,
    mutual_information,
    pointwise_mutual_information,
)
from lessons_lib.analysis.interventions import (
    Ablation,
    Head,
    ablate_heads,
    attention_layers,
    check_heads_exist,
    head_outputs,
    patch_heads,
    record_heads,
)
from lessons_lib.analysis.markov import ergodicity_coefficient, rollout, spectral_gap, stationary_distribution
from lessons_lib.analysis.paths import AttentionInput, path_patch
from lessons_lib.analysis.patterns import Classification, classify, pattern_names, pattern_scores

__all__ = [
    "Ablation",
    "AttentionInput",
    "Classification",
    "Head",
    "LayerSummary",
    "Observation",
    "ScoreDecomposition",
    "ablate_heads",
    "angles",
    "attention_entropy",
    "attention_layers",
    "check_heads_exist",
    "classify",
    "cosine_similarity",
    "cross_entropy",
    "effective_count",
    "effective_rank",
    "entropy",
    "entropy_collapse",
    "ergodicity_coefficient",
    "head_entropies",
    "head_outputs",
    "kl_divergence",
    "mutual_information",
    "observe",
    "observe_routing",
    "parameter_gradient_norms",
    "patch_heads",
    "path_patch",
    "pattern_names",
    "pattern_scores",
    "pointwise_mutual_information",
    "rank_collapse",
    "record_heads",
    "rollout",
    "score_decomposition",
    "spectral_gap",
    "stationary_distribution",
    "summarise_layers",
    "token_spread",
]
