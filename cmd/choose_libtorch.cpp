#include "choose_libtorch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tutti/core/error.h"

namespace tutti {
namespace {

const std::string built_for = TUTTI_LIBTORCH_VERSION;

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  return value == nullptr ? "" : value;
}

/// "2.15", or nothing where the headers are missing.
std::string version_in(const std::filesystem::path& folder) {
  std::ifstream header(folder / "include" / "torch" / "headeronly" / "version.h");
  std::string major;
  std::string minor;
  for (std::string hash, name, value; header >> hash;) {
    if (hash != "#define" || !(header >> name >> value)) continue;
    if (name == "TORCH_VERSION_MAJOR") major = value;
    if (name == "TORCH_VERSION_MINOR") minor = value;
  }
  return major.empty() || minor.empty() ? "" : major + "." + minor;
}

void load_from(const std::filesystem::path& libraries) {
  const auto others = variable("LD_LIBRARY_PATH");
  const auto all = libraries.string() + (others.empty() ? "" : ":" + others);
  ::setenv("LD_LIBRARY_PATH", all.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
}

}  // namespace

void choose_libtorch() {
  const auto named = variable("LIBTORCH");
  const std::filesystem::path folder = named.empty() ? TUTTI_LIBTORCH : named;
  if (!std::filesystem::exists(folder / "lib" / "libtorch_cpu.so")) {
    throw UsageError("this command needs LibTorch " + built_for + ", and there is none in " + folder.string() +
                     ": set LIBTORCH to its folder, the one that holds include/ and lib/");
  }
  const auto found = version_in(folder);
  if (!found.empty() && found != built_for) {
    throw UsageError("this command was built for LibTorch " + built_for + ", but " + folder.string() + " holds " +
                     found + ": set LIBTORCH to a folder with " + built_for + ", or build tutti with that one");
  }
  // Programs find the build's folder themselves.
  if (!named.empty()) load_from(folder / "lib");
}

}  // namespace tutti
