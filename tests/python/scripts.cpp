#include "python/scripts.h"

#include <cstdlib>

namespace tutti::test {

Finished run_script(const std::string& python, const std::string& script, int ranks,
                    const std::vector<std::string>& arguments, const std::vector<std::string>& options) {
  std::vector<std::string> words{"launch", "-n", std::to_string(ranks)};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(),
               {"--", python, "-u", script.starts_with('/') ? script : std::string(PYTHON_SCRIPTS) + "/" + script});
  words.insert(words.end(), arguments.begin(), arguments.end());
  const TuttiProcess::Options with_package{.variables = {"PYTHONPATH=" PYTHON_PACKAGES, "OMP_NUM_THREADS=1",
                                                         "TUTTI_HEARTBEAT_TIMEOUT=2", "TUTTI_DEADLOCK_TIMEOUT=2"}};
  return TuttiProcess(words, with_package).wait();
}

void WithPyTorch::SetUp() {
  const char* python = std::getenv("TUTTI_TORCH_PYTHON");  // NOLINT(concurrency-mt-unsafe)
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "set TUTTI_TORCH_PYTHON=$(tools/torch_python.sh LIBTORCH)";
  python_ = python;
}

void WithPyTorch::expect_success(const std::string& script, int ranks,
                                 const std::vector<std::string>& arguments) const {
  const auto done = run_script(python_, script, ranks, arguments);
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
}

}  // namespace tutti::test
