"""Attention and the Transformer, one idea per file, in reading order: a file imports only from files above it.

    settled         what PyTorch must have done once before its results can be relied on
    shapes          the questions that every file asks of its input
    derivatives     which derivatives a step of autograd has, and a clear error for the others
    softmax         scores into weights; two softmaxes merged into one
    information     entropy, divergence, mutual information
    geometry        lengths and angles: what a dot product is made of
    markov          attention as a walk from token to token
    rules           who may look at whom, said for a pair of positions
    masks           the same as tables: pictures of rules
    attention       the weighted average, and its backward pass by hand
    fused           the same by PyTorch's own kernels, to train with
    patterns        what a head does, read off its weights
    positions       telling a set where its elements stand
    rope_scaling    rotary positions beyond the trained length
    multihead       several attentions side by side, grouped heads, the cache
    graphs          attention over a graph's edges, beside plain averaging and label propagation
    feedforward     what happens to each token by itself
    norms           layer norm and RMS norm
    latent          keys and values of all heads from one short vector
    blocks          attention and feed-forward around a residual stream
    stabilise       what keeps scores from growing: QK-norm, sigmaReparam
    initialise      where every weight starts
    checkpoints     files that are whole or not there at all
    gpt             the whole language model
    huggingface     the same model with weights from elsewhere
    encoder_decoder the Transformer of 2017: one model reads, another writes
    vision          an image cut into patches, read like the words of a sentence
    modes           evaluation mode and back
    generation      writing, one token after another
    beam            searching for the most probable text
    speculation     writing faster with a draft, and exactly the same
    tasks           tasks of symbols with known answers
    stories         language in small, where the chance of each next word is known
    datasets        three small sets of real data and a text, with their sources
    speech          strings of vowels from a synthesiser, and how readings are scored
    training        how fast to learn, and the loop
    diagnostics     looking inside a model while it runs
    interventions   taking heads away and putting others in their place
    efficient       less than n squared: exact on what a mask leaves, or approximate
    flash           exact attention in linear memory, tile by tile; kernels for a GPU
    distributed     one sequence on several devices: ring attention, split caches
    notebook        what a chapter's notebook asks for
    palette         the colours, the same everywhere
    labels          the name of a curve beside the curve
    plots           tensors in, axes out
    sketch          a kit for drawings: boxes, matrices with their shapes, arrows
    drawings        what the book's formulas do, drawn
    widgets         explorers: a class and a module for the page each
    guess           asking the reader first
    checks          what an exercise is graded by

Axis names are the ones the book uses on paper:

    b           batch; ``*batch`` is any number of leading axes, possibly none
    n, m        queries, keys (m = n in self-attention)
    h, g        query heads, key/value heads (g = h unless heads are grouped)
    d_model     width of the residual stream
    d_k, d_v    width of a query or key, width of a value, inside one head

A mask is Boolean and reads as a permission: True means "this query may attend to this key".
Scores become weights in the softmax. Logarithms are natural, so information is in nats.
Import from the file that defines a thing, so that the import tells the reader where to look.
"""
