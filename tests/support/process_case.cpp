#include "support/process_case.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "support/ranks.h"
#include "support/temporary_folder.h"

namespace tutti::test {
namespace {

// The map is sorted by name, so that all ranks agree on the order. The map is a function's static variable, because
// the order of construction before main() is unspecified.
std::map<std::string, std::function<void(const Communicator&)>>& cases() {
  static std::map<std::string, std::function<void(const Communicator&)>> by_name;
  return by_name;
}

const RankProgram every_case("every_process_case", [] {
  const Environment environment = read_environment();
  const auto connect = [&](const char* backend) {
    return Communicator::connect(environment, {.backend = backend, .timeout = std::chrono::seconds(60)});
  };
  const std::vector<std::pair<std::string, Communicator>> jobs{{"shared memory", connect("shared_memory")},
                                                               {"tcp", connect("tcp")}};
  for (const auto& [backend, job] : jobs) {
    for (const auto& [name, body] : cases()) {
      SCOPED_TRACE(name + " over " + backend);
      std::printf("%s over %s\n", name.c_str(), backend.c_str());  // names the case of an exception
      std::fflush(stdout);
      body(job.duplicate(name));
    }
    job.barrier().wait();
  }
});

}  // namespace

ProcessCase::ProcessCase(std::string name, std::function<void(const Communicator&)> body) : body_(std::move(body)) {
  if (!cases().emplace(name, body_).second) {
    std::fprintf(stderr, "Two process cases are called '%s'.\n", name.c_str());
    std::abort();
  }
}

ProcessCase::ProcessCase(std::string name, std::function<void(const Communicator&, const std::filesystem::path&)> body)
    : ProcessCase(std::move(name), [body = std::move(body)](const Communicator& communicator) {
        const TemporaryFolder mine;
        body(communicator, communicator.broadcast_object(mine.path().string()));
        communicator.barrier().wait();
      }) {}

void ProcessCase::on_threads(std::initializer_list<int> sizes) const {
  for (const int size : sizes) {
    SCOPED_TRACE(std::to_string(size) + " ranks as threads");
    run_thread_ranks(size, body_, {.timeout = std::chrono::seconds(30)});
  }
}

void run_process_cases() {
  ASSERT_FALSE(cases().empty());
  expect_success(run_processes(every_case, 3, {.deadline = std::chrono::minutes(10)}));  // CTest's deadline is earlier
}

}  // namespace tutti::test
