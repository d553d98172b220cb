"""Serve _build/html on this machine and open it in the default browser; Ctrl-C ends it."""

import contextlib
import functools
import webbrowser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HTML = Path(__file__).resolve().parents[1] / "_build" / "html"


def main() -> None:
    """Serve until interrupted, on port 8000 or, if that is in use, on any free port."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(HTML))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", 8000), handler)
    except OSError:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    address = f"http://127.0.0.1:{server.server_port}/"
    print(f"The book is at {address}   (Ctrl-C ends this)")
    webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
