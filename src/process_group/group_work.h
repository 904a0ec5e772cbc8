#pragma once
// c10d's handle of an operation, which completes with the communicator's Works. As in ProcessGroupGloo, its future
// completes before the work: after wait() the future has completed, but not the other way round.
//
// With outputs on a device, an operation completes when its last step is queued there. That step, `on_completed` and
// the future's event are on a side stream, for which wait(), synchronize() and the future's wait() make the calling
// thread's current stream wait.
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "comm/worker.h"
#include "device/side_stream.h"
#include "tutti/comm/work.h"

namespace tutti::process_group {

/// The parts of an operation of a group.
struct Parts {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* what = "";                          ///< the name of the call: "all_reduce"
  std::vector<Work> works = {};                   ///< the operation completes when all have completed
  std::vector<at::Tensor> outputs = {};           ///< the value of result() and of the future
  std::function<void()> on_completed = {};        ///< runs after all works succeeded, before the operation completes
  std::shared_ptr<std::atomic<int>> source = {};  ///< of a received message
};

class GroupWork final : public c10d::Work {
 public:
  /// `inputs` are the tensors that a profiler shows.
  static c10::intrusive_ptr<GroupWork> start(int rank, std::uint64_t number, std::chrono::milliseconds timeout,
                                             const std::vector<at::Tensor>& inputs, Parts parts);

  GroupWork(int rank, std::uint64_t number, std::chrono::milliseconds timeout, const std::vector<at::Tensor>& inputs,
            Parts parts);
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return parts_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;
  /// What a work that combines several waits for.
  std::vector<tutti::Work> parts() const;
  std::uint64_t getSequencenumber() const override { return number_; }
  std::chrono::milliseconds getTimeout() const override { return timeout_; }

 private:
  void on_part_completed(const tutti::Work& part);
  /// Runs `step` on the side stream, after all parts; on the calling thread if no output is on a device.
  void run_after_parts(const std::function<void()>& step);
  void end(std::exception_ptr failure);
  void complete_future(c10::ivalue::Future& future);

  Parts parts_;
  const std::shared_ptr<comm::WorkState> last_step_;  // ends after `on_completed`; null without one
  const std::uint64_t number_;
  const std::chrono::milliseconds timeout_;
  std::atomic<std::size_t> pending_parts_;  // works in flight
  std::exception_ptr failure_;              // of the work that failed first; final once is_outcome_known_
  bool is_outcome_known_ = false;           // set before the future completes and before wait() returns
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::optional<devices::SideStream> side_stream_;         // set if an output is on a device
  std::shared_ptr<devices::StreamEvent> completed_event_;  // after `on_completed`; set before the work completes
};

}  // namespace tutti::process_group
