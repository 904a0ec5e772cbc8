#pragma once
// Events of the simulated accelerator. runtime.h has its streams.
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {

/// A point in a stream. Recording it again moves it; who waits, waits for the record that was the last then.
class EventState {
 public:
  /// Puts the event after all work that `stream` has now.
  static std::uint64_t record(const std::shared_ptr<EventState>& event, const c10::Stream& stream);
  /// The number of records so far.
  std::uint64_t last_record() const;
  bool is_reached(std::uint64_t record) const;
  void wait(std::uint64_t record) const;

 private:
  void reach(std::uint64_t record);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
};

using Event = std::shared_ptr<EventState>;

/// The stream with number `id`; 0 is the default stream.
c10::Stream stream_of(int device, c10::StreamId id);

}  // namespace tutti::test::simulated
