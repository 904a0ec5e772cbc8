#pragma once
// The engine's inside. All communication happens in tasks on the channel's thread, one after the other: that is the
// order that is equal on all ranks, whether the training thread waits for a task or goes on.
#include <ATen/core/TensorBody.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "local_sgd/fragment.h"
#include "local_sgd/mean_exchange.h"
#include "local_sgd/node_groups.h"
#include "local_sgd/side_state.h"
#include "local_sgd/timetable.h"
#include "local_sgd/trained_parameters.h"
#include "tutti/comm/communicator.h"
#include "tutti/local_sgd/local_update_engine.h"

namespace tutti {

class LocalUpdateEngine::Impl {
 public:
  Impl(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
       std::shared_ptr<torch::optim::Optimizer> optimizer, Communicator channel, const LocalUpdateOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void step(double weight);
  void finish();
  bool synchronous() const { return timetable_.warming_up(); }
  const LocalUpdateStats& stats() const { return stats_; }
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  /// What has been done since something was combined.
  struct Progress {
    std::int64_t steps = 0;
    double weight = 0;

    void add(double of_step) {
      ++steps;
      weight += of_step;
    }
  };
  /// A fragment, its exchange, and where both stand.
  struct Member {
    explicit Member(local_sgd::Fragment of) : fragment(std::move(of)) {}

    local_sgd::Fragment fragment;
    /// Among all ranks, or of this rank's part between nodes; null where it has none there.
    std::unique_ptr<local_sgd::MeanExchange> exchange;
    Progress since_sent;
    /// Parameters may be other than the anchor, or than on other ranks.
    bool dirty = false;
    bool under_way = false;
    Work work;
    local_sgd::ExchangeCost cost;  ///< of the exchange under way; the task's until it has ended
  };
  struct Loaded;

  static Loaded read(const Impl& into, const StateDict& state);

  // local_update_engine.cpp: what is due
  template <typename Action>
  void guarded(const Action& action);
  std::vector<double> inner_rates() const;
  void average_inside_node();
  void combine_all();

  // local_update_exchange.cpp: how it is done
  local_sgd::ExchangeHeader header(local_sgd::ExchangeKind kind) const;
  void send(int index);
  void apply(int index, bool late, const std::vector<double>& rates);
  void combine_side_state();
  void agree_to_finish();
  void run(const std::function<void(local_sgd::ExchangeCost&)>& task);
  void wait(const Work& work);
  void add(const local_sgd::ExchangeCost& cost);
  void notice_failures() const;
  bool alone() const;

  const LocalUpdateOptions options_;
  local_sgd::TrainedParameters parameters_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  Communicator channel_;
  std::optional<local_sgd::NodeGroups> groups_;
  std::optional<local_sgd::SideState> side_state_;
  std::vector<std::unique_ptr<Member>> members_;
  local_sgd::Timetable timetable_;
  Progress since_node_;   ///< since ranks of this node met
  Progress since_state_;  ///< since buffers and momentum were combined among all ranks
  LocalUpdateStats stats_;
  std::exception_ptr failure_;
};

}  // namespace tutti
