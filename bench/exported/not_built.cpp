// Replaces the benchmarks that use tutti::exported in a build without that component.
#include "exported/exported_benchmark.h"
#include "nlp/nlp_benchmark.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

[[noreturn]] void reject(const std::string& name) {
  throw UsageError("this build has no benchmark '" + name + "': configure tutti with -DTUTTI_EXPORTED=ON");
}

}  // namespace

int run_exported_benchmark(const std::vector<std::string>& /*words*/) {
  reject("exported");
}

int run_nlp_benchmark(const std::vector<std::string>& /*words*/) {
  reject("nlp");
}

}  // namespace tutti::bench
