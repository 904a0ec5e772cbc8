// `tutti env` checks which LibTorch its program may load, before it starts that program.
#include <gtest/gtest.h>

#include <fstream>

#include "launch/tutti_process.h"

namespace tutti::test {
namespace {

/// Creates a folder with the version header of a LibTorch.
void make_libtorch(const std::filesystem::path& folder, const std::string& major, const std::string& minor) {
  std::filesystem::create_directories(folder / "lib");
  std::filesystem::create_directories(folder / "include" / "torch" / "headeronly");
  std::ofstream(folder / "lib" / "libtorch_cpu.so") << "";
  std::ofstream(folder / "include" / "torch" / "headeronly" / "version.h")
      << "#pragma once\n// a comment\n#define TORCH_VERSION_MAJOR " << major << "\n#define TORCH_VERSION_MINOR "
      << minor << "\n";
}

Finished env_with_libtorch(const std::filesystem::path& folder) {
  return TuttiProcess({"env"}, {.variables = {"LIBTORCH=" + folder.string()}}).wait();
}

TEST(TuttiEnv, RefusesAnotherLibTorchThanTheBuilds) {
  const TemporaryFolder folder;
  make_libtorch(folder.path(), "9", "1");
  const auto done = env_with_libtorch(folder.path());
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_TRUE(contains(done.err, "built for LibTorch ")) << done.err;
  EXPECT_TRUE(contains(done.err, folder.path().string() + " holds 9.1: ")) << done.err;
}

TEST(TuttiEnv, ReportsAMissingLibTorch) {
  const TemporaryFolder folder;
  const auto done = env_with_libtorch(folder.path());
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_TRUE(contains(done.err, "there is none in " + folder.path().string())) << done.err;
}

}  // namespace
}  // namespace tutti::test
