#!/usr/bin/env python3
"""check.py SITE [REPORT.html ...]: opens every page of a site, and reports of `tutti report`, in a headless browser.

An error is what the console says, a link that leads to nothing (the file and the place in it), something that cannot be
loaded, and what does not fit a window of 400 or of 1,400 pixels, light and dark: a page that scrolls sideways, or an element
that leaves the window and stands in no box that scrolls (in a report: any box that scrolls). Pages of SITE must be reachable
from its front page, and the search must find what is asked for. Prints the problems; the exit code is 1 where there are any.
  --browser PATH      a Chromium; chromium-headless-shell or chromium in PATH unless given
  --pictures FOLDER   leaves pictures of the front page, of some others and of the reports there
  --self-test         shows that each kind of problem is found
"""
import argparse
import shutil
import sys
import tempfile
import urllib.parse
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS = (400, 1400)
TIMEOUT = 120_000  # milliseconds for one step of the browser, which may share its cores
SCHEMES = ("light", "dark")
PICTURES = ("index.html", "README.html", "reference/index.html", "reference/train/accelerator.html", "options.html")
# Search words, each with the page that must be among the results.
SEARCHES = {"no_sync": "reference/train/accelerator.html", "GradScaler": "reference/amp/grad_scaler.html",
            "Slurm": "launching.html"}

LINKS = """() => ({
  links: [...document.querySelectorAll("a[href]")].map((a) => a.href).concat(
    [...document.querySelectorAll("form[action]")].map((form) => form.action)),
  ids: [...document.querySelectorAll("[id]"), ...document.querySelectorAll("a[name]")].map((e) => e.id || e.name),
  title: document.title })"""

# Elements that stick out of the window, but for those in boxes that scroll, and for invisible ones.
STICKING_OUT = r"""() => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width)
    found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  const scrolls = (element) => {
    for (let box = element; box && box !== document.documentElement; box = box.parentElement) {
      const style = getComputedStyle(box);
      if (["auto", "scroll", "hidden"].includes(style.overflowX) || style.position === "fixed") return true;
    }
    return false; };
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || box.right < 0) continue;
    if ((box.right > width + 1 || box.left < -1) && !scrolls(element))
      found.push(`${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""} stands at ` +
        `${Math.round(box.left)}..${Math.round(box.right)}: ` +
        (element.textContent ?? "").trim().replace(/\s+/g, " ").slice(0, 40));
  }
  return found.slice(0, 3); }"""


# Boxes whose content one has to scroll sideways to see: right for a page's code, not for a report.
SCROLLING = r"""() => [...document.body.querySelectorAll("*")]
  .filter((e) => e.scrollWidth > e.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
  .map((e) => `${e.tagName.toLowerCase()}.${e.getAttribute("class") ?? ""} has to be scrolled: ${e.scrollWidth} pixels in ` +
    `${e.clientWidth}`).slice(0, 3)"""


