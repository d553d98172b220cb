"""Wait for the animation frame in which an explorer computes."""


def next_frame(page):
    """Wait until the browser has called what was to be done before its next frame."""
    page.evaluate("() => new Promise(requestAnimationFrame)")


def fill(field, text):
    """Type a text into a field, and wait until the explorer has read it."""
    field.fill(text)
    next_frame(field.page)
