#!/usr/bin/env python3
"""reference.py XML HEADERS OUT: writes the reference, one page for each public header, from Doxygen's XML.

XML is Doxygen's folder, HEADERS the folder that #include names begin in, OUT where the pages go (reStructuredText, for
Sphinx). Every public name must have a comment: those without are listed, and the exit code is 1.
"""
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

# The purpose of each module, in the order of the reference.
MODULES = {
    "train": "The Accelerator and the Trainer: what most programs include.",
    "sync": "Gradients synchronized by hooks on the parameters: DistributedDataParallel, and what is below it.",
    "data": "Loaders that read one rank's shard, samplers, and readers of common files.",
    "optim": "Prepared optimizers, learning rate schedules, clipping.",
    "local_sgd": "Local steps on each rank with periodic averages of the models: Local SGD, SlowMo, DiLoCo.",
    "amp": "Mixed precision: autocast and the scale of the loss.",
    "checkpoint": "Checkpoints and safetensors files.",
    "state": "The state of objects in a checkpoint.",
    "tracking": "Trackers for a run's metrics, and the report.",
    "comm": "A group of ranks and its collectives.",
    "device": "Numbers that a device computes and the host reads later.",
    "data_parallel": "Replicas of a module on threads of one process.",
    "process_group": "A backend for c10d and torch.distributed.",
    "exported": "Trainable modules from programs of Python's torch.export.",
    "flight": "The last operations of each rank of a job, for failures and deadlocks.",
    "launch": "Starts ranks on this machine and on others.",
    "core": "Errors, log lines, and the environment of this process.",
}
NAMESPACE = "tutti"
SECTIONS = {"note": "Note", "warning": "Warning", "see": "See", "return": "Returns"}
missing = []


class Names:
    """The public names and the targets of links to them."""

    def __init__(self):
        self.types, self.functions = set(), set()
        self.headers = []  # paths as they are shown
        self.beside = []  # classes of the header that is written: what the comments of one say of the others' members

    def target(self, word, scopes):
        """Returns the full name of `word` inside `scopes`, innermost first; None if it is no name."""
        known = self.functions if word.endswith("()") else self.types
        if "::" in word:
            known = self.types | self.functions
        # A plain word may be the name of an argument.
        others = self.beside if word.endswith("()") else []
        word = word.removesuffix("()").removeprefix(NAMESPACE + "::")
        found = [full for scope in scopes if (full := f"{scope}::{word}") in known]
        beside = [full for scope in others if (full := f"{scope}::{word}") in known]
        return found[0] if found else beside[0] if len(beside) == 1 else None

    def page(self, path):
        """Returns the page of a header, named by an unambiguous part of its path, or of a document."""
        if path.endswith(".md"):
            return "/" + path.removeprefix("docs/").removesuffix(".md") if path.startswith("docs/") else None
        found = [header for header in self.headers if ("/" + header).endswith("/" + path)]
        return "/reference/" + found[0].removesuffix(".h") if len(found) == 1 else None


names = Names()


def escape(text):
    return re.sub(r"([\\*`_|])", r"\\\1", text)


GLUE = "\0"  # between words and marked-up words: nothing next to blanks, and what reStructuredText wants elsewhere


def joined(parts):
    """Words on one line, with the marks that reStructuredText needs where marked-up words touch others."""
    text = " ".join("".join(parts).split())
    text = re.sub(rf"(?:^|(?<=\s)){GLUE}+|{GLUE}+(?=\s|$)", "", text)
    return re.sub(rf"{GLUE}+", r"\\ ", text)


WORD = re.compile(r"(?<![\w:.\"'/-])(?:(?:tutti::)?(?:[A-Z]\w*(?:::\w+)*(?:\(\))?|\w+\(\))(?![\w:(])|[a-z][\w/]*\.(?:h|md)\b)")


