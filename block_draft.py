"""Writes book/transformer/block.ipynb of the worktree blk."""
import json, sys, re
cells=[]
def M(id,text): cells.append({"cell_type":"markdown","id":id,"metadata":{},"source":text.strip("\n")})
def C(id,text,tags=None,fig=None,alt=None,name=None):
    md={}
    if tags: md["tags"]=tags
    if fig:
        md["mystnb"]={"figure":{"caption":fig,"name":name}}
        if alt: md["mystnb"]["image"]={"alt":alt}
    cells.append({"cell_type":"code","execution_count":None,"id":id,"metadata":md,"outputs":[],"source":text.strip("\n")})
def ASK(id,text): C(id,text,["remove-input"])
def CHECK(id,text): C(id,text,["hide-cell"])

M("title",r'''
# A stream that everything writes to

**You will be able to** read a Transformer block, and a whole GPT, as a list of things that are added to one vector for each word; say what a feed-forward layer can do that attention cannot, and where the weights are; derive what a norm does to gradients and to learning rates; count the weights of GPT-2 and the operations of a training step on paper; tell encoder and decoder apart by their masks alone.

**You need** several heads ({doc}`../attention/multi-head`) and masks ({doc}`../attention/masks`); for the section on norms, gradients of vectors. The symbols are listed under [Notation](../notation.md).

**Time:** 80 minutes.
''')
C("colab",'''
try:
    import lessons_lib
except ImportError:  # on Colab
    %pip install -q "lessons_lib[notebook] @ https://github.com/OWNER/attention-book/archive/refs/heads/main.zip"
''',["remove-cell"])
C("imports",'''
import math
from dataclasses import replace
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from lessons_lib import plots, stories, tasks
from lessons_lib.attention import attention, attention_weights
from lessons_lib.blocks import TransformerBlock
from lessons_lib.feedforward import FeedForward, SwiGLU, gelu, gelu_tanh, relu, swiglu_width
from lessons_lib.gpt import GPT, GPTConfig, gpt2_small, llama3_8b
from lessons_lib.guess import predict, predict_curve, predict_number
''')
C("imports-more",'''
from lessons_lib.initialise import drawn_from
from lessons_lib.masks import causal
from lessons_lib.norms import LayerNorm, RMSNorm
from lessons_lib.notebook import glue, table
from lessons_lib.training import train
%config InlineBackend.figure_formats = ["svg"]
SEED = 0; torch.manual_seed(SEED);
''')

