#pragma once
// Threads that read ahead and return results in order.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace tutti {

namespace detail {
/// Returns a function that makes the accelerator device that is current on this thread the current one of the thread
/// that calls the function.
std::function<void()> current_device_of_this_thread();
}  // namespace detail

/// Returns results number 0, 1, 2, ... up to the first nullopt. Each reader has its own thread. Reader i is called with
/// the numbers i, i + readers, ... in order, so its calls do not depend on the speed of other threads. Its current
/// accelerator device is that of the constructor's thread. Only one thread may call next().
template <typename T>
class Prefetcher {
 public:
  using Reader = std::function<std::optional<T>(std::int64_t number)>;

  /// At most `ahead` results of each reader are kept until next() takes them.
  Prefetcher(std::vector<Reader> readers, std::size_t ahead)
      : readers_(std::move(readers)), slots_(readers_.size() * ahead) {
    for (std::size_t i = 0; i < readers_.size(); ++i) {
      threads_.emplace_back(
          [this, i, take_over_device = detail::current_device_of_this_thread()](const std::stop_token& stop) {
            take_over_device();
            run(stop, i);
          });
    }
  }
  /// Waits for reads in flight.
  ~Prefetcher() {
    for (std::jthread& thread : threads_) thread.request_stop();  // all threads, before the first is joined
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Blocks for the next result. Returns nullopt at the end. Rethrows an exception of the reader, which is the end too.
  std::optional<T> next() {
    if (ended_) return std::nullopt;
    Result result;
    {
      std::unique_lock lock(mutex_);
      Slot& slot = slots_[static_cast<std::size_t>(taken_) % slots_.size()];
      changed_.wait(lock, [&slot] { return slot.has_value(); });
      result = std::move(*slot);
      slot.reset();
      ++taken_;
    }
    changed_.notify_all();
    ended_ = !result.value;
    if (result.error) std::rethrow_exception(result.error);
    return std::move(result.value);
  }

 private:
  struct Result {
    std::optional<T> value;
    std::exception_ptr error;
  };
  using Slot = std::optional<Result>;

  void run(const std::stop_token& stop, std::size_t reader) {
    for (auto number = static_cast<std::int64_t>(reader);; number += static_cast<std::int64_t>(readers_.size())) {
      {
        std::unique_lock lock(mutex_);
        const auto has_slot = [&] { return number < taken_ + static_cast<std::int64_t>(slots_.size()); };
        if (!changed_.wait(lock, stop, has_slot) || stop.stop_requested()) return;
      }
      Result result;
      try {
        result.value = readers_[reader](number);
      } catch (...) {
        result.error = std::current_exception();
      }
      const bool last = !result.value;
      {
        const std::lock_guard lock(mutex_);
        slots_[static_cast<std::size_t>(number) % slots_.size()] = std::move(result);
      }
      changed_.notify_all();
      if (last) return;
    }
  }

  std::vector<Reader> readers_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Slot> slots_;
  std::int64_t taken_ = 0;
  bool ended_ = false;
  std::vector<std::jthread> threads_;  // last: threads use the members above and must be joined first
};

}  // namespace tutti