def linked(text, scopes):
    """Plain text in which the names of types, the calls of functions, headers and pages are links."""
    result, done = [], 0
    for word in WORD.finditer(text):
        if word.group().endswith((".h", ".md")):
            target, role = names.page(word.group()), "doc"
        else:
            target, role = names.target(word.group(), scopes), "cpp:any"
        if target is None or target == scopes[0]:
            continue
        result += [escape(text[done:word.start()]), f"{GLUE}:{role}:`{word.group()} <{target}>`{GLUE}"]
        done = word.end()
    return "".join([*result, escape(text[done:])])


def inline(node, scopes):
    """A paragraph's words, as reStructuredText."""
    parts = [linked(node.text or "", scopes)]
    for child in node:
        text = "".join(child.itertext())
        if child.tag == "computeroutput":
            target = names.target(text, scopes)
            # A literal may not begin or end with a blank.
            parts.append(f"{GLUE}:cpp:any:`{text} <{target}>`{GLUE}" if target else f"{GLUE}``{text.strip()}``{GLUE}")
        elif child.tag in ("bold", "emphasis"):
            mark = "**" if child.tag == "bold" else "*"
            parts.append(f"{GLUE}{mark}{escape(text)}{mark}{GLUE}")
        elif child.tag == "ulink":
            parts.append(f"{GLUE}`{escape(text)} <{child.get('url')}>`__{GLUE}")
        elif child.tag in ("ref", "sp"):
            parts.append(linked(text or " ", scopes))
        else:
            raise ValueError(f"<{child.tag}> in a comment: {text}")
        parts.append(linked(child.tail or "", scopes))
    return joined(parts)


BLOCKS = ("itemizedlist", "orderedlist", "programlisting", "verbatim", "simplesect", "para")


def blocks(node, scopes):
    """The blocks of a description, each a list of lines."""
    result = []
    run = ET.Element("para")

    def end_run():
        nonlocal run
        if text := inline(run, scopes):
            result.append([text])
        run = ET.Element("para")

    run.text = node.text
    for child in node:
        if child.tag not in BLOCKS:
            run.append(child)
            continue
        end_run()
        run.text = child.tail
        if child.tag == "para":
            result += blocks(child, scopes)
        elif child.tag in ("itemizedlist", "orderedlist"):
            mark = "- " if child.tag == "itemizedlist" else "#. "
            for item in child:
                result.append(hanging(mark, join(blocks(item, scopes))))
        elif child.tag == "simplesect":
            result.append(hanging(f"**{SECTIONS[child.get('kind')]}:** ", join(blocks(child, scopes))))
        elif child.tag == "verbatim":
            result.append(code(child.text.strip("\n").splitlines()))
        else:
            lines = ["".join(" " if n.tag == "sp" else (n.text or "") for n in line.iter()) for line in child]
            result.append(code(lines))
    end_run()
    return result


def code(lines):
    return [".. code-block:: cpp", "", *indented(lines)]


def hanging(mark, lines):
    return [mark + lines[0]] + [" " * len(mark) + line if line else "" for line in lines[1:]] if lines else []


def join(all_blocks):
    lines = []
    for block in all_blocks:
        lines += [*([""] if lines else []), *block]
    return lines


def indented(lines, by=3):
    return [" " * by + line if line else "" for line in lines]


def description(node, scopes):
    found = []
    for part in ("briefdescription", "detaileddescription"):
        if (element := node.find(part)) is not None:
            found += blocks(element, scopes)
    return join(found)


def words(node, tag):
    element = node.find(tag)
    return "" if element is None else " ".join("".join(element.itertext()).split())


def template_head(node):
    parameters = node.find("templateparamlist")
    if parameters is None:
        return ""
    result = []
    for parameter in parameters:
        text = words(parameter, "type")
        if name := words(parameter, "declname"):
            text += " " + name
        if default := words(parameter, "defval"):
            text += " = " + default
        result.append(text)
    requires = words(node, "requiresclause")
    # Sphinx does not know requires-expressions.
    return f"template<{', '.join(result)}> " + (f"requires {requires} " if requires and "{" not in requires else "")


