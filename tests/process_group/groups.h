#pragma once
// Groups whose ranks are threads of this process, with a store in memory.
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tutti/process_group/process_group_tutti.h"

namespace tutti::test {

using Tensors = std::vector<at::Tensor>;

/// Runs `body` on `size` ranks. Rethrows the exception of the lowest rank that threw.
inline void run_groups(int size, const std::function<void(ProcessGroupTutti&)>& body,
                       const std::string& backend = "auto",
                       std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto options = c10::make_intrusive<ProcessGroupTutti::Options>(timeout, backend);
        const auto group = c10::make_intrusive<ProcessGroupTutti>(store, rank, size, options);
        body(*group);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Runs `body` on 1, 2 and 3 ranks, through shared memory and over TCP.
inline void run_everywhere(const std::function<void(ProcessGroupTutti&)>& body) {
  for (const char* backend : {"auto", "tcp"}) {
    for (const int size : {1, 2, 3}) run_groups(size, body, backend);
  }
}

/// Returns the message of the T that `step` throws. The test fails if `step` throws nothing or another exception.
template <typename T, typename Step>
std::string message_of(const Step& step) {
  try {
    step();
  } catch (const T& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "nothing was thrown";
}

}  // namespace tutti::test