# ---------------------------------------------------------------------------------------------- stream
M("stream-question",r'''
## What becomes of a word?

*The cat, which was very tired, sat on the mat.* Attention answers what *sat* should know of the other words. But a model has many layers, and each of them does something to *sat*. What is handed from one to the next?

One vector for each word, as wide as the embedding, and nothing else. Its first value is the word's embedding. Each layer reads it, and *adds* to it:

$$
x_{l+1} = x_l + f_l(x_l), \qquad\text{so}\qquad x_L = x_0 + \sum_{l=0}^{L-1} f_l(x_l) .
$$ (eq-block-stream)

Here $f_l$ is an attention layer or a feed-forward layer, each behind a norm of its own. Nobody overwrites. This vector is called the **residual stream**: a shared memory that everything reads and everything writes to [1].

To see one we train a small GPT of four blocks, half a minute, to continue stories of a grammar in which we know how likely each next word is.
''')
C("stream-train",'''
config = GPTConfig(
    len(stories.VOCABULARY), 24, 48, 4, 4, position="rotary", norm="rms", bias=False
)
with drawn_from(torch.Generator().manual_seed(SEED)):
    model = GPT(config)
told = tasks.stream(
    stories.tell, torch.Generator().manual_seed(SEED), batch_size=32, n=24
)
history = list(train(model, told, n_steps=400, lr=5e-3, n_warmup=20, final_share=0.0))
model.requires_grad_(False);
''',["remove-stderr"])
C("stream-writes-1",'''
def writes(model, tokens):
    """What the embedding and each sublayer add to the stream, in order."""
    seen = [model.embedding(tokens)]
    hooks = []
    for block in model.blocks:
        for part in (block.attention, block.feedforward):
            hooks.append(part.register_forward_hook(lambda m, x, y: seen.append(y - x[0])))
    model(tokens)
    for hook in hooks:
        hook.remove()
    return torch.stack(seen)  # (write, batch, position, width)
''')
C("stream-sum",'''
fresh = stories.tell(torch.Generator().manual_seed(SEED + 1), batch_size=64, n=24)
added = writes(model, fresh.inputs)
logits = model(fresh.inputs)
torch.testing.assert_close(model.head(model.norm(added.sum(0))), logits)
added.shape
''')
M("stream-sum-answer",r'''
Nine writes: the embedding, and two for each of four blocks. Their sum, normed and multiplied by the output matrix, *is* the model's prediction, as {eq}`eq-block-stream` says.

Since the stream has one width from the first layer to the last, we can be impatient: stop after any layer, and let the output matrix read what is there. This is called the **logit lens** [2]. We compare what it reads with the truth, which the grammar knows: the divergence $D(p\,|\,q)$ from the grammar's next word $p$ to the reading $q$ ({doc}`../attention/information`).
''')
ASK("stream-guess",'''
lens_guess = predict_curve(
    "The output matrix reads the stream after the embedding (0) and after each of the four "
    "blocks. Draw how far it is from the truth.",
    x=(0, 4), y=(0.02, 20), log="y", xlabel="blocks", ylabel="divergence, nats",
)
first_guess = predict(
    "Read at once, after no block at all: which word does it say comes next?",
    ["a frequent one", "the word itself, once more", "one that often follows"],
)
''')
C("stream-lens",'''
truth = stories.next_word(fresh.inputs).float()
streams = added.cumsum(0)[[0, 2, 4, 6, 8]]  # after the embedding and after each block
readings = model.head(model.norm(streams)).log_softmax(-1)
known = truth.clamp_min(1e-30).log()
divergence = (truth * (known - readings)).sum(-1).mean((1, 2))
itself = (readings[0].argmax(-1) == fresh.inputs).float().mean()
''')
C("stream-lens-figure",'''
plots.lines(
    torch.arange(5), divergence, xlabel="blocks", ylabel="divergence, nats", logy=True
);
''',fig="The logit lens: how far what is read after each block is from the truth.",name="fig-block-lens",
alt="One falling curve on a logarithmic axis: about nine nats after the embedding, between one and two after one block, a few tenths after two, below a tenth after four.")
ASK("stream-lens-reveal",'''
lens_guess.reveal(torch.arange(5), divergence)
first_guess.reveal("the word itself, once more")
glue("itself", itself, ".0%")
glue("lens_0", divergence[0], ".1f")
glue("lens_1", divergence[1], ".1f")
glue("lens_2", divergence[2], ".2f")
glue("lens_4", divergence[4], ".2f")
assert itself > 0.9 and divergence[0] > 5 * divergence[1] > 10 * divergence[4]
''')
M("stream-answer",r'''
After no block the reading is the word itself, in {glue:text}`itself` of the cases: the output matrix is the embedding, transposed (the head is *tied*), and no vector is more like a word than its own. That is {glue:text}`lens_0` nats from the truth. One block brings it to {glue:text}`lens_1`, two to {glue:text}`lens_2`, all four to {glue:text}`lens_4`. The first block has most to do: it must take the word out of its place before it can put the next one there.

The lens shows what the *last* layer's reader would make of an unfinished stream. That a reading is poor does not show that the knowledge is missing; it may be there in directions that only later layers read.

### Whose doing was it?

A sum can be taken apart. Without the last norm, the logit of each word would be a sum of nine terms. The norm divides all nine by one number, the length of their sum, so with that number held fixed the parts still add up:

$$
\operatorname{logit}_v = \sum_l \frac{w_v \cdot \big(g \odot f_l\big)}{\operatorname{rms}(x_L)},
$$ (eq-block-parts)

with the row $w_v$ of the output matrix and the gain $g$ of the norm.
''')
ASK("parts-guess",'''
parts_guess = predict(
    "The logit of a word that may follow, above the mean over all words: who writes most of it?",
    {"the attention layers": "attention", "the feed-forward layers": "feed-forward",
     "the embedding": "embedding"},
)
''')
C("parts",'''
last = added.sum(0)
rms = last.square().mean(-1, keepdim=True).add(model.norm.eps).sqrt()
parts = model.head(added / rms * model.norm.weight)
torch.testing.assert_close(parts.sum(0), logits, rtol=1e-4, atol=1e-4)
parts = parts - parts.mean(-1, keepdim=True)
right = (parts * truth).sum(-1).mean((1, 2))  # the words that may follow, by chance
share = {"embedding": right[0], "attention": right[1::2].sum(), "feed-forward": right[2::2].sum()}
table(share, ["logit of the words that may follow, above the mean"], ".2f", of="written by")
''')
ASK("parts-reveal",'''
parts_guess.reveal(max(share, key=share.get))
''')
M("parts-answer",r'''
The feed-forward layers write nearly all of it, {glue:text}`by_feed` of {glue:text}`by_all`. That does not make attention idle. What a feed-forward layer knows of other words it has from attention, and if we take all of attention's writes away, or all of the feed-forward layers', the prediction is lost either way:

''')
C("parts-without",'''
def divergence_without(part):
    """How far the prediction is from the truth when none of these layers writes."""
    hooks = [
        getattr(block, part).register_forward_hook(lambda m, x, y: x[0]) for block in model.blocks
    ]
    q = model(fresh.inputs).log_softmax(-1)
    for hook in hooks:
        hook.remove()
    return (truth * (known - q)).sum(-1).mean()

without = {part: divergence_without(part) for part in ("attention", "feedforward")}
table({"nothing": divergence[4], **without}, ["divergence, nats"], ".2f", of="taken away")
''')
M("parts-wrong",r'''
### What often goes wrong

*"A layer replaces the word's vector by a better one."* It adds to it. To take a word out of its place, as the first block does here, a layer has to write its opposite.
''')

