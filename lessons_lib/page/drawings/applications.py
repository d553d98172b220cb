"""The drawings of the part on applications."""

from lessons_lib.page.sketch import Sketch


def two_towers() -> Sketch:
    """Draw an image encoder and a text encoder, whose two vectors meet in a scaled dot product.

    Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021. arXiv:2103.00020.
    """
    d = Sketch(
        402,
        206,
        alt="Two columns. On the left a picture goes up into an image tower, on the right a caption into a text tower; "
        "in each there is self-attention. Each tower gives one vector of length one, u and v. The two arrows meet at "
        "the top in one product, the cosine of u and v, times a scale. No arrow leads from one tower to the other.",
    )
    middle = 201.0
    for left, name, given, vector, role in (
        (28.0, "image tower", "picture", "u, length 1", "query"),
        (244.0, "text tower", "a three left of a seven", "v, length 1", "key"),
    ):
        tower = d.box(left, 104, 130, 50, role=role)
        d.text((tower.middle[0], 121), name)
        d.text((tower.middle[0], 138), "self-attention", small=True)
        d.text((tower.middle[0], 192), given)
        d.arrow((tower.middle[0], 184), tower.bottom)
        side = -1 if left < middle else 1
        d.arrow(tower.top, (middle + 52 * side, 40), role=role)
        d.text((middle + 92 * side, 66), vector, anchor="end" if side < 0 else "start", small=True)
    d.box(middle - 50, 12, 100, 34, "scale · (u · v)", role="value")
    return d


def spot_and_mark(spot: tuple[float, float] = (4.6, 5.2)) -> Sketch:
    """Draw an image of 8 x 8 patches with the spot that decides its class and a mark that only correlates with it.

    Args:
        spot: centre of the spot, in patches from the left and from above.

    Raises:
        ValueError: if the centre of the spot is not in the image.
    """
    if not all(0 <= place <= 8 for place in spot):
        raise ValueError(f"spot must be within 0 .. 8 patches from the left and from above, got {spot}")
    d = Sketch(
        402,
        190,
        alt="A square window divided into eight by eight patches. A soft round spot lies inside it, over parts of "
        "several patches: it makes the window sick. In the top left corner a small square, the mark, covers part of "
        "one patch: it only goes along with being sick.",
    )
    left, top, patch = 30.0, 14.0, 20.0
    d.matrix(left, top, 8 * patch, 8 * patch, grid=(8, 8))
    centre = left + spot[0] * patch, top + spot[1] * patch
    for radius in (22.0, 14.0, 7.0):
        d.circle(centre, radius, role="key")
    mark = d.box(left + 1, top + 1, 14, 14, role="query")
    d.text((236, 22), "mark: goes along", anchor="start", small=True)
    d.text((236, 36), "with being sick, 9 in 10", anchor="start", small=True)
    d.arrow((230, 26), (mark.right[0] + 4, mark.right[1] + 4), role="query")
    beside = max(centre[1], 64)  # below the words on the mark
    d.text((236, beside - 7), "spot: makes it sick", anchor="start", small=True)
    d.text((236, beside + 7), "label: sick or well", anchor="start", small=True)
    d.arrow((230, beside), (centre[0] + 22, centre[1]), role="key")
    return d
