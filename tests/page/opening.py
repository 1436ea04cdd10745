"""Where the page lies, and the type of the fixture that opens it."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page

from foredraft.page import page_directory

INDEX = (page_directory() / "index.html").as_uri()

OpenPage = Callable[..., Page]
