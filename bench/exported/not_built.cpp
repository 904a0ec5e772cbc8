// Replaces the benchmarks that use tutti::exported in a build without that component.
#include "benchmarks.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

[[noreturn]] void reject(const std::string& name) {
  throw UsageError("this build has no benchmark '" + name + "': configure tutti with -DTUTTI_EXPORTED=ON");
}

}  // namespace

int run_exported_benchmark(const Invocation& /*invocation*/) {
  reject("exported");
}

int run_nlp_benchmark(const Invocation& /*invocation*/) {
  reject("nlp");
}

}  // namespace tutti::bench