# ---------------------------------------------------------------------------------------------- feed-forward
M("ff-question",r'''
## What can attention not do?

A block has two halves. Attention moves content between words. Then each word is sent, by itself, through the same small network:

$$
\operatorname{FFN}(x) = W_{\text{down}}\, \phi(W_{\text{up}}\, x + b_{\text{up}}) + b_{\text{down}},
$$ (eq-block-ffn)

with $W_{\text{up}}$ of shape $d_{\text{ff}} \times d$, $W_{\text{down}}$ of shape $d \times d_{\text{ff}}$, and a bend $\phi$ in between; $d_{\text{ff}}$ is usually $4d$. *"Attention is a linear combination; the feed-forward layer brings the non-linearity"*, one reads. Is attention linear?

If a layer $f$ is linear, $f(x + y) = f(x) + f(y)$.
''')
ASK("ff-linear-guess",'''
linear_guess = predict_number(
    "Attention of the sum of two sequences, against the sum of their attentions: by how much "
    "do they differ, in per cent of the latter?", 0, 200, unit="%",
)
fixed_guess = predict_number(
    "The same, but with the weights held fixed and only the values added?", 0, 200, unit="%",
)
''')
C("ff-linear",'''
x, y = torch.randn(2, 12, 16)
w_q, w_k, w_v = torch.randn(3, 16, 16) / 4

def attend(x):
    return attention(x @ w_q, x @ w_k, x @ w_v)

weights = attention_weights(x @ w_q, x @ w_k)
apart = attend(x) + attend(y)
off = (attend(x + y) - apart).norm() / apart.norm()
fixed = weights @ (x @ w_v) + weights @ (y @ w_v)
off_fixed = (weights @ ((x + y) @ w_v) - fixed).norm() / fixed.norm()
''')
ASK("ff-linear-reveal",'''
linear_guess.reveal(100 * off)
fixed_guess.reveal(100 * off_fixed)
glue("off", off, ".0%")
assert off > 0.3 and off_fixed < 1e-5
''')
M("ff-linear-answer",r'''
Attention as a whole is far from linear: {glue:text}`off` off. It is linear in the *values*, as long as the weights are held fixed; the weights come from a softmax of products of the input with itself.

The sentence is half right all the same, and the right half matters. Hold the weights of all layers fixed, and take the norms away: then a stack of attention layers without feed-forwards is one linear map of the embeddings, a sum over all paths that content can take ({doc}`../attention/matrix`). What comes out of one position is a mixture of *linear images* of the words. Whatever has to be made of a word, or of a mixture, by a bend, is left to the feed-forward layer.

Here is such a thing. Two numbers stand in a word's vector, each $+1$ or $-1$, and their product is asked for (*exclusive or*). No linear map gives it, at any width: it would need $f(1, 1) = f(-1, -1) = 1$ and, being linear, $f(-1,-1) = -f(1,1)$; with a constant added, $f(1,1) + f(-1,-1) = f(1,-1) + f(-1,1)$, which would be $2 = -2$. Four bends do it exactly.
''')
C("ff-xor",'''
w_up = torch.tensor([[1.0, 1], [-1, -1], [1, -1], [-1, 1]])
w_down = torch.tensor([[0.5, 0.5, -0.5, -0.5]])
corners = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
product = relu(corners @ w_up.T) @ w_down.T
assert torch.equal(product[:, 0], corners.prod(-1))
''')
M("ff-alone",r'''
### Each word by itself

A feed-forward layer has no index of another word in it, so it can neither look nor be looked at: change the order of the words, and the outputs change their order with them; that is, $\operatorname{FFN}(PX) = P \operatorname{FFN}(X)$ for each permutation $P$. So do norms, and so does attention without a mask and without positions.

### A memory with keys and values

Write {eq}`eq-block-ffn` out, with $k_i$ for the rows of $W_{\text{up}}$ and $v_i$ for the columns of $W_{\text{down}}$:

$$
\operatorname{FFN}(x) = \sum_{i=1}^{d_{\text{ff}}} \phi(k_i \cdot x + b_i)\; v_i + b_{\text{down}} .
$$ (eq-block-memory)

This is a look-up again: keys, values, weights. Three things differ from attention: keys and values are *learned* and do not depend on the text; the weights do not sum to one, since a bend stands where attention has a softmax; there is no query matrix, the stream itself asks. (Geva et al. read the values of a trained model through the output matrix and found words that belong together [3].) Let us read ours.
''')
C("ff-values",'''
last_block = model.blocks[-1].feedforward.sublayer
values = last_block.w_down.weight.T  # one row for each of the hidden entries
read = model.head(model.norm.weight * values)
strongest = read.std(-1).argsort(descending=True)[:4].tolist()
promoted = {
    f"entry {i}": " ".join(stories.VOCABULARY[w] for w in read[i].topk(5).indices)
    for i in strongest
}
table(promoted, ["the five words that its value speaks for most"], "s")
''')
M("ff-values-answer",r'''
One of them speaks for nouns that stand for one thing, another for what can follow a noun: these are words of one kind in the grammar, though nobody told the model of kinds. FIXME: measure (correlation of the words' probabilities in `truth` within a row, against five words drawn at random), say it for all 192 entries.

### Which bend?
''')
M("bend-text",r'''
The bend of 2017 was $\operatorname{ReLU}(z) = \max(z, 0)$. GPT-2 and BERT have $\operatorname{GELU}(z) = z\,\Phi(z)$, with the distribution function $\Phi$ of the normal law [4]: the entry is multiplied by the probability that a standard normal number lies below it. $\Phi$ was slow once, and so there is an approximation by $\tanh$. BERT's checkpoints use the exact one, GPT-2's the approximation; with the wrong one a model still runs.
''')
ASK("bend-guess",'''
bend_guess = predict_number(
    "The largest difference of the exact GELU and the tanh one, over all numbers:",
    1e-8, 1, log=True,
)
''')
C("bend",'''
z = torch.linspace(-6, 6, 120_001, dtype=torch.float64)
difference = (gelu(z) - gelu_tanh(z)).abs().max()
naive = z * torch.distributions.Normal(0.0, 1.0).cdf(z)
torch.testing.assert_close(gelu(z), naive)
''')
C("bend-figure",'''
near = z[20_000:100_001:500]
plots.lines(
    near, {"ReLU": relu(near), "GELU": gelu(near), "SiLU": functional.silu(near)},
    xlabel="$z$", ylabel="$\\\\phi(z)$",
);
''',fig="Three bends. GELU and SiLU dip below zero before they rise.",name="fig-block-bends",alt="Three curves that are near zero on the left and near the diagonal on the right. ReLU has a corner at zero; GELU and SiLU are smooth and dip slightly below zero between minus three and zero, SiLU deeper.")
ASK("bend-reveal",'''
bend_guess.reveal(difference)
glue("bend_off", difference, ".1e")
assert difference < 5e-4
''')
M("swiglu-text",r'''
They are {glue:text}`bend_off` apart at most, at every one of the points we tried between $-6$ and $6$ (farther out both are $z$ or nothing): a wrong one of the two is hard to notice, and shows in the third digit of a logit. 

Llama and most of its successors have another layer, in which one copy of the input opens and closes gates for the other [5]:

$$
\operatorname{SwiGLU}(x) = W_{\text{down}} \big( \operatorname{SiLU}(W_{\text{gate}}\, x) \odot W_{\text{up}}\, x \big), \qquad \operatorname{SiLU}(z) = \frac{z}{1 + e^{-z}} .
$$ (eq-block-swiglu)

It has three matrices instead of two. To have as many weights it must be narrower: $3\, d\, d_{\text{ff}} = 2\, d \cdot 4d$ gives

$$
d_{\text{ff}} = \tfrac83\, d .
$$ (eq-block-eight-thirds)

That is where the odd widths of configuration files come from.
''')
C("swiglu",'''
def n_weights(module):
    return sum(p.numel() for p in module.parameters())

def naive_swiglu(layer, x):
    gate, up = x @ layer.w_gate.weight.T, x @ layer.w_up.weight.T
    return (gate / (1 + (-gate).exp()) * up) @ layer.w_down.weight.T

gated = SwiGLU(48, swiglu_width(48))
torch.testing.assert_close(gated(x_48 := torch.randn(5, 48)), naive_swiglu(gated, x_48))
assert n_weights(gated) == n_weights(FeedForward(48, 192, bias=False)) == 8 * 48**2
swiglu_width(4096, multiple_of=256)  # Llama 7B's
''')
M("swiglu-wrong",r'''
### What often goes wrong

*"SwiGLU is better than ReLU."* At equal weights it was, by about a hundredth of a nat in the table of the paper that proposed it FIXME-CHECK, which offers no reason and closes with the words that it attributes the success to divine benevolence [5]. A comparison at equal $d_{\text{ff}}$ gives it half as many weights again.

*"The feed-forward layer needs a dropout of its own at its end."* A block drops what a sublayer adds, once. A published code does it in both places: with probability one half, three quarters of what the layer says is lost.
''')

