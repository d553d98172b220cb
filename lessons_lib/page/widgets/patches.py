"""The patches explorer: Vision Transformers that classify digits cut into patches."""

from typing import Any

import torch
import traitlets
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib.analysis.diagnostics import observe
from lessons_lib.applications.vision import VisionConfig, VisionTransformer
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.trained import from_base64, placeholder_weights, script_data
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import mark, say

SCRIPT = "patches_model.js"
SIDE, FULL, DIGITS, CLASSES = 8, 16, 30, 10
SIZES = [1, 2, 4]
PIXELS = [mark("in order"), mark("shuffled")]
GUESSES = ["", "few", "fewer", "alike"]
# The trained models. With patches of one pixel, shuffling the pixels is the same as shuffling the positions.
TRAINED = [(1, "in order"), (2, "in order"), (4, "in order"), (2, "shuffled"), (4, "shuffled")]


class PatchesExplorer(Explorer):
    r"""Draw a digit and cut it into patches; see the attention weights of each patch and the predicted digit.

    The models are :class:`~lessons_lib.applications.vision.VisionTransformer` of two layers with four heads each,
    named ``1.1`` to ``2.4``; ``patch_model`` returns them. Each was trained on the first thousand digits of
    ``lessons_lib.training.datasets.load("digits")`` and is rounded to eight bits. ``"shuffled"`` applies one fixed
    permutation to the pixels of all digits, in training too. A patch is a token; before the patches comes the summary
    token, from whose output the digit is predicted.

    Args:
        digit: index of one of thirty test digits, those from position 1250 of the data on.
        size: side of a patch in pixels, 1, 2 or 4.
        pixels: ``"in order"`` or ``"shuffled"``.
        query: the query: 0 for the summary token, 1 for the first patch; the last patch if there are fewer.
        ink: a drawing: the ink of all 64 pixels, row by row, 0 to 16; empty for the digit of the data.
        guess: the accuracy with shuffled pixels that the reader expects: ``"few"``, ``"fewer"`` or ``"alike"``; empty
            before the guess.

    Raises:
        ValueError: if there is no such digit, patch size, order of pixels, token or guess, or ``ink`` is neither empty
            nor 64 whole numbers from 0 to 16.
    """

    script = "patches"
    card = Card(
        title="A digit in patches",
        question="What does a patch attend to, and does the order of the pixels matter?",
        sentence=(
            "In the live figure a digit can be drawn and cut into patches of one, two or four pixels; the attention "
            "weights of all eight heads follow the query patch, and the bars show the predicted digit."
        ),
        tries={
            "Patches of one pixel": {"size": 1},
            "Patches of sixteen pixels": {"size": 4},
            "Shuffled pixels": {"size": 2, "pixels": "shuffled"},
        },
    )

    digit = Whole(4, min=0, max=DIGITS - 1).tag(sync=True)
    size = traitlets.Enum(SIZES, 2).tag(sync=True)
    pixels = traitlets.Enum(PIXELS, "in order").tag(sync=True)
    query = Whole(0, min=0, max=SIDE**2).tag(sync=True)
    ink = traitlets.List(Whole(min=0, max=FULL), maxlen=SIDE**2).tag(sync=True)
    guess = traitlets.Enum(GUESSES, "").tag(sync=True)

    @traitlets.validate("ink")
    def _each_pixel_has_some(self, proposal: Any) -> list[int]:
        if len(proposal["value"]) not in (0, SIDE**2):
            raise traitlets.TraitError(f"ink must be {SIDE**2} whole numbers or none, got {len(proposal['value'])}")
        return proposal["value"]

    def image(self) -> Float[Tensor, "8 8"]:
        """Return the input of the model: ink from 0 to 1, shuffled if ``pixels`` says so, in float64."""
        drawn = torch.tensor(self.ink) if self.ink else shown_digits()[0][self.digit].flatten()
        places = torch.arange(SIDE**2) if self.pixels == "in order" else pixel_permutation()
        return (drawn[places].double() / FULL).view(SIDE, SIDE)

    def logits(self) -> Float[Tensor, "10"]:
        """Return the logits of the classes, in float64."""
        with torch.no_grad():
            return patch_model(self.size, self.pixels).double()(self.image()[None])[0]

    def weights(self) -> Float[Tensor, "8 n n"]:
        """Return the attention weights of the eight heads, in the order of their names; token 0 is the summary."""
        model = patch_model(self.size, self.pixels).double()
        with observe(model) as seen, torch.no_grad():
            model(self.image()[None])
        return torch.cat([weights[0] for weights in seen.weights.values()])

    def still(self) -> str:
        """Draw the input of the model, and the probability of each digit."""
        image, p = self.image(), self.logits().softmax(-1)
        label = int(shown_digits()[1][self.digit])
        place = [16 * i + 4 * (i // self.size) for i in range(SIDE)]
        wide = place[-1] + 16
        greys: dict[float, str] = {}
        for r, row in enumerate(image.tolist()):
            for c, ink in enumerate(row):
                greys[ink] = greys.get(ink, "") + f"M{place[c]} {place[r]}h15v15h-15z"
        pixels = [element("path", class_="x-ground", d="".join(greys.values()))]
        pixels += [element("path", fill="currentColor", fill_opacity=ink, d=d) for ink, d in greys.items() if ink]
        left = wide + 32
        bars = "".join(f"M{left} {16 * i + 3}h{70 * p[i]:.1f}v11H{left}z" for i in range(CLASSES))
        rows = [
            text(str(i), x=left - 6, y=16 * i + 13, anchor="end", class_="v-right" if i == label else "")
            for i in range(CLASSES)
        ]
        rows += [element("path", class_="x-solid", d=bars)]
        order = p.argsort(descending=True, stable=True)[:2].tolist()
        alt = say(
            "digit {digit} in {patches} patches, pixels {pixels}, is classified as {first} with probability {p}, as "
            "{second} with {q}",
            digit=label,
            patches=SIDE**2 // self.size**2,
            pixels=say(self.pixels),
            first=order[0],
            p=f"{p[order[0]]:.2f}",
            second=order[1],
            q=f"{p[order[1]]:.2f}",
        )
        return picture(left + 72, max(wide, 16 * CLASSES) + 2, alt, *pixels, *rows)


def patch_model(size: int, pixels: str = "in order") -> VisionTransformer:
    """Return a model of the explorer in evaluation mode.

    With patches of one pixel, the model of shuffled digits is the model of digits in order with its position embeddings
    shuffled in the same way. ``patches_record`` returns how the models were trained, ``patch_config`` their
    configuration.

    Raises:
        ValueError: if ``size`` is not 1, 2 or 4, or ``pixels`` neither ``"in order"`` nor ``"shuffled"``.
    """
    if size not in SIZES or pixels not in PIXELS:
        raise ValueError(f"there are models of sizes {SIZES} and pixels {PIXELS}, got {size!r} and {pixels!r}")
    is_permuted = (size, pixels) not in TRAINED
    described = script_data(SCRIPT)["models"][f"{size} {PIXELS[0] if is_permuted else pixels}"]
    parameters = {name: unpack_int8(packed) for name, packed in described["parameters"].items()}
    if is_permuted:
        places = parameters["positions.weight"]
        parameters["positions.weight"] = torch.cat([places[:1], places[1:][pixel_permutation()]])
    with placeholder_weights():
        model = VisionTransformer(patch_config(size))
    model.load_state_dict(parameters, assign=True)
    return model.eval()


def patch_config(size: int) -> VisionConfig:
    """Return the configuration of a model with patches of ``size`` by ``size`` pixels."""
    return VisionConfig((SIDE, SIDE), size, CLASSES, d_model=24, n_layers=2, n_heads=4, d_ff=48)


def patches_record() -> dict[str, Any]:
    """Return how the models were trained: command, settings, data, and ``right``.

    ``right`` is the number of test digits that each model classifies correctly before rounding, for each seed. The
    models of the first seed are stored, rounded: ``carried_right`` is their number of correct digits, and
    ``kl_of_rounding`` the mean KL divergence of their predictions, in nats.
    """
    script = script_data(SCRIPT)
    rounded = {
        f"{key}": {name: model[own] for name, model in script["models"].items()}
        for key, own in (("carried_right", "right"), ("kl_of_rounding", "kl_of_rounding"))
    }
    return {**script["record"], **rounded}


def shown_digits() -> tuple[Int[Tensor, "30 8 8"], Int[Tensor, "30"]]:
    """Return the digits that can be chosen, ink from 0 to 16, and their labels."""
    script = script_data(SCRIPT)
    return from_base64(script["images"], torch.uint8).view(DIGITS, SIDE, SIDE).long(), torch.tensor(script["labels"])


def pixel_permutation() -> Int[Tensor, "64"]:
    """Return the permutation of the pixels: the index of the pixel at each position."""
    return from_base64(script_data(SCRIPT)["moved"], torch.uint8).long()


def unpack_int8(packed: dict[str, Any]) -> Float[Tensor, "*shape"]:
    """Return a parameter that ``tools/train_patches.py`` rounded, in float32."""
    return from_base64(packed["int8"], torch.int8).reshape(packed["shape"]).float() * packed["step"]
