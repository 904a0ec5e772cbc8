#!/usr/bin/env python3
"""misspelt_options.py COMPILER [ARGUMENTS ...]: what a compiler says of options that are misspelt.

With the type's name in front, Options{.nonsense = 1}, it must name the option: tried with every options struct of the public
headers. Without it, call({.nonsense = 1}), C++ looks for a function first, finds none that takes this list, and most compilers
stop there: then they must name the struct, so that the reader can write its name (docs/from_zero.md).
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STRUCT = re.compile(r"^struct (\w*Options|GradientAccumulationPlugin|ProjectConfiguration|TrainingLength|StateSync) \{", re.M)
# A call, and the text that the compiler's error must contain.
CALLS = [
    ("Accelerator accelerator({.mixed_precison = Precision::bf16});", "const tutti::AcceleratorOptions&"),
    ("made<Accelerator>().save_state({.asynchronus = true});", "const tutti::SaveStateOptions&"),
    ("made<Accelerator>().data_loader(Rows(), {.batchsize = 4});", "const tutti::DataLoaderOptions&"),
    ("made<Accelerator>().data_loader(Stream(), {.batchsize = 4});", "const tutti::StreamLoaderOptions&"),
    ("(void)made<Accelerator>().accumulate(made<Model>(), {.wieght = 2});", "const tutti::AccumulateOptions&"),
    ("LocalSGD local(made<Accelerator>(), made<Model>(), {.steps = 8});", "const tutti::LocalSGDOptions&"),
    ("Trainer<Model, Loader> trainer(made<Accelerator>(), made<Model>(), made<Optimizer>(), std::nullopt, made<Loader>(), "
     "{}, {.steps = 8});", "tutti::TrainerOptions"),
]
BEFORE = """#include <tutti/tutti.h>
using namespace tutti;
template <typename T> T& made();
using Model = std::shared_ptr<torch::nn::Module>;
struct Rows {
  std::vector<at::Tensor> get_batch(const std::vector<std::size_t>& indices) const;
  std::size_t size() const;
};
struct Stream { std::optional<std::vector<at::Tensor>> get_batch(std::size_t size); };
using Loader = DataLoader<Rows>;
"""


def cases():
    """Lines of a program, and for each what must be said."""
    names = []
    for header in sorted((ROOT / "include/tutti").rglob("*.h")):
        names += STRUCT.findall(header.read_text())
    for name in names:
        yield f"void with_{name}() {{ {name} options{{.nonsense = 1}}; }}", "nonsense"
    for number, (call, wanted) in enumerate(CALLS):
        yield f"void call_{number}() {{ {call} }}", wanted


def said_by_line(output, file):
    """What is said with each error in the file's own lines, until the next one."""
    said, line = {}, None
    for text in output.splitlines():
        if match := re.match(rf"{re.escape(file)}:(\d+):\d+: (?:fatal )?error: ", text):
            line = int(match.group(1))
        if line is not None:
            said[line] = said.get(line, "") + text + "\n"
    return said


def main():
    compiler = sys.argv[1:]
    wanted = list(cases())
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "misspelt.cpp")
        Path(file).write_text(BEFORE + "\n".join(line for line, _ in wanted) + "\n")
        limit = "-ferror-limit=0" if "clang" in Path(compiler[0]).name else "-fmax-errors=0"
        result = subprocess.run([*compiler, limit, "-fsyntax-only", file], capture_output=True, text=True, check=False)
        said = said_by_line(result.stderr, file)
    first = BEFORE.count("\n") + 1
    problems = [f"{line}\n  should say {text!r}, and says:\n{said.get(number, 'nothing')}"
                for number, (line, text) in enumerate(wanted, first) if text not in said.get(number, "")]
    others = [text for number, text in said.items() if number < first]
    if problems or others or len(wanted) < 30:
        print("\n".join([*problems, *others, f"{len(wanted)} cases"]), file=sys.stderr)
        sys.exit(1)
    print(f"{len(wanted)} misspelt options: the compiler names each option or its struct")


if __name__ == "__main__":
    main()