# ---------------------------------------------------------------------------------------------- norms
M("norm-question",r'''
## What does a norm do to gradients?

Every sublayer reads the stream through a norm. With the mean $\mu$ and the variance $\sigma^2$ of the $d$ entries of *one* vector [6, 7],

$$
\begin{aligned}
\operatorname{LayerNorm}(x)_i &= w_i\, \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}} + b_i , \\
\operatorname{RMSNorm}(x)_i &= w_i\, \frac{x_i}{\sqrt{\tfrac1d \sum_j x_j^2 + \epsilon}} .
\end{aligned}
$$ (eq-block-norms)

The stream grows as it is written to: after four blocks of our model its vectors are some twenty times as long as the embeddings. A norm makes that invisible. Leave $\epsilon$ out for a moment: $\operatorname{norm}(cx) = \operatorname{norm}(x)$ for every $c > 0$.
''')
ASK("norm-guess",'''
turn_guess = predict(
    "The gradient of a loss behind a norm, with respect to the vector that goes in: which way "
    "can it not point?",
    ["along the vector", "across it", "it can point anywhere"],
)
size_guess = predict(
    "The vector is made ten times as long, and the loss stays as it is. The gradient becomes",
    ["ten times as long", "as long as before", "a tenth as long"],
)
''')
C("norm-run",'''
norm = LayerNorm(64, eps=0.0).double()
x = torch.randn(64, dtype=torch.float64)
direction = torch.randn(64, dtype=torch.float64)

def gradient(x):
    x = x.clone().requires_grad_()
    (norm(x) * direction).sum().backward()  # any loss whose gradient at the output is this
    return x.grad

along = gradient(x) @ x / gradient(x).norm() / x.norm()
shrunk = gradient(10 * x).norm() / gradient(x).norm()
''')
ASK("norm-reveal",'''
turn_guess.reveal("along the vector")
size_guess.reveal("a tenth as long")
assert along.abs() < 1e-12 and (shrunk - 0.1).abs() < 1e-12
''')
M("norm-claim",r'''
### The claim

Let $f(cx) = f(x)$ for all $c > 0$. Then

$$
x \cdot \nabla f(x) = 0 \qquad\text{and}\qquad \nabla f(cx) = \tfrac1c\, \nabla f(x) .
$$ (eq-block-invariant)

*Proof.* Differentiate $f(cx) = f(x)$ with respect to $c$ at $c = 1$ for the first, with respect to $x$ for the second. ∎

For the norms themselves one can write the whole Jacobian down. With $\hat x = (x - \mu)/\sigma$ (layer norm, gain one, $\epsilon = 0$)

$$
\frac{\partial \hat x}{\partial x} = \frac1\sigma \Big( I - \tfrac1d \mathbf 1 \mathbf 1^\top - \tfrac1d\, \hat x \hat x^\top \Big) ,
$$ (eq-block-jacobian)

a projection, divided by $\sigma$: of what comes back it takes away the common part and the part along $\hat x$. Root-mean-square norm: the same without the middle term, with the root mean square for $\sigma$. So a norm does *not* divide out of the gradient what it divides out of the vector: long vectors get short gradients.
''')
C("norm-jacobian",'''
x = torch.randn(7, dtype=torch.float64)
hat = (x - x.mean()) / x.std(correction=0)
ones = torch.ones(7, dtype=torch.float64)
naive = torch.eye(7) - torch.outer(ones, ones) / 7 - torch.outer(hat, hat) / 7
naive = naive / x.std(correction=0)
measured = torch.func.jacrev(LayerNorm(7, eps=0.0).double())(x)
torch.testing.assert_close(measured, naive)
''')
M("rate-text",r'''
### A learning rate that nobody set

The same holds for a weight matrix $W$ whose product stands before a norm, $\operatorname{norm}(Wx)$: the loss does not change with the length of $W$. By {eq}`eq-block-invariant` the gradient is orthogonal to $W$, so each step of gradient descent, with rate $\eta$, can only make $W$ longer (Pythagoras):

$$
\lVert W_{t+1} \rVert^2 = \lVert W_t \rVert^2 + \eta^2\, \lVert \nabla L(W_t) \rVert^2 ;
$$ (eq-block-growth)

and the longer it is, the smaller its gradient, and the less a step turns it. What turns it is the rate $\eta / \lVert W\rVert^2$: it falls by itself. Weight decay, which is said to keep weights small, here keeps that rate from falling.
''')
ASK("rate-guess",'''
rate_guess = predict(
    "A matrix before a norm starts ten times as long as usual, everything else the same. To "
    "learn as before, gradient descent needs a learning rate that is",
    ["the same", "ten times as large", "a hundred times as large"],
)
''')
C("rate",'''
def learned(length, lr, n_steps=200):
    draw = torch.Generator().manual_seed(SEED)
    x, target = torch.randn(2, 256, 32, generator=draw, dtype=torch.float64)
    w = (length * torch.randn(32, 32, generator=draw, dtype=torch.float64)).requires_grad_()
    for _ in range(n_steps):
        loss = (RMSNorm(32, eps=0.0).double()(x @ w) - target).square().mean()
        (slope,) = torch.autograd.grad(loss, w)
        w = (w - lr * slope).detach().requires_grad_()
    return loss.item()

runs = {lr: [learned(1, lr), learned(10, lr)] for lr in (1.0, 10.0, 100.0)}
table(runs, ["loss from the usual start", "from ten times as long"], ".4f", of="learning rate")
''')
ASK("rate-reveal",'''
rate_guess.reveal("a hundred times as large")
assert math.isclose(learned(1, 1.0), learned(10, 100.0), rel_tol=1e-9)
''')
M("rate-answer",r'''
The two runs on the diagonal, rate 1 from the usual start and rate 100 from ten times as long, agree in all digits: they are the same run in other units. (Adam divides the gradient by its own size, and so gets rid of one of the two factors; for it the factor is ten.)

$\epsilon$ sets a limit: a vector whose mean square is below it is not brought to length at all. Where the norm stands, what batch norm would do in a causal model, and what the stream's growth costs, is the subject of {doc}`../training/dynamics`.

### Four places for a norm

| | a layer | used by |
|---|---|---|
| after the sum (post) | $\operatorname{norm}(x + f(x))$ | the Transformer of 2017, BERT |
| before the layer (pre) | $x + f(\operatorname{norm}(x))$ | GPT-2, Llama |
| both | $x + \operatorname{norm}(f(\operatorname{norm}(x)))$ | Gemma 2 [8] |
| after the layer | $x + \operatorname{norm}(f(x))$ | OLMo 2 [9] |

Only in the first does the norm stand *in* the stream. In the other three the sum {eq}`eq-block-stream` holds as written, and one last norm before the output matrix is needed. In the last two each layer writes with a length that its gain sets, however long its input is.
''')

