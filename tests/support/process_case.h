#pragma once
// Cases that hold for ranks as threads and for ranks as processes. Starting processes is dear, so one start runs all
// such cases of a test program, one after the other: over shared memory, which ranks of one node have, and over Gloo.
//
//   const ProcessCase adds_up("adds up", [](const Communicator& communicator) { ...EXPECT_EQ... });
//   TEST(Sum, AddsUp) { adds_up.on_threads({2, 3}); }
//
// and in one file of the program
//
//   TEST(OnProcesses, EveryCaseHolds) { run_process_cases(); }
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>

#include "tutti/comm/communicator.h"

namespace tutti::test {

/// Defined at namespace scope. The body must not share state between ranks, and hold for 3 of them.
class ProcessCase {
 public:
  ProcessCase(std::string name, std::function<void(const Communicator&)> body);
  /// The body gets an empty folder too, the same on all ranks.
  ProcessCase(std::string name, std::function<void(const Communicator&, const std::filesystem::path&)> body);
  void on_threads(std::initializer_list<int> sizes) const;

 private:
  std::function<void(const Communicator&)> body_;
};

/// Runs every ProcessCase of this program on 3 processes.
void run_process_cases();

}  // namespace tutti::test
