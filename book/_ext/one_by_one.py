"""Let the scripts of the theme and of extensions start one after another when a page has been read.

A browser runs all deferred scripts and all listeners for ``DOMContentLoaded`` in one task, in which a slow phone
answers no tap. Here each listener that is added to the document runs in a task of its own, in the same order; those of
the window still run at once. The theme's scripts are changed so that what they do at once becomes such a listener.
When all have run, which may be after ``load``, the document has its own ``addEventListener`` no more.
"""

from pathlib import Path

SCRIPT = """(() => {
  const waiting = [];
  document.addEventListener = function (type, listener, ...options) {
    if (type === "DOMContentLoaded") waiting.push(listener);
    else EventTarget.prototype.addEventListener.call(this, type, listener, ...options);
  };
  addEventListener("DOMContentLoaded", (event) => {
    const soon = (f) => (self.scheduler?.postTask ? void scheduler.postTask(f) : setTimeout(f));
    const next = () => {
      if (!waiting.length) return void delete document.addEventListener;
      const listener = waiting.shift();
      soon(next);
      if (typeof listener === "function") listener.call(document, event);
      else listener.handleEvent(event);
    };
    soon(next);
  });
})();"""
DEFERRED = {"bootstrap.js": "t", "pydata-sphinx-theme.js": "e"}  # with the name of the callback
AT_ONCE = '"loading"!=document.readyState?{0}():document.addEventListener("DOMContentLoaded",{0})'


def wait_for_the_page(app, exception) -> None:
    """Let the theme's deferred scripts wait for ``DOMContentLoaded``, which comes directly after them.

    Raises:
        ValueError: if a script is another one than the one that is changed here.
    """
    if exception is not None or app.builder.format != "html":
        return
    for name, callback in DEFERRED.items():
        script = Path(app.outdir, "_static", "scripts", name)
        text, old = script.read_text(encoding="utf-8"), AT_ONCE.format(callback)
        new = old.replace('"loading"!=', '"complete"==')
        if text.count(old) + text.count(new) != 1:
            raise ValueError(f"expected in {script} one start as the page is ready; has the theme been updated?")
        script.write_text(text.replace(old, new), encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_js_file(None, body=SCRIPT, priority=110)
    app.connect("build-finished", wait_for_the_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
