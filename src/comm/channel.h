#pragma once
// What copies of a Communicator share: an engine, the numbers of its calls, a thread that runs them, and whether one
// has failed.
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/channel_parts.h"
#include "comm/engine/engine.h"
#include "comm/engine/operation_here.h"
#include "comm/fingerprint.h"
#include "comm/worker.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

struct Standing;

/// What a rank sends along with the call.
struct CallData {
  std::uint64_t length = 0;  // may differ between ranks
  /// At most payload_bytes(), the same length on all ranks. `body` then has all that it needs, must not block, and
  /// may run on the calling thread.
  std::optional<std::span<const std::byte>> payload{};
};

class Channel : public std::enable_shared_from_this<Channel>, private WatchedCalls::Owner {
 public:
  /// `name` is unique in the job: channels made from this one are named after it.
  Channel(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout, std::string name, ChannelParts parts);
  ~Channel() override;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  Engine& engine() const { return *engine_; }
  bool poisoned() const { return poisoned_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::string& name() const { return name_; }
  const ChannelParts& parts() const { return parts_; }

  /// What all ranks sent when they agreed on a call.
  struct Answers {
    std::vector<Fingerprint> by_rank;
    std::vector<const std::byte*> payloads;  // by rank: what was sent along
  };
  /// What a user-facing collective does once all ranks agree on the call.
  using Body = std::function<void(const Operation& operation, const Answers& answers)>;
  /// Runs a collective on the channel's thread: compares fingerprints, then runs `body`. `arguments` is what stands in
  /// the parentheses of the call in messages.
  std::shared_ptr<WorkState> call(const std::string& what, const std::string& arguments, const CallOptions& options,
                                  Body body, const CallData& data = {});
  /// How much data can travel with a call.
  std::size_t payload_bytes() const;

  at::Tensor allocate(std::int64_t bytes, at::Device device);
  std::unique_ptr<PendingSum> start_sum(const at::Tensor& flat, const std::shared_ptr<const WireCodec>& codec);
  std::unique_ptr<PendingExchange> start_exchange(std::span<const std::byte> mine);
  std::unique_ptr<PendingGather> start_gather(std::vector<std::byte> mine);
  std::shared_ptr<WorkState> submit(std::function<void()> task);

  // In no order with the calls above. `memory` is contiguous.
  std::shared_ptr<WorkState> send(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                  const char* what = "send");
  /// `at_end(source)` is called before the work ends well, on another thread.
  std::shared_ptr<WorkState> receive(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                     std::function<void(int)> at_end, const char* what = "receive");
  /// See Communicator::monitored_barrier.
  void monitored_barrier(bool wait_for_all, const CallOptions& options);
  /// See Communicator::abort.
  void abort(const std::string& reason) noexcept;

  /// A name for the next channel made from this one; equal on all ranks.
  std::string next_child_name(const std::string& kind);

  /// The channel of this name that was made first, which lives as long as this one.
  std::shared_ptr<Channel> shared_child(const std::string& name, const std::function<std::shared_ptr<Channel>()>& make);

  /// Runs one step of `operation`; a failed transfer poisons the channel and becomes a PeerFailure or Timeout.
  template <typename Step>
  auto guarded(const Operation& operation, const Step& step) {
    try {
      throw_if_poisoned();
      const OperationHere here(operation);
      const WatchedCalls::Inside inside(calls_.get(), operation.number);
      return step();
    } catch (const TransferError& error) {
      write_down_end(operation, flight::EntryState::failed);
      fail(operation, error);
    } catch (...) {
      write_down_end(operation, flight::EntryState::failed);
      throw;
    }
  }
  /// All steps of `operation` are behind this rank.
  void finished(const Operation& operation) noexcept { write_down_end(operation, flight::EntryState::done); }
  /// `operation` was started and will not be completed by this rank: nothing can follow it.
  void abandon(const Operation& operation) noexcept;

 private:
  struct Call;
  void start(Call& call);
  void complete(Call& call);

  OrderPtr make_order(const char* what, const at::Tensor& memory, int peer, int tag, const CallOptions& options) const;
  void end_mail() noexcept;
  /// The first failure, by this rank's own will: leaves word of it and closes.
  void give_up(Standing own, const std::string& reason) noexcept;
  bool stands_still(bool still) noexcept override { return engine_->stands_still(still); }
  void foretell(const std::string& why) noexcept override;
  void end() noexcept override;
  /// Of this channel.
  std::shared_ptr<WorkState> watched(std::shared_ptr<WorkState> work) const;

  /// Without a number.
  Operation timed(const std::string& what, const CallOptions& options) const;
  /// `text` and `bytes` are for the flight record.
  Operation next_operation(const std::string& what, const CallOptions& options, const std::string& text,
                           std::uint64_t bytes = 0);
  void write_down_start(const Operation& operation) noexcept;
  void write_down_end(const Operation& operation, flight::EntryState how) noexcept;
  void throw_if_poisoned() const;
  [[noreturn]] void fail(const Operation& operation, const TransferError& error);
  [[noreturn]] void throw_earlier_failure() const;

  const std::shared_ptr<Engine> engine_;
  const std::chrono::milliseconds timeout_;
  const std::string name_;
  const ChannelParts parts_;
  const std::shared_ptr<WatchedCalls> calls_;  // null where nobody looks
  std::atomic<int> monitored_barriers_ = 0;

  std::mutex order_mutex_;  // numbers are taken and tasks queued in one order
  std::atomic<std::uint64_t> next_number_ = 0;
  std::atomic<int> children_ = 0;

  std::mutex shared_mutex_;
  std::map<std::string, std::shared_ptr<Channel>> shared_children_;

  mutable std::mutex failure_mutex_;  // held while the first failure is looked into
  std::atomic<bool> poisoned_ = false;
  std::string failure_;
  std::string foretold_;  // why calls were made on some ranks only: all ranks throw this
  std::vector<int> culprits_;

  Worker worker_;  // last: ends first
};

}  // namespace tutti::comm
