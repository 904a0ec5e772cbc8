#pragma once
// Threads that read ahead, results in order.
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

/// Results number 0, 1, 2, ... up to the first nullopt. Each reader has a thread of its own, which calls it with the
/// numbers i, i + readers, ... in order, where i is the reader's own. So what a reader sees does not depend on which
/// thread is fast. next() is for one thread.
template <typename T>
class Prefetcher {
 public:
  using Reader = std::function<std::optional<T>(std::int64_t number)>;

  /// At most `ahead` results for each reader are kept that nobody has taken yet.
  Prefetcher(std::vector<Reader> readers, std::size_t ahead)
      : readers_(std::move(readers)), slots_(readers_.size() * ahead) {
    for (std::size_t i = 0; i < readers_.size(); ++i) {
      threads_.emplace_back([this, i](const std::stop_token& stop) { run(stop, i); });
    }
  }
  /// Waits for reads that are under way.
  ~Prefetcher() {
    for (std::jthread& thread : threads_) thread.request_stop();  // all of them, before the first is joined
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Blocks for the next result; nullopt when there is none. Rethrows what its reader threw; after that there is none.
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
        const auto has_room = [&] { return number < taken_ + static_cast<std::int64_t>(slots_.size()); };
        if (!changed_.wait(lock, stop, has_room) || stop.stop_requested()) return;
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
  std::vector<std::jthread> threads_;  // last, so that it is destroyed first
};

}  // namespace tutti