# ---------------------------------------------------------------------------------------------- GPT on a page
M("gpt-question",r'''
## The whole GPT on one page

Everything is there. Here is a GPT-2, typed as it stands, in terms of the last chapters' formulas; it takes its weights from the library's model and must give the same logits.
''')
C("gpt-attention",'''
def heads(x, n_heads):  # (position, d) -> (head, position, width)
    return x.reshape(len(x), n_heads, -1).transpose(0, 1)

def attend(x, w, b, w_o, b_o, n_heads):
    q, k, v = (heads(x @ w[i].T + b[i], n_heads) for i in "qkv")
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.ones(len(x), len(x)).triu(1).bool()
    mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    return mixed.transpose(0, 1).flatten(1) @ w_o.T + b_o
''')
C("gpt-layers",'''
def norm(x, w, b):
    x = x - x.mean(-1, keepdim=True)
    return w * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() + b

def feed(x, w_up, b_up, w_down, b_down):
    z = x @ w_up.T + b_up
    bent = z / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return bent @ w_down.T + b_down
''')
C("gpt-whole",'''
def gpt(tokens, t, n_layers, n_heads):
    """Logits of one sequence, from the tensors ``t`` of a state dict."""
    x = t["embedding.weight"][tokens] + t["positions.weight"][: len(tokens)]
    for i in range(n_layers):
        a, f = f"blocks.{i}.attention", f"blocks.{i}.feedforward"
        w, b = ({c: t[f"{a}.sublayer.w_{c}.{p}"] for c in "qkvo"} for p in ("weight", "bias"))
        seen = norm(x, t[f"{a}.norm.weight"], t[f"{a}.norm.bias"])
        x = x + attend(seen, w, b, w["o"], b["o"], n_heads)
        up_down = (t[f"{f}.sublayer.w_{c}.{p}"] for c in ("up", "down") for p in ("weight", "bias"))
        x = x + feed(norm(x, t[f"{f}.norm.weight"], t[f"{f}.norm.bias"]), *up_down)
    return norm(x, t["norm.weight"], t["norm.bias"]) @ t["embedding.weight"].T
''')
C("gpt-same",'''
small = GPT(GPTConfig(vocab_size=99, n_context=16, d_model=24, n_layers=3, n_heads=4))
for p in small.parameters():
    p.requires_grad_(False).normal_(std=0.3)  # biases and gains too, so that each one tells
tokens = torch.randint(99, (12,))
torch.testing.assert_close(gpt(tokens, small.state_dict(), 3, 4), small(tokens[None])[0])
''')
M("gpt-library",r'''
In the library the same model is `GPT` ([source](https://github.com/OWNER/attention-book/blob/main/lessons_lib/gpt.py)), and its settings are a `GPTConfig`. With other settings it is Llama: root-mean-square norms, rotary positions, grouped heads, SwiGLU, no biases. Weights of GPT-2, Llama and Qwen3 models of the `transformers` library can be copied into it; the library's tests do that with random weights in all settings it takes, and compare the logits.

## Where are the weights?
''')
ASK("count-guess",'''
share_guess = predict(
    "GPT-2 small, 124 million weights: which part has most?",
    ["embedding of words", "attention", "feed-forward", "positions, norms and biases"],
)
head_guess = predict_number(
    "And how many millions more has it, if the output matrix is not the embedding?", 0, 100
)
''')
C("count",'''
c = gpt2_small()
d, ff, n_layers = c.d_model, c.hidden_width, c.n_layers
count = {
    "embedding of words": c.vocab_size * d,
    "attention": n_layers * 4 * d * d,
    "feed-forward": n_layers * 2 * d * ff,
}
left = c.n_context * d + n_layers * (4 * d + ff + d + 4 * d) + 2 * d
count["positions, norms and biases"] = left
assert sum(count.values()) == c.n_parameters() == 124_439_808
''')
ASK("count-reveal",'''
share_guess.reveal(max(count, key=count.get))
untied = replace(c, tied=False).n_parameters()
head_guess.reveal((untied - c.n_parameters()) / 1e6)
glue("tied", c.n_parameters(), ",")
glue("untied", untied, ",")
table({k: [v, v / c.n_parameters()] for k, v in count.items()}, ["weights", "share"], [",d", ".0%"])
''')
M("count-answer",r'''
Each block has $4d^2$ weights in its attention and $8d^2$ in its feed-forward layer: of a block two thirds are feed-forward, and of a small model a third is the dictionary. With $V$ words, $L$ layers and a context of $n$,

$$
N \approx V d + 12\, L\, d^2 \quad(+\; n d + \text{biases and gains}).
$$ (eq-block-count)

GPT-2 small has {glue:text}`tied` weights, with a head of its own {glue:text}`untied`; the paper's table says 117 million, and the repository that published the weights corrected it FIXME-CHECK. A published class with an untied head prints 163 million and calls it *"about 117M"*.
''')
M("flops-question",r'''
## What does a step cost?

A matrix product of $(a \times b)$ and $(b \times c)$ takes $abc$ multiplications and as many additions: $2abc$ FLOPs. Each weight of a matrix meets each token once, in one multiplication and one addition; going back, twice more, once for the gradient of the input and once for that of the weight. So training costs

$$
6 N \text{ FLOPs per token, forward } 2N .
$$ (eq-block-flops)

This rule of thumb is used to plan runs that cost millions [10]. Where does it fail?
''')
ASK("flops-guess",'''
flops_guess = predict_curve(
    "Llama 3 8B reads n tokens. Draw the operations it really takes forward, over 2N for each "
    "token.", x=(128, 131072), y=(0.5, 4), log="x", xlabel="tokens", ylabel="times 2N",
)
''')
C("flops",'''
def forward_flops(c, n):
    """Matrix products of one sequence of ``n`` tokens, by formula; scores are not skipped."""
    projections = 2 * (c.n_heads + c.key_value_heads) * c.head_width * c.d_model
    ups = 2 if c.feedforward == "swiglu" else 1
    feedforward = (ups + 1) * c.d_model * c.hidden_width
    scores = 2 * n * c.n_heads * c.head_width  # queries times keys, weights times values
    head = c.vocab_size * c.d_model
    return 2 * n * (c.n_layers * (projections + feedforward + scores) + head)
''')
C("flops-check",'''
tiny = GPTConfig(99, 64, 24, 3, 4, n_kv_heads=2, feedforward="swiglu", position="rotary")
with FlopCounterMode(display=False) as counted, torch.no_grad():
    GPT(tiny, implementation=attention)(torch.randint(99, (1, 40)))
assert counted.get_total_flops() == forward_flops(tiny, 40)
n = 2 ** torch.arange(7, 18)
c = llama3_8b()
ratio = torch.tensor([forward_flops(c, k) / (2 * c.n_parameters() * k) for k in n.tolist()])
''')
C("flops-figure",'''
plots.lines(n, ratio, xlabel="tokens", ylabel="times $2N$", logx=True);
''',fig="Llama 3 8B: the matrix products of a forward pass, over the rule of thumb. Scores above the diagonal are counted; a kernel that skips them does half.",name="fig-block-flops",alt="A curve just below one up to some two thousand tokens, which then rises, through about two near sixteen thousand FIXME, steeply to the right.")
ASK("flops-reveal",'''
flops_guess.reveal(n, ratio)
glue("ratio_short", ratio[0], ".2f")
glue("ratio_long", ratio[-1], ".1f")
''')
M("flops-answer",r'''
Three things are in $N$ or not in it. The *embedding* is looked up, not multiplied: its weights are in $N$ and cost nothing. (That is why {glue:text}`ratio_short` at the left is below 1; with a tied head the same weights are used twice, and the rule is right again.) The *scores* are products of activations, not of weights: $4 n d$ more FLOPs for each token and layer, against $24 d^2$ in a block of GPT-2's kind. They are equal at $n = 6d$. And *recomputation*, which training with little memory does ({doc}`../efficient/flash`), makes 6 into 8 if everything is computed again.
''')