class Check:
    def __init__(self, browser):
        self.browser, self.problems = browser, []
        self.links, self.ids = {}, {}

    def open(self, page, path):
        said = []
        page.set_default_timeout(TIMEOUT)
        page.on("console", lambda m: said.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("requestfailed", lambda request: said.append(f"cannot be loaded: {request.url}"))
        page.goto(path.as_uri(), wait_until="load")
        return said

    def fits(self, page, name, scheme, is_report):
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for problem in page.evaluate(STICKING_OUT) + (page.evaluate(SCROLLING) if is_report else []):
                self.problems.append(f"{name} ({width} pixels, {scheme}): {problem}")
            if is_report:
                self.read_off(page, f"{name} ({width} pixels, {scheme})")

    def read_off(self, page, name):
        """Checks that the values that a report shows under the pointer fit."""
        plots = [plot for plot in page.query_selector_all("svg.plot") if plot.is_visible()]
        if not plots:
            return
        plots[0].scroll_into_view_if_needed()
        box = plots[0].bounding_box()
        for share in (0.15, 0.49, 0.51, 0.95):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
            if page.query_selector(".readout") is None:
                self.problems.append(f"{name}: no values under the pointer")
            self.problems += [f"{name}, values under the pointer: {problem}" for problem in page.evaluate(STICKING_OUT)]
        page.mouse.move(0, 0)

    def page(self, context, path, name, scheme, pictures=None, is_report=False):
        page = context.new_page()
        said = self.open(page, path)
        found = page.evaluate(LINKS)
        self.links[path], self.ids[path] = found["links"], set(found["ids"])
        if not found["title"]:
            said.append("the page has no title")
        self.fits(page, name, scheme, is_report)
        if pictures is not None:
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                shot = f"{name.replace('/', '_').removesuffix('.html')}_{width}_{scheme}.png"
                page.screenshot(path=pictures / shot, full_page=is_report)
        self.problems += [f"{name} ({scheme}): {what}" for what in said]
        page.close()

    def site(self, root, pictures):
        paths = sorted(root.rglob("*.html"))
        if not paths:
            self.problems.append(f"{root} holds no page")
        for scheme in SCHEMES:
            context = self.browser.new_context(color_scheme=scheme)
            for path in paths:
                name = str(path.relative_to(root))
                wants_picture = pictures is not None and name in PICTURES
                if scheme == SCHEMES[0] or wants_picture or name.startswith("reference/train/"):
                    self.page(context, path, name, scheme, pictures if wants_picture else None)
            context.close()
        self.check_links(root, paths)
        return len(paths)

    def check_links(self, root, paths):
        reached, waiting = set(), [root / "index.html"]
        while waiting:
            path = waiting.pop()
            if path in reached or path not in self.links:
                continue
            reached.add(path)
            for link in self.links[path]:
                url = urllib.parse.urlsplit(link)
                if url.scheme != "file":
                    continue
                target = Path(urllib.parse.unquote(url.path))
                anchor = urllib.parse.unquote(url.fragment)
                where = f"{path.relative_to(root)}: the link {link.removeprefix(root.as_uri() + '/')}"
                if not target.is_file():
                    self.problems.append(f"{where} leads to nothing")
                elif anchor and target in self.ids and anchor not in self.ids[target]:
                    self.problems.append(f"{where} leads to no place in the page")
                waiting.append(target)
        for path in paths:
            if path not in reached:
                self.problems.append(f"{path.relative_to(root)}: no link leads there")

    def searches(self, root, searches):
        page = self.browser.new_page()
        page.set_default_timeout(TIMEOUT)
        for words, wanted in searches.items():
            page.goto((root / "search.html").as_uri() + "?q=" + urllib.parse.quote(words))
            try:
                page.wait_for_selector(f'#search-results a[href*="{wanted}"]')
            except Exception:
                self.problems.append(f"the search for {words} does not find {wanted}")
        page.close()

    def reports(self, paths, pictures):
        for scheme in SCHEMES:
            context = self.browser.new_context(color_scheme=scheme)
            for path in paths:
                self.page(context, path, "report_" + path.name, scheme, pictures, is_report=True)
            context.close()


GOOD = '<!DOCTYPE html><html><head><title>t</title><meta charset="utf-8"/></head><body>{}</body></html>'


def self_test(browser):
    """Checks pages with one problem each; the last one has none."""
    wide = '<div style="width: 900px; height: 9px">wide</div>'
    cases = {
        '<a href="nowhere.html">x</a>': "leads to nothing",
        '<a href="#nowhere">x</a>': "leads to no place",
        "<script>console.error('bad')</script>": "console: bad",
        "<script>nothing()</script>": "nothing is not defined",
        '<img src="nowhere.png" alt=""/>': "cannot be loaded",
        wide: "the page is",
        '<div style="position: relative; left: -40px; width: 80px; height: 9px">cut</div>': "stands at",
        f'<h1 id="here">x</h1><div style="overflow-x: auto">{wide}</div><a href="#here">x</a>': None,
    }
    missed = 0
    for body, wanted in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            (root / "index.html").write_text(GOOD.format(body))
            check = Check(browser)
            check.site(root, None)
            is_found = any(wanted in p for p in check.problems) if wanted else not check.problems
            if not is_found:
                missed += 1
                print(f"missed in {body}: {wanted}; found {check.problems}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder).resolve() / "report.html"
        report.write_text(GOOD.format(f'<div style="overflow-x: auto">{wide}</div>'))
        check = Check(browser)
        check.reports([report], None)
        if not any("has to be scrolled" in p for p in check.problems):
            missed += 1
            print("missed a report that has to be scrolled", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name in ("index.html", "alone.html"):
            (root / name).write_text(GOOD.format("x"))
        check = Check(browser)
        check.site(root, None)
        if not any("alone.html: no link leads there" in p for p in check.problems):
            missed += 1
            print("missed a page that nothing leads to", file=sys.stderr)
    return missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("site", nargs="?", type=Path)
    parser.add_argument("reports", nargs="*", type=Path)
    parser.add_argument("--browser", default=shutil.which("chromium-headless-shell") or shutil.which("chromium"))
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.browser is None:
        sys.exit("no browser: install chromium-headless-shell, or name a Chromium with --browser")
    if arguments.pictures:
        shutil.rmtree(arguments.pictures, ignore_errors=True)
        arguments.pictures.mkdir(parents=True)
    with sync_playwright() as playwright:
        # Without a sandbox, which root cannot use; it opens only our own pages.
        browser = playwright.chromium.launch(executable_path=arguments.browser, args=["--no-sandbox"], timeout=TIMEOUT)
        if arguments.self_test:
            missed = self_test(browser)
            sys.exit(missed > 0)
        check = Check(browser)
        root = arguments.site.resolve()
        count = check.site(root, arguments.pictures)
        check.searches(root, SEARCHES)
        check.reports([path.resolve() for path in arguments.reports], arguments.pictures)
        browser.close()
    for problem in check.problems:
        print(problem, file=sys.stderr)
    links = sum(len(found) for found in check.links.values())
    print(f"opened {count} pages with {links} links, and {len(arguments.reports)} reports: {len(check.problems)} problems")
    sys.exit(bool(check.problems))


if __name__ == "__main__":
    main()
