#pragma once
// Cases that run on ranks as threads and on ranks as processes. Starting processes is slow, so one start runs all cases
// of a test program, one after another, over shared memory and over TCP.
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

/// Define cases at namespace scope. The body must not share state between ranks, and must work on 3 ranks.
class ProcessCase {
 public:
  ProcessCase(std::string name, std::function<void(const Communicator&)> body);
  /// The body also receives an empty folder, the same on all ranks.
  ProcessCase(std::string name, std::function<void(const Communicator&, const std::filesystem::path&)> body);
  void on_threads(std::initializer_list<int> sizes) const;

 private:
  std::function<void(const Communicator&)> body_;
};

/// Runs every ProcessCase of this program on 3 processes.
void run_process_cases();

}  // namespace tutti::test
