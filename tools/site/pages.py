#!/usr/bin/env python3
"""pages.py OUT: writes the pages of the repository to the folder OUT, in the form that Sphinx reads.

Pages are docs/**/*.md, the Markdown files in front, and each Markdown file that a page links to; docs/index.md is the front.
Links stay as they are on a code forge, relative to the file. Here they are turned towards the site: to the other page, or to
a page that shows the file or lists the folder. A link to something that is not there is an error.
"""
import os
import posixpath
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The sidebar: pages by name, in this order. Other pages are under the last heading.
SIDEBAR = {
    "Begin": ["README.md", "docs/from_zero.md", "docs/guides/from_accelerate.md", "docs/guides/gradient_accumulation.md",
              "docs/guides/same_result.md", "docs/guides/train_step.md", "docs/guides/local_sgd.md",
              "docs/guides/several_machines.md", "docs/guides/python.md", "docs/guides/*"],
    "Look up": ["docs/options.md", "docs/errors.md", "docs/error_messages.md", "docs/hangs.md", "docs/reliability.md", "docs/scale.md",
                "docs/loops.md", "docs/launching.md", "docs/collectives.md", "docs/data.md", "docs/gradients.md", "docs/local_sgd.md", "docs/metrics.md", "docs/formats.md"],
    "Inside": ["docs/architecture.md", "docs/algorithms.md", "docs/wire_format.md", "docs/comparison.md", "bench/RESULTS.md", "bench/HISTORY.md", "docs/tested.md",
               "docs/first_light.md", "docs/dependencies.md", "CONTRIBUTING.md", "CHANGELOG.md"],
    "More": [],
}
TITLES = {"README.md": "The README", "bench/RESULTS.md": "Benchmark results"}
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".py": "python", ".sh": "bash", ".cmake": "cmake", ".json": "json", ".yml": "yaml"}
IMAGES = (".png", ".svg", ".jpg", ".gif")
LINK = re.compile(r'(?P<before>\]\(\s*|<img[^>]*?src="|<source[^>]*?srcset=")(?P<to>[^)\s"]+)')


def site_path(file):
    """Returns the path in OUT of a file of the repository."""
    return file.removeprefix("docs/") if file.startswith("docs/") else file


def reference_of(target):
    """Returns the reference page of a public header, or of the folder of headers; None for other files."""
    if target == "include/tutti":
        return "reference/index.rst"
    if re.match(r"include/tutti/(?!detail/).+/.+\.h$", target):
        return target.replace("include/tutti", "reference").replace(".h", ".rst")
    return None


class Pages:
    def __init__(self, out):
        self.out = Path(out)
        self.pages, self.waiting, self.problems = [], [], []
        front = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        for file in [*front, *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]:
            self.want(file)
        while self.waiting:
            self.page(self.waiting.pop())
        self.index()

    def want(self, file):
        if file not in self.pages:
            self.pages.append(file)
            self.waiting.append(file)

    def page(self, file):
        fence, lines = None, []
        for number, line in enumerate((ROOT / file).read_text().splitlines(), 1):
            mark = re.match(r"\s*(```+|~~~+)", line)
            if mark and (fence is None or line.strip() == fence):
                fence = mark.group(1) if fence is None else None
            elif fence is None:
                line = self.turned(file, number, line)
            lines.append(line)
        self.write(site_path(file), "\n".join(lines) + "\n")

    def turned(self, file, number, line):
        # Words in backquotes are not links.
        parts = re.split(r"(`+[^`]*`+(?!\]))", line)
        return "".join(p if p.startswith("`") else LINK.sub(lambda m: self.link(file, number, m), p) for p in parts)

    def link(self, file, number, match):
        to, before = match["to"], match["before"]
        if re.match(r"[a-z]+:|#", to):
            return match.group()
        path, _, anchor = to.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        if target.startswith("..") or not (ROOT / target).exists():
            self.problems.append(f"{file}:{number}: there is no {target}")
            return match.group()
        if (ROOT / target).is_dir() and (ROOT / target / "README.md").exists():
            target += "/README.md"
        here = posixpath.dirname(site_path(file))
        if reference := reference_of(target):
            place = reference
        elif target.endswith(".md"):
            self.want(target)
            place = site_path(target)
        elif target.endswith(IMAGES):
            place = site_path(target)
            self.copy(target, place)
        else:
            place = self.source(target)
        return before + posixpath.relpath(place, here or ".") + ("#" + anchor if anchor else "")

    def source(self, target):
        """Writes a page that shows a file, or lists a folder."""
        place = f"sources/{target}" + ("/index.md" if (ROOT / target).is_dir() else ".md")
        if (self.out / place).exists():
            return place
        if (ROOT / target).is_dir():
            self.write(place, "")
            entries = [e for e in sorted((ROOT / target).iterdir()) if not e.name.startswith((".", "__"))]
            lines = [f"# {target}/", ""]
            for entry in entries:
                shown = self.source(str(entry.relative_to(ROOT)))
                lines.append(f"- [`{entry.name}`]({posixpath.relpath(shown, posixpath.dirname(place))})")
            self.write(place, "\n".join(["---", "orphan: true", "---", "", *lines, ""]))
            return place
        self.copy(target, f"sources/{target}")
        language = LANGUAGES.get(Path(target).suffix) or ("cmake" if target.endswith("CMakeLists.txt") else "text")
        self.write(place, f"---\norphan: true\n---\n\n# {target}\n\n```{{literalinclude}} {Path(target).name}\n"
                          f":language: {language}\n```\n")
        return place

    def index(self):
        """Writes the front page, with the sidebar's entries."""
        left = [p for p in self.pages if p != "docs/index.md"]
        text = self.out / "index.md"
        lines = [text.read_text()]
        for heading, wanted in SIDEBAR.items():
            chosen = []
            for pattern in wanted:
                chosen += sorted(p for p in left if p not in chosen and Path(p).match(pattern))
            if heading == list(SIDEBAR)[-1]:
                chosen = sorted(left)
            left = [p for p in left if p not in chosen]
            if chosen:
                entries = [f"{TITLES[p]} <{site_path(p)[:-3]}>" if p in TITLES else site_path(p)[:-3] for p in chosen]
                lines.append(self.toctree(heading, entries))
            if heading == "Look up":
                lines.append(self.toctree("Reference", ["All headers <reference/index>"]))
        text.write_text("\n".join(lines))

    @staticmethod
    def toctree(heading, entries):
        return "\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *entries, "```", ""])

    def copy(self, file, place):
        path = self.out / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / file).read_bytes())

    def write(self, place, text):
        path = self.out / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    problems = Pages(sys.argv[1]).problems
    if problems:
        print("\n".join(problems), file=sys.stderr)
        sys.exit(1)
