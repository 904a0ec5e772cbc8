#pragma once
// One test body for any number of ranks, as threads of this process and as processes.
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

#include "support/ranks.h"
#include "tutti/core/environment.h"

namespace tutti::test {

/// Define cases at namespace scope, as RankPrograms. The body must not share state between ranks.
class RankCase {
 public:
  RankCase(std::string name, std::function<void(const Communicator&)> body)
      : body_(std::move(body)),
        program_(std::move(name), [body = body_] { body(Communicator::connect(read_environment())); }) {}

  void on_threads(std::initializer_list<int> sizes) const {
    for (const int size : sizes) {
      SCOPED_TRACE(std::to_string(size) + " ranks as threads");
      run_thread_ranks(size, body_, {.timeout = std::chrono::seconds(30)});
    }
  }
  void on_processes(std::initializer_list<int> sizes) const {
    for (const int size : sizes) {
      SCOPED_TRACE(std::to_string(size) + " ranks as processes");
      expect_success(run_processes(program_, size));
    }
  }
  /// Runs 1, 2 and 3 ranks as threads and as processes.
  void everywhere() const {
    on_threads({1, 2, 3});
    on_processes({1, 2, 3});
  }
  const RankProgram& program() const { return program_; }

 private:
  std::function<void(const Communicator&)> body_;
  RankProgram program_;
};

}  // namespace tutti::test
