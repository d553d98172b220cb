"""Write the runnable edition alone, into _build/notebooks: what the launch and download buttons of the site give."""

import shutil
import sys

from build_book import BUILD, ROOT, run_jupyter_book
from pin_library import pin_edition


def main() -> int:
    """Run what has changed, write the notebooks, pin them; say where they are."""
    if status := run_jupyter_book(ROOT, "--builder", "custom", "--custom-builder", "runnable"):
        return status
    shutil.rmtree(BUILD / "runnable", ignore_errors=True)  # where this builder's pages would be
    said = pin_edition(BUILD)
    print(f"\nThe runnable edition: {(BUILD / 'notebooks').relative_to(ROOT)}")
    if said:
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