def function_signature(member):
    front = "explicit " * (member.get("explicit") == "yes") + "static " * (member.get("static") == "yes")
    front += "virtual " * (member.get("virt") == "pure-virtual")
    kind = words(member, "type").replace("constexpr ", "").replace("inline ", "")
    arguments = words(member, "argsstring").replace("=0", " = 0").replace("=default", "").replace(" override", "")
    arguments = re.sub(r" final|\s*noexcept(\s*\(\w+\))?", "", arguments).strip()
    arguments = re.sub(r"(?<=[\w>&*])=(?=[\w{:-])", " = ", arguments)
    kind += " " if kind else ""
    return f"{template_head(member)}{front}{kind}{words(member, 'name')}{arguments}"


def value_signature(member):
    front = "static " * (member.get("static") == "yes")
    return f"{front}{words(member, 'type')} {words(member, 'name')}{words(member, 'argsstring')}"


def initial_value(member):
    value = words(member, "initializer")
    return (value if value.startswith("=") else "= " + value) if value and value not in ("= {}", "{}") else ""


def directive(kind, signature, body, options=()):
    return [f".. cpp:{kind}:: {signature}", *indented(options), "", *indented(body), ""]


def documented(node, name, scopes):
    text = description(node, scopes)
    if not text:
        location = node.find("location")
        missing.append(f"{location.get('file')}:{location.get('line')}: {name} has no comment")
    return text


def of_no_interest(member):
    """Copies that are deleted, destructors without a word, and what is there for the compiler."""
    text = words(member, "argsstring")
    deleted = text.endswith("=delete") or text.endswith("= delete")
    destructor = words(member, "name").startswith("~")
    moves = words(member, "name") == "operator=" or re.search(r"&&\s*\w*\s*\) noexcept", text)
    silent = not description(member, ["-"])
    comparison = words(member, "name") == "operator==" and text.endswith("default")
    return deleted or comparison or (silent and (destructor or bool(moves)))


def member_lines(member, scopes):
    kind, name = member.get("kind"), words(member, "name")
    full = f"{scopes[0]}::{name}"
    if kind == "function":
        if of_no_interest(member):
            return []
        override = member.find("reimplements") is not None
        text = description(member, scopes) if override else documented(member, full + "()", scopes)
        if override and not text:
            return []  # what it does stands where it comes from
        constructor = ("   :nocontentsentry:",) if name == scopes[0].rsplit("::", 1)[-1] else ()
        return directive("function", function_signature(member), text, [o.strip() for o in constructor])
    if kind == "variable":
        value = initial_value(member)
        plain = len(value) < 60 and "{" not in value and "[" not in value
        return directive("member", value_signature(member) + (" " + value if plain and value else ""),
                         documented(member, full, scopes))
    if kind == "enum":
        body = documented(member, full, scopes)
        for value in member.findall("enumvalue"):
            body += ["", *directive("enumerator", words(value, "name"),
                                    value_text(value, member, full, scopes), [":nocontentsentry:"])]
        return directive("enum-class", name, body)
    if kind == "typedef":
        definition = words(member, "definition")
        if not definition.startswith("using"):
            raise ValueError(f"typedef {name}")
        alias = definition.split("=", 1)[1].strip().removeprefix("typedef ")
        signature = template_head(member) + name + (f" = {alias}" if len(alias) < 100 and "decltype" not in alias else "")
        return directive("type", signature, documented(member, full, scopes))
    if kind == "friend":
        return []
    raise ValueError(f"a {kind}: {full}")


def value_text(value, enum, full, scopes):
    text = description(value, scopes)
    if not text:
        location = enum.find("location")
        missing.append(f"{location.get('file')}:{location.get('line')}: {full}::{words(value, 'name')} has no comment")
    return text


