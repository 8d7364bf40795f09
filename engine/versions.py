"""Versions of installed packages, for whoever writes results down."""

from importlib import metadata


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
