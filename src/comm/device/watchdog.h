#pragma once
// Detects that work on a device does not end. The program's threads do not wait for the device, or wait in LibTorch, so
// no operation of the host times out.
//
// A thread polls the events of all work in flight. Work has failed if:
// - its timeout has passed: the device of another rank is late, or the device of this rank if even the inputs of the
//   work are not computed;
// - another rank has exited or closed the communicator, or its node has missed heartbeats;
// - the device reports an error.
// The watchdog then aborts the work, and throw_if_failed() throws from that time on. It also keeps the tensors of the
// work until the device has finished with them.
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/backend/operation.h"
#include "comm/backend/peer_health.h"
#include "device/side_stream.h"

namespace tutti::comm {

/// Work that is queued on a device.
struct DeviceWork {
  std::shared_ptr<const devices::StreamEvent> inputs_ready;
  std::shared_ptr<const devices::StreamEvent> completed;
  std::chrono::milliseconds timeout{0};
  std::vector<at::Tensor> memory{};  ///< the device reads or writes it
  Deadline deadline = Clock::now() + std::min(timeout, longest_timeout);
};

/// Thread safe.
class Watchdog {
 public:
  /// `abort` ends the work in flight. It is called at most once, and never again after abort().
  Watchdog(c10::Device device, std::shared_ptr<const PeerHealth> peers, int rank, int size,
           std::function<void()> abort);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch(DeviceWork work);
  /// Throws TransferError if work has failed. Does not throw after abort(): the caller knows the reason.
  void throw_if_failed() const;
  /// Ends the work in flight, unless that has happened before.
  void abort() noexcept;
  /// Blocks until no work is in flight, at most until the work's timeouts. Returns false if work has failed or was
  /// aborted.
  bool wait_for_all();

 private:
  void run();
  /// Removes completed work and returns it. Sets failure_ if some work has failed.
  std::vector<DeviceWork> poll();
  /// The failure of `work`, which has not ended at its deadline.
  TransferError lateness_of(const DeviceWork& work) const;
  std::optional<TransferError> failure_of_peers();
  void end_all(std::unique_lock<std::mutex>& lock) noexcept;

  const c10::Device device_;
  const std::shared_ptr<const PeerHealth> peers_;
  const int rank_;
  const int size_;
  const std::function<void()> abort_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<DeviceWork> in_flight_;
  std::optional<TransferError> failure_;
  std::optional<Deadline> peer_exited_since_;
  bool aborted_ = false;
  bool stopping_ = false;
  std::thread thread_;  // started with the first work
};

}  // namespace tutti::comm
