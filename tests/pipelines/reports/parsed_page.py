"""A parser of the pages for tests."""

import html.parser

_VOID = {"meta", "img"}


class ParsedPage(html.parser.HTMLParser):
    """Parses a page, checks that tags are nested properly, and stores what the tests check."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._open = [], [], []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open and self._open.pop() == tag, f"</{tag}> closes no open tag"

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else None, data))

    def all(self, tag, **attrs):
        wanted = {name.rstrip("_"): value for name, value in attrs.items()}
        return [
            found for name, found in self.tags if name == tag and wanted.items() <= found.items()
        ]

    def text(self, *tags):
        return [data for tag, data in self.texts if tag in tags]

    def check_self_contained(self):
        """The page loads nothing and runs nothing."""
        names = {tag for tag, _ in self.tags}
        assert names.isdisjoint({"script", "link", "iframe", "object", "base"})
        for _, attributes in self.tags:
            for name in ("src", "href", "srcset", "xlink:href", "data", "background"):
                assert attributes.get(name, "data:").startswith(("data:", "#"))
            assert not any(name.startswith("on") for name in attributes)
        (style,) = self.text("style")
        assert "@import" not in style and "url(" not in style
