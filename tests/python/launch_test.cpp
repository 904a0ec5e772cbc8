// Programs for PyTorch under `tutti launch`: they listen on MASTER_PORT themselves.
#include "python/scripts.h"

#include <filesystem>
#include <fstream>

namespace tutti::test::python_launch_test {
namespace {

using PlainPyTorch = WithPyTorch;

TEST_F(PlainPyTorch, ConnectsAtMasterPort) {
  const auto done = run_script(python_, "plain_gloo.py", 2);
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
  EXPECT_TRUE(contains(done.out, "[rank 1] sum 3.0\n")) << done.out;
}

TEST_F(PlainPyTorch, ConnectsAtTheUsersPort) {
  const auto [port, done] = run_with_a_free_port([&](const std::string& free) {
    return std::vector<std::string>{"launch", "-n", "2",     "--master-port",
                                    free,     "--", python_, std::string(PYTHON_SCRIPTS) + "/plain_gloo.py"};
  });
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
}

TEST_F(PlainPyTorch, ConnectsOnSeveralHosts) {
  TemporaryFolder folder;
  const auto ssh = folder.path() / "ssh";
  std::ofstream(ssh) << "#!/bin/sh\nshift\nexec \"$@\"\n";
  std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  std::ofstream(folder.path() / "hosts") << "alpha slots=1\nbeta slots=1\n";
  const auto done = run_tutti({"launch", "--hostfile", folder.path() / "hosts", "--ssh", ssh, "--master-addr",
                               "127.0.0.1", "--", python_, std::string(PYTHON_SCRIPTS) + "/plain_gloo.py"});
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
  EXPECT_TRUE(contains(done.out, "[beta] [rank 1] sum 3.0\n")) << done.out;
}

}  // namespace
}  // namespace tutti::test::python_launch_test
