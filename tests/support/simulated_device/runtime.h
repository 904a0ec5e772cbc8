#pragma once
// The runtime of the simulated accelerator: settings, counts, memory, streams. LibTorch's operators are above it
// (dispatch.h).
//
// Ordering is CUDA's:
// - Work on one stream runs in order, on a thread of the stream. Streams are ordered by events only.
// - Freed memory is reused at once by the stream that allocated it; by others never.
// - The host continues as soon as a kernel is queued.
#include <c10/core/Stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace tutti::test::simulated {

inline constexpr auto type = c10::DeviceType::PrivateUse1;
inline constexpr int most_devices = 8;

/// What a test may set, at any time and on any thread.
struct Settings {
  std::atomic<int> devices = 4;
  /// Each kernel takes this much longer, so that a reader that does not wait reads too early.
  std::atomic<int> microseconds_per_kernel = 0;
  /// The only device that microseconds_per_kernel applies to; -1 for all devices.
  std::atomic<int> slow_device = -1;
  std::atomic<bool> poison = true;        ///< fills memory with NaN when it is allocated and when it is freed
  std::atomic<bool> run_at_once = false;  ///< a launch waits for its kernel
  /// The memory of each device, including blocks that the allocator caches.
  std::atomic<std::size_t> memory_bytes = std::size_t{4} << 30;
};
Settings& settings();

/// Counts of all threads since the last reset.
struct Counts {
  std::int64_t kernels = 0;
  std::int64_t allocations = 0;
  std::int64_t copies_to_host = 0, copies_to_device = 0, copies_on_device = 0;
  std::int64_t data_dependent = 0;  ///< operators whose results have shapes that only the device knows: the host waits
  std::int64_t emptied_caches = 0;  ///< how often the allocator gave cached memory back
  /// Waits of the host for a device, by reason.
  std::map<std::string, std::int64_t> waits;

  std::int64_t all_waits() const;
};
Counts counts();
void reset_counts();
void count_wait(const std::string& reason);
void count(std::int64_t Counts::*number);

/// True if any thread has made `device` current, allocated memory there, or queued work there since the last
/// forget_touched(). With CUDA this creates a context on the device.
bool touched(int device);
void forget_touched();
void touch(int device);

// Memory.

/// The address at which kernels reach the memory of `device_pointer`.
void* as_seen_by_kernels(const void* device_pointer);
bool is_device_memory(const void* pointer);
/// The device whose memory `pointer` points to.
int device_of(const void* pointer);
/// Keeps the block at `device_pointer`, once it is freed, until `stream` has done the work that it has then.
void record_on(const void* device_pointer, const c10::Stream& stream);

// Streams. A thread has a current device, and a current stream for each device.

int current_device();
void set_current_device(int device);
c10::Stream current_stream(int device);
c10::Stream exchange_stream(const c10::Stream& stream);
c10::Stream default_stream(int device);
/// One of the streams beside the default stream, in turn.
c10::Stream pool_stream(int device);
/// Runs `kernel` after all work that was queued on `stream` before. The next wait for the stream throws what `kernel`
/// throws. `is_kernel` is false for work that counts() leaves out and that is never slow.
void launch(const c10::Stream& stream, std::function<void()> kernel, bool is_kernel = true);
/// Blocks until `stream` has done all work that it has now. Counts as a wait for `reason`.
void wait_for(const c10::Stream& stream, const std::string& reason);
/// The same for all streams of `device`.
void wait_for_device(int device, const std::string& reason);
bool is_idle(const c10::Stream& stream);

}  // namespace tutti::test::simulated
