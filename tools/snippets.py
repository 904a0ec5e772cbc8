#!/usr/bin/env python3
"""Extracts the C++ blocks of README and docs for the compiler.

    tools/snippets.py SOURCE_FOLDER OUTPUT_FOLDER [PAGE ...]     # writes snippets.cpp and one NAME.cpp for each program
    tools/snippets.py --self-test

PAGE is the path of a document whose blocks are left out. Every other block that begins with ```cpp is taken. A comment in the line above it says what it is:

    (nothing)                            statements: the body of a function, after tests/examples/snippet_prelude.h
    <!-- snippet: declarations -->       declarations, in a namespace of their own
    <!-- snippet: program NAME -->       a whole program, which goes to NAME.cpp
    <!-- snippet: not compiled: WHY -->  left out; for signatures, with a reason

Errors of the compiler point to the document's own lines. Exits with 1 for a comment that it does not know, a block without
an end, a name that stands twice, and for C++ that hides in a block of another language.
"""
import re
import sys
import tempfile
from pathlib import Path

PRELUDE = '#include "examples/snippet_prelude.h"\n'
KIND = re.compile(r"<!-- snippet: (declarations|program (\w+)|not compiled: (.{10,})) -->$")


class Wrong(Exception):
    pass


def blocks(document, text):
    """Yields (kind, name, first line, lines) of every block of C++."""
    lines = text.splitlines()
    inside, start = None, 0
    for number, line in enumerate(lines):
        fence = line.strip()
        if inside is None and fence.startswith("```"):
            inside, start = fence[3:].strip(), number
            if inside not in ("cpp", "python", "cmake", "text", "diff", "bash", "json", ""):
                raise Wrong(f"{document}:{number + 1}: unknown language '{inside}' (C++ is ```cpp)")
        elif inside is not None and fence == "```":
            body = lines[start + 1:number]
            if inside == "cpp":
                above = lines[start - 1].strip() if start else ""
                kind = KIND.match(above)
                if above.startswith("<!-- snippet") and not kind:
                    raise Wrong(f"{document}:{start}: this says nothing that is known: {above}")
                what = kind[1].split()[0] if kind else "statements"
                yield what, kind[2] if kind else None, start + 2, body
            elif any(re.match(r"\s*(#include|auto .*= accelerator)", code) for code in body) and inside != "diff":
                raise Wrong(f"{document}:{start + 1}: this looks like C++: begin it with ```cpp")
            inside = None
    if inside is not None:
        raise Wrong(f"{document}:{start + 1}: the block has no end")


def generate(documents):
    """Returns {file name: content} from [(shown name, text)]."""
    includes, parts, programs = [], [], {}
    for shown, text in documents:
        for number, (kind, name, line, body) in enumerate(blocks(shown, text)):
            place = f'#line {line} "{shown}"\n'
            if kind == "program":
                if f"{name}.cpp" in programs:
                    raise Wrong(f"{shown}:{line}: there are two programs {name}")
                programs[f"{name}.cpp"] = place + "\n".join(body) + "\n"
            elif kind != "not":
                includes += [code for code in body if code.startswith("#include")]
                code = "\n".join("" if one.startswith("#include") else one for one in body)
                own = "snippet_" + re.sub(r"\W", "_", shown) + f"_{number}"
                if kind == "statements":
                    parts.append(f"namespace {own} {{\nvoid snippet() {{\n{place}{code}\n}}\n}}\n")
                else:
                    parts.append(f"namespace {own} {{\n{place}{code}\n}}\n")
    head = PRELUDE + "".join(f"{one}\n" for one in sorted(set(includes)))
    return {"snippets.cpp": head + "\nnamespace {\n" + "".join(parts) + "}  // namespace\n", **programs}


def main(source, output, *skipped):
    source, output = Path(source).resolve(), Path(output)
    files = [source / "README.md", *sorted((source / "docs").rglob("*.md"))]
    shown = [str(file.relative_to(source)) for file in files]
    if unknown := set(skipped) - set(shown):
        raise Wrong(f"there is no page {', '.join(sorted(unknown))}")
    made = generate([(name, file.read_text()) for name, file in zip(shown, files) if name not in skipped])
    output.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        path = output / name
        if not path.exists() or path.read_text() != content:  # unchanged files are not compiled again
            path.write_text(content)


def self_test():
    made = generate([("a.md", "```cpp\n#include <map>\nint i = 0;\n```\n<!-- snippet: program one -->\n```cpp\nint main() {}\n"
                      "```\n<!-- snippet: not compiled: a signature of LibTorch -->\n```cpp\nint x(\n```\n")])
    assert '#line 2 "a.md"\n\nint i = 0;' in made["snippets.cpp"] and "int x(" not in made["snippets.cpp"], made
    assert made["one.cpp"] == '#line 7 "a.md"\nint main() {}\n', made
    for wrong in ("```cpp\nint i;\n", "<!-- snippet: not compiled: - -->\n```cpp\n```\n", "```c++\n```\n",
                  "```\n#include <a>\n```\n", "<!-- snippet: program a -->\n```cpp\n```\n" * 2):
        try:
            generate([("b.md", wrong)])
        except Wrong:
            continue
        sys.exit(f"not found: {wrong}")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        (source / "docs" / "guides").mkdir(parents=True)
        (source / "README.md").write_text("")
        (source / "docs" / "guides" / "g.md").write_text("```cpp\nint here;\n```\n")
        main(source, source / "out")
        assert "int here;" in (source / "out" / "snippets.cpp").read_text()
        main(source, source / "out", "docs/guides/g.md")
        assert "int here;" not in (source / "out" / "snippets.cpp").read_text()


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif len(sys.argv) < 3:
        sys.exit(__doc__)
    else:
        try:
            main(*sys.argv[1:])
        except Wrong as wrong:
            sys.exit(str(wrong))
