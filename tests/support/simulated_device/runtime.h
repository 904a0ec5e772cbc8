#pragma once
// A device that is simulated on the CPU: memory that the host may not touch, streams that are threads, events. No
// LibTorch operator here; see operators.cpp. Ordering is CUDA's: work on one stream runs in order, streams know nothing
// of one another but by events, freed memory is reused at once by the stream that allocated it.
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace tutti::test::simulated {

inline constexpr auto type = c10::DeviceType::PrivateUse1;
inline constexpr int most_devices = 8;

/// What a test may turn.
struct Settings {
  int devices = 4;
  int microseconds_per_kernel = 0;  ///< each kernel takes this much longer, so that what does not wait reads too early
  bool poison = true;               ///< fills memory with NaN when it is allocated, and when it is freed
  bool run_at_once = false;         ///< no asynchrony: a launch waits for its kernel
};
Settings& settings();

/// Counts since the last reset, of all threads.
struct Counts {
  std::int64_t kernels = 0;
  std::int64_t allocations = 0;
  std::int64_t copies_to_host = 0, copies_to_device = 0, copies_on_device = 0;
  std::int64_t unstaged = 0;  ///< operators whose results' shapes depend on data: the host waited to know them
  /// How often the host waited for a device, by reason.
  std::map<std::string, std::int64_t> waits;
  std::int64_t all_waits() const;
};
Counts counts();
void reset_counts();
void count_wait(const std::string& why);
void count(std::int64_t Counts::*what);
/// Whether any thread has made `device` its current one since the last forget_touched(): on CUDA that makes a context.
bool touched(int device);
void forget_touched();

// Memory.
/// For the device's kernels: the same memory where it can be touched.
void* as_seen_by_kernels(const void* device_pointer);
bool is_device_memory(const void* pointer);
int device_of(const void* pointer);
void record_on(const void* device_pointer, const c10::Stream& stream);

// Streams.
int current_device();
void set_current_device(int device);
c10::Stream current_stream(int device);
c10::Stream exchange_stream(const c10::Stream& stream);
c10::Stream default_stream(int device);
c10::Stream pool_stream(int device);
/// Runs `kernel` after all that was launched on `stream`. What it throws is thrown by the next wait for the device.
void launch(const c10::Stream& stream, std::function<void()> kernel, bool is_kernel = true);
void wait_for(const c10::Stream& stream, const std::string& why);
void wait_for_device(int device, const std::string& why);
bool is_idle(const c10::Stream& stream);

}  // namespace tutti::test::simulated
