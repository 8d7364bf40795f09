"""Versions of installed packages, for whoever writes results down."""

import re
from importlib import metadata
from pathlib import Path


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def driver_version() -> str | None:
    """The version in /proc's line about the kernel module, whatever its wording."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", text)
    return found and found.group()