# ---------------------------------------------------------------------------------------------- three masks
M("masks-question",r'''
## One block, three masks

*Encoder*, *decoder*, *encoder–decoder*: one could think of three machines. How do their blocks differ?
''')
ASK("masks-guess",'''
masks_guess = predict(
    "BERT is made of encoder blocks, GPT of decoder blocks. What has one that the other has not?",
    ["another kind of attention", "more matrices", "a mask, and nothing else", "a softmax"],
)
''')
C("masks-run",'''
block = small.blocks[0]
x = torch.randn(1, 6, 24)
encoded, decoded = block(x), block(x, causal(6))
torch.testing.assert_close(encoded[:, -1], decoded[:, -1])  # the last word sees all either way
''')
ASK("masks-reveal",'''
masks_guess.reveal("a mask, and nothing else")
assert not torch.allclose(encoded[:, 0], decoded[:, 0], atol=1e-3)
''')
M("masks-answer",r'''
| | mask of self-attention | looks at another sequence | examples |
|---|---|---|---|
| encoder | none but padding | no | BERT |
| decoder | causal | no | GPT, Llama |
| prefix model | causal, and everybody sees the prompt | no | UniLM FIXME |
| encoder–decoder | none for the source, causal for the target | target to source | the Transformer of 2017, T5 |

(In the jargon a *decoder-only* model has a decoder's mask, and lacks what the decoder of 2017 had besides: a second attention.) That one is **cross-attention**: queries from the target's stream, keys and values from the source's,

$$
q = x_{\text{target}} W_Q, \qquad k = x_{\text{source}} W_K, \qquad v = x_{\text{source}} W_V ,
$$ (eq-block-cross)

so the scores are as many as target times source, and no causal mask is due: the source is known. Its keys and values are computed once, however long the target grows.
''')
M("claims",r'''
## The claims in one table

| what is said | what holds |
|---|---|
| A layer replaces a word's vector by a better one | false: [it adds to it](#what-becomes-of-a-word); the prediction is a sum of all writes, up to the last norm |
| Attention is linear, the feed-forward layer brings the non-linearity | [half true](#what-can-attention-not-do): attention is linear in the values at fixed weights, and far from it in its input |
| A feed-forward layer mixes words | false: [each word by itself](#each-word-by-itself) |
| SwiGLU needs $d_{\text{ff}} = \tfrac83 d$ | [for as many weights](#which-bend) as $4d$ has without a gate; a convention, not a law |
| A norm makes gradients as tame as it makes vectors | [misleading](#what-does-a-norm-do-to-gradients): the gradient at a vector ten times as long is a tenth |
| Weight decay keeps the model simple | before a norm [it keeps the rate from falling](#a-learning-rate-that-nobody-set); the function does not change with the length |
| GPT-2 small has 117 million weights | [124 million](#where-are-the-weights), 163 with a head of its own |
| Training costs $6N$ FLOPs a token | [while scores are cheap](#what-does-a-step-cost), $n \ll 6d$, and without recomputation |
| Encoder and decoder blocks are different | [by a mask](#one-block-three-masks) |
''')
nb={"cells":cells,"metadata":{"kernelspec":{"display_name":"Python 3","language":"python","name":"python3"},"language_info":{"name":"python"}},"nbformat":4,"nbformat_minor":5}
for c in nb["cells"]:
    c["source"]=c["source"].splitlines(keepends=True)
open(sys.argv[1],"w").write(json.dumps(nb,indent=1,ensure_ascii=False)+"\n")
