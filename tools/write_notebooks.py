"""Write only the runnable edition, the notebooks behind the site's launch and download buttons, to _build/notebooks."""

import shutil
import sys

from build_book import BUILD, ROOT, run_jupyter_book
from pin_library import pin_edition


def main() -> int:
    """Run the notebooks that have changed, write the edition, pin the library, and print the folder."""
    if status := run_jupyter_book(ROOT, "--builder", "custom", "--custom-builder", "runnable"):
        return status
    shutil.rmtree(BUILD / "runnable", ignore_errors=True)  # the builder's own output folder, which stays empty
    notice = pin_edition(BUILD)
    print(f"\nThe runnable edition: {(BUILD / 'notebooks').relative_to(ROOT)}")
    if notice:
        print(notice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
