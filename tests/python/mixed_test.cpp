// Ranks: 2 and 3. One job of Python and C++ programs, connected through one store.
#include <map>
#include <sstream>

#include "python/scripts.h"
#include "support/temporary_folder.h"

namespace tutti::test::python_mixed_test {
namespace {

using Mixed = WithPyTorch;

TEST_F(Mixed, PythonAndCppRanksTrainOneModel) {
  if (!BUILDS_TORCH_TUTTI) GTEST_SKIP() << "torch_tutti was not built: CMake says why";
  const std::string script = "case $RANK in 1) exec '" MIXED_RANK "' \"$0\";; *) exec '" + python_ +
                             "' '" PYTHON_SCRIPTS "/mixed.py' \"$0\";; esac";
  const TuttiProcess::Options with_package{.variables = {"PYTHONPATH=" PYTHON_PACKAGES, "OMP_NUM_THREADS=1"}};
  for (const int ranks : {2, 3}) {
    const TemporaryFolder folder;
    const auto done =
        TuttiProcess({"launch", "-n", std::to_string(ranks), "--", "/bin/sh", "-c", script, folder.path() / "store"},
                     with_package)
            .wait();
    EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
    // Every rank prints the same lines after its prefix, for example "gradients 3 ...".
    std::map<std::string, int> times;
    std::istringstream lines(done.out);
    for (std::string line; std::getline(lines, line);) {
      if (const auto end = line.find("] "); end != std::string::npos) ++times[line.substr(end + 2)];
    }
    EXPECT_EQ(times.size(), 8U) << done.out;  // gradients of six steps, parameters, number of synchronizations
    for (const auto& [line, count] : times) EXPECT_EQ(count, ranks) << line;
  }
}

}  // namespace
}  // namespace tutti::test::python_mixed_test
