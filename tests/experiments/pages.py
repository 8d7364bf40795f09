"""A strict reader of a report: what HTML, links and pictures must be for the page to stand alone."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = {"meta", "img", "br", "link", "hr", "input"}
ACTIVE = {"script", "link", "iframe", "object", "embed", "form", "base", "audio", "video"}
ELSEWHERE = re.compile(r"(?i)url\(|@import|https?:|//[a-z0-9.-]+\.[a-z]{2,}/")


class PageReader(HTMLParser):
    """Faults of a page: tags that do not nest, ids twice, links that lead nowhere, anything from outside."""

    def __init__(self, path: Path):
        super().__init__(convert_charrefs=True)
        self.folder = path.parent
        self.faults, self.links, self.ids, self.words = [], [], [], []
        self._open, self._style = [], ""
        text = path.read_text("utf-8")
        if not text.lstrip().lower().startswith("<!doctype html>"):
            self.faults.append("no doctype")
        self.feed(text)
        self.close()
        if self._open:
            self.faults.append(f"never closed: {self._open}")
        self.faults += [f"id {name!r} twice" for name in set(self.ids) if self.ids.count(name) > 1]
        if ELSEWHERE.search(self._style):
            self.faults.append("the style asks for something outside")
        self.faults += [fault for link in self.links if (fault := self._fault_of(link))]
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ACTIVE:
            self.faults.append(f"<{tag}> in a page that needs none")
        if any(name.startswith("on") for name in given):
            self.faults.append(f"<{tag}> with a script in {sorted(given)}")
        if "style" in given and ELSEWHERE.search(given["style"]):
            self.faults.append(f"<{tag}> asks for something outside")
        if tag == "img":
            self._see_picture(given)
        if "href" in given:
            self.links.append(given["href"])
        if "id" in given:
            self.ids.append(given["id"])
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes something else")

    def handle_data(self, data):
        if self._open and self._open[-1] == "style":
            self._style += data
        else:
            self.words.append(data)

    def _see_picture(self, given):
        head, _, data = given.get("src", "").partition(",")
        if head != "data:image/png;base64" or not base64.b64decode(data, validate=True).startswith(b"\x89PNG"):
            self.faults.append(f"a picture that is not in the page: {given.get('src', '')[:60]}")
        if not given.get("alt"):
            self.faults.append("a picture without words for those who cannot see it")

    def _fault_of(self, link):
        if link.startswith("#"):
            return "" if link[1:] in self.ids else f"{link} leads nowhere"
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//|/", link):
            return f"{link} leads out of the folder"
        path = (self.folder / unquote(link)).resolve()
        inside = path.is_relative_to(self.folder.resolve()) and path.is_file()
        return "" if inside else f"{link}: no such file beside the page"
