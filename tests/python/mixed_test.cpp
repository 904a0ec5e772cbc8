// One job of Python and C++ ranks.
#include "python/scripts.h"

namespace tutti::test::python_mixed_test {
namespace {

#if BUILDS_TORCH_TUTTI
TEST_F(WithPyTorch, APythonRankAndACppRankTrainOneModel) {
  const std::string script = "if [ $RANK = 0 ]; then exec '" + python_ + "' '" + PYTHON_SCRIPTS +
                             "/mixed.py'; else exec '" + MIXED_RANK + "'; fi";
  const TuttiProcess::Options with_package{.variables = {"PYTHONPATH=" PYTHON_PACKAGES, "OMP_NUM_THREADS=1"}};
  const auto done = TuttiProcess({"launch", "-n", "2", "--", "/bin/sh", "-c", script}, with_package).wait();
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
  const auto begin = done.out.find("ended with ");
  ASSERT_NE(begin, std::string::npos) << done.out << done.err;
  const auto said = done.out.substr(begin, done.out.find('\n', begin) - begin);
  EXPECT_EQ(lines_with(done.out, said), 2) << done.out;
}
#endif

}  // namespace
}  // namespace tutti::test::python_mixed_test
