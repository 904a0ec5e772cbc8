#!/usr/bin/env python3
"""Checks that code, messages, documents, tests, benchmarks and file names use the terms of docs/glossary.md.

    tools/vocabulary.py                 # prints every use as file:line: word; exits with 1 if there is one
    tools/vocabulary.py --count         # prints the sizes that are bounded: lines of code, public headers
    tools/vocabulary.py --self-test
    tools/vocabulary.py --root FOLDER [...]   # reads the files of another checkout

WORDS is the list of words that the project does not use, each with the word to use instead. The tool reads the files that git
tracks, except data, CHANGELOG.md, bench/HISTORY.md, the glossary and itself. It splits snake_case and CamelCase into
lower-case words. It finds a phrase also where the phrase continues on the next line of a comment or string.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# word: (pattern over lower-case words, what to use instead, regular expression of "file: line" where the word is right).
WORDS = {
    # Metaphors for processes, failures and messages.
    "anew": ("anew", "again", None),
    "bell": ("(?:door)?bells?", "liveness port", None),
    "blame": ("blam(?:e|es|ed|ing)", "root cause", None),
    "bulletin": ("bulletins?", "failure board", None),
    "bury": ("bur(?:y|ies|ied|ying)", "orphan", None),
    "crew": ("crews?", "local peers", None),
    "crowd": ("crowd(?:s|ed|ing)?", "load, many connections", None),
    "culprit": ("culprits?", "failed rank, root cause", None),
    "die": ("die|dies|died|dying", "exit, fail", None),
    "door": ("doors?", "store client, proxy, entry point", None),
    "farewell": ("farewells?", "close message", None),
    "foretell": ("foret(?:ell|ells|elling|old)", "set the reason of a mismatch", None),
    "gate": ("gates?", "authentication proxy; in tests: barrier, latch", None),
    "give up": ("g(?:ive|ives|ave|iven|iving) up", "time out; abort; mark as failed", None),
    "give a rank up": ("g(?:ive|ives|ave|iven|iving) (?:a|an|any|the|that|this|it|its|them|one|others?)(?: [a-z]+)? up",
                       "time out; abort; mark as failed", None),
    "goodbye": ("good ?byes?", "exit announcement, close message", None),
    "hurry": ("hurr(?:y|ies|ied|ying)", "wake, poll fast", None),
    "knock": ("knock(?:s|ed|ing)?", "authenticate", None),
    "letter": ("letters?", "message header, envelope; of an alphabet: character",
               r"[Ll]etters, digits|letter-spacing|small letters|char>?[ (]letter\b|\bletter (?:[=!<>]=|[<>^-])"
               r"|(?:\+=|\^|lower\() ?letter\b"),
    "mail": ("mail(?:s|ed|ing|box|boxes)?", "point-to-point, endpoint, message", r'"MAIL", "OLDPWD"'),
    "meeting": ("meetings?", "rendezvous; health", None),
    "mend": ("mend(?:s|ed|ing)?", "fix", None),
    "mesh": ("mesh(?:es)?", "connections, connection multiplexer", r"device_mesh|DeviceMesh"),
    "news": ("news", "peer status, update", None),
    "office": ("offices?", "endpoint", None),
    "parcel": ("parcels?", "outbound message", None),
    "passage": ("passages?", "proxy connection", None),
    "patience": ("patien(?:ce|t)", "timeout, heartbeat timeout",
                 r"[Pp]lateau|[Ee]arly_?[Ss]topping|^examples/trainer/|^docs/guides/|^docs/options\.md: \| `patience`"
                 r"|^tests/optim/"),
    "pigeonhole": ("pigeon(?:s|holes?)?", "match queue", None),
    "porter": ("porters?", "client proxy", None),
    "pulse": ("puls(?:e|es|ed|ing)", "heartbeat monitor", None),
    "sign of life": ("signs? of life", "heartbeat", None),
    "silence": ("silences?", "missed heartbeats; without a message: silently", None),
    "standstill": ("stand ?stills?|st(?:and|ands|ood|anding) still", "deadlock; is blocked, is stopped", None),
    "stranger": ("strangers?", "unauthenticated client", None),
    "tidings": ("tidings", "peer status", None),
    "trail": ("trails?", "wait-for graph", None),
    "vital": ("vital(?:s|ly)?", "heartbeat", None),
    "whereabouts": ("whereabouts", "peer status", None),
    "travel": ("travel(?:s|ed|led|ing|ling)?", "is sent, is in flight", None),
    # Phrases of a person where a process, a message or a call is meant.
    "a moment": ("a moment", "(give the time)", None),
    "at fault": ("at fault", "failed, root cause", None),
    "come to": ("c(?:ome|omes|ame|oming) to", "enter (a call), reach, join", None),
    "first rank of a node": ("first (?:ranks?|ones?) of (?:a|the|each|every|its|all|that) nodes?", "node leader", None),
    "in vain": ("in vain", "(leave it out)", None),
    "is gone": ("(?:is|are|was|were|be|been|has|have|had) gone", "exited, disconnected, destroyed", None),
    "leave word": ("le(?:ave|aves|ft|aving) (?:a |the |all |its |their |no )*(?:last )?words?|last word",
                   "publish a failure report", None),
    "let go": ("let(?:s|ting)? go", "release, drop, destroy", None),
    "did not come": ("(?:do|does|did) not (?:come|arrive)", "did not join (rendezvous), did not enter (a call)", None),
    "not heard of": ("heard of", "missed heartbeats", None),
    "on its way": ("on (?:its|their|the) way", "in flight", None),
    "ranks of the whole": (r"(?:ranks?|names) of (?:the )?whole|in whole(?!\s[a-z])", "global ranks", None),
    "turn away": ("turn(?:s|ed|ing)? away", "reject", None),
    "under way": ("under ?way", "in flight, pending", None),
    # Pronouns for a rank, a process, a peer or the caller.
    "nobody": ("nobod(?:y|ies|ys)", "no rank, no process", None),
    "somebody": ("(?:some|any|every)bod(?:y|ys)", "a peer, a process, any rank, every rank", None),
    "whoever": ("whoever|whomever", "the rank that, the caller", None),
    # Parts of the project and of a job.
    "engine": ("engines?", "backend; Local SGD: algorithm", r"autograd"),
    "house": ("houses?", "project, codebase", None),
    "room": ("rooms?|cellars?|attics?|porch(?:es)?", "module; in comm: layer; of memory: space", None),
    "deal": ("deal(?:s|t|ing|ings|er)?", "shard, split, distribute", None),
}

SKIPPED = {"CHANGELOG.md", "LICENSE", "bench/HISTORY.md", "docs/glossary.md", "tools/vocabulary.py"}
DATA = re.compile(r"\.(svg|png)$|/requirements\.txt$|^bench/.*\.json$")

# What may stand between two words of a phrase: blanks, a hyphen, the end of a line and the mark of a comment or a string.
BETWEEN = r'(?:(?=[^a-z])[ \t]*-?[ \t]*(?:"?[ \t]*\n[ \t]*(?://[/!<]*|[#*>|"])?[ \t]*)?)'
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def compiled(pattern):
    return re.compile(rf"\b(?:{pattern.replace(' ', BETWEEN)})\b")


PATTERNS = {word: compiled(pattern) for word, (pattern, _, _) in WORDS.items()}
ANY = compiled("|".join(pattern for pattern, _, _ in WORDS.values()))
RIGHT = {word: re.compile(right) for word, (_, _, right) in WORDS.items() if right}


def normalized(text):
    """`text` in lower-case words, with as many lines: snake_case and CamelCase are split, digits end a word."""
    text = re.sub(r"\\[ntr]", "  ", text)
    return re.sub(r"[_0-9]", lambda found: " " if found[0] == "_" else ".", HUMP.sub(" ", text)).lower()


def uses_in(file, text):
    """Yields (line number, WORDS' key, the words as they stand there) for a text and for the path of its file."""
    for where, split in ((None, normalized(file)), (text, normalized(text))):
        lines, line, last = None, 1, 0
        for found in ANY.finditer(split):
            line, last = line + split.count("\n", last, found.start()), found.start()
            word = next(word for word, pattern in PATTERNS.items() if pattern.fullmatch(split, *found.span()))
            if where and word in RIGHT:
                lines = lines or text.split("\n")
                if RIGHT[word].search(f"{file}: {lines[line - 1]}"):
                    continue
            yield line, word, " ".join(re.findall("[a-z]+", found[0])) + ("" if where else " (in the file's name)")


def tracked_files(root):
    """Paths from the root of what git tracks and is there."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode != 0:
        sys.exit(f"vocabulary: git ls-files failed in {root}: {listed.stderr.strip()}")
    return [file for file in listed.stdout.split("\0") if file and (root / file).is_file()]


def all_uses(root):
    """[(file, line number, WORDS' key, the words as they stand there)] of a checkout."""
    files = [file for file in tracked_files(root) if file not in SKIPPED and not DATA.search(file)]
    return [(file, *use) for file in files for use in uses_in(file, (root / file).read_text(errors="replace"))]


def listing(uses):
    return [f"{file}:{line}: {found}: use {WORDS[word][1]}" for file, line, word, found in uses]


# Tokens that a search for comments must not look into, then comments.
CPP_TOKEN = re.compile(r"""\b\d(?:'?[\w.])*                            # a number: 10'000
                         | R"([^()\\\s]{0,16})\(.*?\)\1"               # a raw string
                         | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'   # a string, a character
                         | (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)""", re.S | re.X)


def lines_of_code(text):
    """Lines of C++ without blank lines and comments."""
    code = CPP_TOKEN.sub(lambda token: "\n" * token[0].count("\n") if token["comment"] else token[0], text)
    return sum(bool(line.strip()) for line in code.split("\n"))


def sizes(root):
    """The sizes that are bounded, one a line."""
    files = tracked_files(root)
    cpp = {file: (root / file).read_text() for file in files if file.endswith((".h", ".cpp"))}
    in_folder = lambda folder: [text for file, text in cpp.items() if file.startswith(folder)]  # noqa: E731
    headers = [file for file in cpp if re.match(r"include/tutti/(?!detail/).*\.h$", file)]
    accelerator = cpp.get("include/tutti/train/accelerator.h", "")
    return [f"src/comm: {sum(map(lines_of_code, in_folder('src/comm/')))} lines of code without blank lines and comments",
            f"include/tutti: {len(headers)} public headers outside detail/",
            f"include/tutti/train/accelerator.h: {len(accelerator.splitlines())} lines",
            f"bench: {sum(len(text.splitlines()) for text in in_folder('bench/'))} lines of C++,"
            f" {sum(map(lines_of_code, in_folder('bench/')))} of them code"]


def self_test():
    def found(text, file="src/a.cpp"):
        return [(line, word) for line, word, _ in uses_in(file, text)]

    cases = [  # file, text, what is found
        ("src/a.cpp", "int crew_size = NextCrew(crews);", [(1, "crew")] * 3),
        ("src/a.cpp", "screw crewman MAILBOX XMLMail mail2 in_mail_", [(1, "mail")] * 4),
        ("src/a.cpp", "\nthrow E(\"the rank gave \"\n    \"up\");", [(2, "give up")]),
        ("src/a.h", "// It comes\n/// to a call.\n// Whoever\n", [(1, "come to"), (3, "whoever")]),
        ("tools/a.py", "# says good-bye\n# or GoodBye, good_byes, goodbye", [(1, "goodbye")] + [(2, "goodbye")] * 3),
        ("docs/a.md", "it came.\nTo all.\n\nThe last\n\nword", []),
        ("docs/a.md", "gives the rank up, giving_up, gives an array of up to 3", [(1, "give a rank up"), (1, "give up")]),
        ("src/mesh/gate_test.cpp", "", [(1, "mesh"), (1, "gate")]),
        ("python/a.py", "device_mesh = DeviceMesh()", []),
        ("python/a.py", "mesh = device_mesh\nmesh = None", [(2, "mesh")]),
        ("src/optim/plateau.cpp", "options.patience", []),
        ("src/comm/a.cpp", "options.patience", [(1, "patience")]),
        ("src/a.cpp", "for (const char letter : text) if (letter == '%') out += letter;  // letters, digits", []),
        ("src/a.cpp", "send(letter); // for the alphabet", [(1, "letter")]),
        ("src/a.cpp", "#include <torch/csrc/autograd/engine.h>\nEngine engine;", [(2, "engine"), (2, "engine")]),
    ]
    cases += [("src/a.cpp", f"a {word} is", [(1, word)]) for word in WORDS]
    for file, text, expected in cases:
        if found(text, file) != expected:
            sys.exit(f"self-test: {file} with {text!r}: expected {expected}, found {found(text, file)}")
    if (lines := listing([("a.md", 1, "crew", "crews")])) != ["a.md:1: crews: use local peers"]:
        sys.exit(f"self-test: the list is {lines}")
    code = ("#pragma once\n// a comment\n\n/* one\n\nmore */ int a;  // b\nconst char* s = \"// no /* comment\";\n"
            "long n = 10'000;  // it's\nchar c = '\"';  /* \" */\nauto r = R\"x(\n// text\n)x\";\n  /* only */\n// a \\\nb\n")
    if lines_of_code(code) != 8:
        sys.exit(f"self-test: expected 8 lines of code, found {lines_of_code(code)}")
    files = {"CHANGELOG.md": "crew", "docs/a.svg": "crew", "docs/a.md": "a crew\n", "src/comm/a.h": "int a;\n\n// b\n",
             "include/tutti/a.h": "", "include/tutti/detail/a.h": "", "include/tutti/train/accelerator.h": "\n\n",
             "bench/a.cpp": "int a;\n\n", "bench/a.py": "a"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for file, text in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        for command in ("init", "add"):
            subprocess.run(["git", "-C", root, command, "--quiet" if command == "init" else "."], check=True)
        (root / "untracked.md").write_text("crew")
        if (uses := all_uses(root)) != [("docs/a.md", 1, "crew", "crew")]:
            sys.exit(f"self-test: found {uses} in the files of a checkout")
        expected = ["src/comm: 1 lines", "tutti: 2 public", "accelerator.h: 2 lines", "bench: 2 lines of C++, 1 of"]
        if any(part not in line for part, line in zip(expected, sizes(root), strict=True)):
            sys.exit(f"self-test: expected {expected}, found {sizes(root)}")
    print(f"vocabulary: {len(cases) + 4} cases passed")


def main():
    arguments = sys.argv[1:]
    root = Path(__file__).resolve().parent.parent
    if arguments[:1] == ["--root"] and len(arguments) > 1:
        root, arguments = Path(arguments[1]), arguments[2:]
    if arguments == ["--self-test"]:
        self_test()
    elif arguments == ["--count"]:
        print("\n".join(sizes(root)))
    elif not arguments:
        if uses := all_uses(root):
            sys.exit("\n".join([*listing(uses), f"vocabulary: {len(uses)} uses. docs/glossary.md has the terms"]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
