"""The browser that the page is tested in: one that is installed, else Debian's package.

``python tests/chromium.py`` installs it where that may be done, and says where it may not.
"""

from __future__ import annotations

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")
ARGUMENTS = (
    "--no-sandbox",  # tests may run as root, in a container
    "--disable-gpu",
    "--disable-background-networking",  # it looks nothing up by itself
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def found() -> str | None:
    """Return the browser's path, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def is_required() -> bool:
    """Return whether tests of the page must fail, not be skipped, where there is no browser."""
    return os.environ.get("SHARDCOST_BROWSER") == "required"


def install() -> None:
    """Install Debian's package where this user may."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print("Installing Chromium (once)…", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (("update",), ("install", "--yes", "--no-install-recommends", *PACKAGES)):
        command = ("apt-get", "--quiet", "--quiet", *words)
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment)


if __name__ == "__main__":
    if found() is None:
        install()
    if found() is None:
        print("No Chromium here, and none could be installed: no test of the page in a browser.")
