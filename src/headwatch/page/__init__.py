"""The shell of every page that headwatch writes: report, comparison, live view."""

from __future__ import annotations

from headwatch.page.packing import pack, unpack
from headwatch.page.shell import Section, asset, jsonable, render_page

__all__ = ["Section", "asset", "jsonable", "pack", "render_page", "unpack"]
