#include "comm/device/watchdog.h"

#include <utility>

#include "comm/backend/describe.h"
#include "comm/backend/failure_timeouts.h"
#include "comm/backend/topology.h"
#include "core/thread_name.h"
#include "device/devices.h"

namespace tutti::comm {
namespace {

constexpr auto watch_interval = std::chrono::milliseconds(10);
// A rank that leaves in order has completed its work. The work of this rank then completes soon after.
constexpr auto exit_grace = report_delay;
// After an abort the kernels end soon. A device that does not answer must not block the process.
constexpr auto abort_grace = std::chrono::seconds(1);

std::vector<int> ranks_except(int rank, int size) {
  auto ranks = all_ranks(size);
  std::erase(ranks, rank);
  return ranks;
}

}  // namespace

Watchdog::Watchdog(c10::Device device, std::shared_ptr<const PeerHealth> peers, int rank, int size,
                   std::function<void()> abort)
    : device_(device), peers_(std::move(peers)), rank_(rank), size_(size), abort_(std::move(abort)) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(DeviceWork work) {
  if (work.completed->is_reached()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });  // first, because it may throw
    in_flight_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Watchdog::throw_if_failed() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw TransferError(*failure_);
}

void Watchdog::abort() noexcept {
  std::unique_lock lock(mutex_);
  end_all(lock);
}

bool Watchdog::wait_for_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return in_flight_.empty() || aborted_; });
  if (!aborted_) return true;
  changed_.wait_for(lock, abort_grace, [&] { return in_flight_.empty(); });
  return false;
}

void Watchdog::run() {
  name_this_thread("tutti-device");
  devices::CurrentDevice(device_).make_current();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (in_flight_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || !in_flight_.empty(); });
      continue;
    }
    auto completed = poll();
    if (failure_) end_all(lock);
    if (!completed.empty()) {
      lock.unlock();
      completed.clear();  // without the lock: frees memory
      changed_.notify_all();
      lock.lock();
    }
    changed_.wait_for(lock, watch_interval, [&] { return stopping_; });
  }
}

std::vector<DeviceWork> Watchdog::poll() {
  std::vector<DeviceWork> completed;
  std::optional<TransferError> failure;
  std::vector<DeviceWork> left;
  for (DeviceWork& work : in_flight_) {
    bool is_completed = false;
    try {
      is_completed = work.completed->is_reached();
      if (!is_completed && !failure && Clock::now() >= work.deadline) failure = lateness_of(work);
    } catch (const std::exception& error) {
      is_completed = aborted_;
      if (!failure) {
        failure.emplace(TransferError::Kind::device_timeout, std::vector<int>{rank_},
                        device_.str() + ": " + first_line(error.what()), std::chrono::milliseconds(0));
      }
    }
    (is_completed ? completed : left).push_back(std::move(work));
  }
  in_flight_ = std::move(left);
  if (!failure && !in_flight_.empty()) failure = failure_of_peers();
  if (failure && !aborted_ && !failure_) failure_ = std::move(failure);
  return completed;
}

TransferError Watchdog::lateness_of(const DeviceWork& work) const {
  if (!work.inputs_ready->is_reached()) {
    return TransferError(TransferError::Kind::device_timeout, {rank_},
                         "the device of this rank (" + std::to_string(rank_) + "), " + device_.str() +
                             ", did not reach a collective within " + describe_duration(work.timeout),
                         work.timeout);
  }
  return TransferError(TransferError::Kind::device_timeout, ranks_except(rank_, size_),
                       "a collective on " + device_.str() + " did not end in time", work.timeout);
}

std::optional<TransferError> Watchdog::failure_of_peers() {
  try {
    peers_->throw_if_peers_failed();
  } catch (const TransferError& error) {
    return error;
  }
  std::vector<int> exited;
  for (const int rank : ranks_except(rank_, size_)) {
    if (peers_->peer_exited(rank)) exited.push_back(rank);
  }
  if (exited.empty()) {
    peer_exited_since_.reset();
    return std::nullopt;
  }
  if (!peer_exited_since_) peer_exited_since_ = Clock::now();
  if (Clock::now() - *peer_exited_since_ < exit_grace) return std::nullopt;
  return TransferError(TransferError::Kind::connection_closed, exited,
                       "a collective on " + device_.str() + " cannot end, because its peers have exited");
}

// The lock is released during the call, because a c10d backend may wait for its threads.
void Watchdog::end_all(std::unique_lock<std::mutex>& lock) noexcept {
  if (std::exchange(aborted_, true)) return;
  lock.unlock();
  try {
    abort_();
  } catch (const std::exception&) {
    // The communicator fails in any case, so an error of c10d is of no use to the caller.
  }
  changed_.notify_all();
  lock.lock();
}

}  // namespace tutti::comm
