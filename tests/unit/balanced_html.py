"""Pages in HTML: elements close, and nothing comes from outside."""

from __future__ import annotations

import html.parser


class Balanced(html.parser.HTMLParser):
    """Counts the images that a page contains, and lists the elements that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        sources = [value or "" for name, value in attrs if name == "src"]
        assert all(source.startswith("data:") for source in sources)
        assert not [v for n, v in attrs if n.endswith("href") and (v or "")[:1] != "#"]
        self.images += len(sources)
        self.open += [tag] * (tag not in ("meta", "img"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