class Reference:
    def __init__(self, folder, headers):
        self.folder, self.headers = Path(folder), Path(headers)
        self.compounds, self.inner = {}, set()
        self.by_header = {}  # path from HEADERS: [(line, what makes the lines)]
        for path in self.folder.glob("*.xml"):
            compound = ET.parse(path).getroot().find("compounddef")
            if compound is not None and compound.get("kind") in ("class", "struct", "concept", "namespace"):
                self.compounds[compound.get("id")] = compound
        for compound in self.compounds.values():
            if compound.get("kind") in ("class", "struct"):
                self.inner |= {i.get("refid") for i in compound.findall("innerclass")}
        self.collect()
        names.headers = [shown_path(header) for header in self.by_header]

    def collect(self):
        for identity, compound in self.compounds.items():
            full, kind = words(compound, "compoundname"), compound.get("kind")
            if compound.get("prot", "public") == "private" or "detail" in full.split("::"):
                continue
            members = [m for m in compound.iter("memberdef") if m.get("prot") == "public"]
            names.functions |= {f"{full}::{words(m, 'name')}" for m in members if m.get("kind") == "function"}
            names.types |= {f"{full}::{words(m, 'name')}" for m in members if m.get("kind") != "function"}
            for enum in (m for m in members if m.get("kind") == "enum"):
                names.types |= {f"{full}::{words(enum, 'name')}::{words(v, 'name')}" for v in enum.findall("enumvalue")}
            if kind == "namespace":
                for member in members:
                    scopes = [full] + ([NAMESPACE] if full != NAMESPACE else [])
                    self.add(member, words(member, "name"), lambda m=member, s=scopes: member_lines(m, s))
            else:
                names.types.add(full)
                if identity not in self.inner:
                    short = full.removeprefix(NAMESPACE + "::")
                    self.add(compound, short, lambda c=compound, s=short: self.compound_lines(c, s))

    def add(self, node, name, lines):
        location = node.find("location")
        if (path := location.get("declfile") or location.get("file")) is None:
            return
        header = str(Path(path).relative_to(self.headers)) if Path(path).is_absolute() else path
        self.by_header.setdefault(header, []).append((int(location.get("line")), name, lines))

    def compound_lines(self, compound, short):
        full, kind = words(compound, "compoundname"), compound.get("kind")
        outer = full.rsplit("::", 1)[0]
        scopes = [full, outer] + ([NAMESPACE] if outer != NAMESPACE else [])
        body = documented(compound, full, scopes)
        if kind == "concept":
            return directive("concept", template_head(compound) + short, body)
        parts = []
        for section in compound.findall("sectiondef"):
            for member in section.findall("memberdef"):
                if member.get("prot") == "public":
                    parts.append((int(member.find("location").get("line")), member_lines(member, scopes)))
        for inner in compound.findall("innerclass"):
            if inner.get("prot") == "public" and (nested := self.compounds.get(inner.get("refid"))) is not None:
                short_inner = words(nested, "compoundname").rsplit("::", 1)[-1]
                parts.append((int(nested.find("location").get("line")), self.compound_lines(nested, short_inner)))
        for _, lines in sorted(parts, key=lambda part: part[0]):
            body += ["", *lines] if lines else []
        bases = [words_of(base) for base in compound.findall("basecompoundref") if base.get("prot") == "public"]
        bases = [b for b in bases if "enable_shared" not in b]
        signature = template_head(compound) + short + (" : " + ", ".join("public " + b for b in bases) if bases else "")
        return directive("struct" if kind == "struct" else "class", signature, body)

    def intro(self, header):
        """The comment that a header begins with, as blocks; indented lines are code."""
        lines = (self.headers / header).read_text().splitlines()
        comment = []
        for line in lines[1:]:
            if not line.startswith("//"):
                break
            comment.append(line[2:].removeprefix(" ") if line[2:3] == " " else line[2:])
        result, paragraph = [], []
        for line in [*comment, ""]:
            is_code = line.startswith("  ")
            if paragraph and (not line and not paragraph[0].startswith("  ") or
                              line and is_code != paragraph[0].startswith("  ")):
                result.append(self.intro_block(paragraph))
                paragraph = []
            if line or paragraph:
                paragraph.append(line)
        if paragraph:
            result.append(self.intro_block(paragraph))
        return result

    @staticmethod
    def intro_block(lines):
        if lines[0].startswith("  "):
            while not lines[-1]:
                lines.pop()
            block = [line[2:] for line in lines]
            return [".. code-block:: " + ("cpp" if any(";" in line for line in block) else "text"), "", *indented(block)]
        text = re.split(r"(`[^`]+`)", " ".join(lines))
        return [joined(f"{GLUE}``{part[1:-1]}``{GLUE}" if part.startswith("`") else linked(part, [NAMESPACE])
                       for part in text)]

    def header_page(self, header):
        names.beside = [f"{NAMESPACE}::{name}" for _, name, _ in self.by_header[header]]
        path = shown_path(header)
        include = f"{NAMESPACE}/{NAMESPACE}.h" if "/detail/" in header else header
        lines = [path, "=" * len(path), "", f"``#include <{include}>``", "", *join(self.intro(header)), "",
                 f".. cpp:namespace:: {NAMESPACE}", ""]
        for _, _, make in sorted(self.by_header[header], key=lambda entry: entry[0]):
            lines += [*make(), ""]
        return lines

    def first_sentence(self, header):
        first = self.intro(header)[0][0]
        return re.split(r"(?<=[.:;])\s+(?=[A-Z\\`])", first)[0].rstrip(":;")

    def shown_names(self, header):
        """The names in the header's line of the index. Operators are not listed."""
        result = []
        for _, name, make in sorted(self.by_header[header], key=lambda entry: entry[0]):
            if name not in result and not name.startswith("operator") and make():
                result.append(name)
        return result

    def write(self, out):
        out = Path(out)
        modules = {}
        for header in sorted(self.by_header):
            modules.setdefault(shown_path(header).split("/")[0], []).append(header)
        if unknown := set(modules) - set(MODULES):
            raise ValueError(f"MODULES says nothing of {', '.join(sorted(unknown))}")
        for module, headers in modules.items():
            for header in headers:
                page(out / shown_path(header).replace(".h", ".rst"), self.header_page(header))
            headers.sort(key=shown_path)
            paths = [shown_path(header).removeprefix(module + "/") for header in headers]
            entries = [f"{path} <{path.removesuffix('.h')}>" for path in paths]
            page(out / module / "index.rst", [module, "=" * len(module), "", MODULES[module], "", *self.table(headers),
                                            "", ".. toctree::", "   :hidden:", "", *indented(entries)])
        count = len({name for header in self.by_header for name in self.shown_names(header)})
        lines = ["Reference", "=========", "",
                 f"{count} names in {len(self.by_header)} headers, by module. ``#include <tutti/tutti.h>`` brings all but process_group and exported; a "
                 "header alone compiles faster. Everything is in namespace ``tutti``. Every name with its members is in the "
                 ":ref:`index <genindex>`, and the search finds it.", ""]
        for module in (r for r in MODULES if r in modules):
            lines += [f"`{module} <{module}/index.html>`__", "-" * (len(module) * 2 + 18), "", MODULES[module], "",
                      *self.table(modules[module]), ""]
        lines += [".. toctree::", "   :hidden:", "", *indented([f"{module}/index" for module in MODULES if module in modules])]
        page(out / "index.rst", lines)

    def table(self, headers):
        lines = [".. list-table::", "   :widths: 30 70", "   :class: names", ""]
        for header in headers:
            path = shown_path(header).removesuffix(".h")
            shown = [f":cpp:any:`{name} <{NAMESPACE}::{name}>`" for name in self.shown_names(header)]
            name = path.split("/", 1)[1] + ".h"
            lines += [f"   * - :doc:`{name} </reference/{path}>`", f"     - {self.first_sentence(header)}", ""]
            lines += ["       .. container:: symbols", "", "          " + " ".join(shown), ""] if shown else []
        return lines


def shown_path(header):
    """tutti/train/x.h: train/x.h. What stands in detail only because public headers include it is shown with its module."""
    return header.removeprefix(NAMESPACE + "/").removeprefix("detail/")


def words_of(element):
    return " ".join("".join(element.itertext()).split())


def page(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    Reference(sys.argv[1], sys.argv[2]).write(sys.argv[3])
    if missing:
        print("\n".join(sorted(set(missing))), file=sys.stderr)
        sys.exit(1)
