#pragma once
// c10d's handle of an operation, ended by those of the communicator. Its future ends first, then the work itself, as
// with c10d's Gloo: who has waited for the work finds the future ended, not the other way round.
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tutti/comm/work.h"

namespace tutti::process_group {

/// What an operation of a group consists of.
struct Parts {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* what = "";                          ///< "all_reduce"
  std::vector<Work> works = {};                   ///< all must end
  std::vector<at::Tensor> outputs = {};           ///< result() and the future's value
  std::function<void()> on_completed = {};        ///< once all have ended well, before anybody hears of it
  std::shared_ptr<std::atomic<int>> source = {};  ///< of a message
};

class GroupWork final : public c10d::Work {
 public:
  /// `inputs`: what a profiler shows.
  static c10::intrusive_ptr<GroupWork> start(int rank, std::uint64_t number, std::chrono::milliseconds timeout,
                                             const std::vector<at::Tensor>& inputs, Parts parts);

  GroupWork(int rank, std::uint64_t number, std::chrono::milliseconds timeout, const std::vector<at::Tensor>& inputs,
            Parts parts);
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return parts_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;
  const std::vector<tutti::Work>& works() const { return parts_.works; }
  std::uint64_t getSequencenumber() const override { return number_; }
  std::chrono::milliseconds getTimeout() const override { return timeout_; }

 private:
  void on_part_completed(const tutti::Work& part);
  void end(std::exception_ptr failure);
  void complete_future(c10::ivalue::Future& future);

  Parts parts_;
  const std::uint64_t number_;
  const std::chrono::milliseconds timeout_;
  std::atomic<std::size_t> pending_parts_;  // parts that have not ended
  std::exception_ptr failure_;              // the first part's; final where is_outcome_known_
  bool is_outcome_known_ = false;           // how it ends is known; the future ends before wait() returns
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tutti::process_group
