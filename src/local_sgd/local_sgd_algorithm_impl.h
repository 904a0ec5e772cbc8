#pragma once
// The implementation of LocalSgdAlgorithm. All communication runs as tasks on the communicator's thread, one after the
// other. So its order is equal on all ranks, even if the training thread does not wait for a task.
#include <ATen/core/TensorBody.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "local_sgd/extra_state.h"
#include "local_sgd/fragment.h"
#include "local_sgd/mean_exchange.h"
#include "local_sgd/node_groups.h"
#include "local_sgd/schedule.h"
#include "local_sgd/trained_parameters.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/local_sgd/local_sgd_algorithm.h"

namespace tutti {

class LocalSgdAlgorithm::Impl {
 public:
  Impl(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
       std::shared_ptr<torch::optim::Optimizer> optimizer, Communicator communicator,
       const LocalSgdAlgorithmOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void step(double weight, const std::vector<double>& rates);
  void finish();
  bool synchronous() const { return schedule_.warming_up(); }
  const LocalSgdStats& stats() const { return stats_; }
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  /// Steps and weight since the last average.
  struct Progress {
    std::int64_t steps = 0;
    double weight = 0;

    void add(double of_step) {
      ++steps;
      weight += of_step;
    }
  };
  /// A fragment and the state of its exchange.
  struct FragmentState {
    explicit FragmentState(local_sgd::Fragment of) : fragment(std::move(of)) {}

    local_sgd::Fragment fragment;
    /// The exchange over all ranks. With node groups: the exchange of this rank's part between nodes, or null.
    std::unique_ptr<local_sgd::MeanExchange> exchange;
    Progress since_sent;
    /// True if the parameters may differ from the anchor or from those of other ranks.
    bool dirty = false;
    bool in_flight = false;
    Work work;
    local_sgd::ExchangeCost cost;  ///< of the exchange in flight; belongs to its task until the task ends
  };
  struct ParsedState;

  static ParsedState read(const Impl& into, const StateDict& state);

  // local_sgd_algorithm.cpp: the schedule's actions
  template <typename Action>
  void run_checked(const Action& action);
  std::vector<double> inner_rates() const;
  void average_within_node();

  // local_sgd_algorithm_exchange.cpp: exchanges
  local_sgd::ExchangeHeader header(local_sgd::ExchangeKind kind) const;
  void send(int index, const std::vector<double>& rates);
  void agree_on_rates();
  void apply(int index, bool late);
  void combine_extra_state();
  void require_all_in_finish();
  void run(const std::function<void(local_sgd::ExchangeCost&)>& task);
  void wait(const Work& work);
  void add(const local_sgd::ExchangeCost& cost);
  void rethrow_background_failures() const;
  bool skips_exchange() const;

  const LocalSgdAlgorithmOptions options_;
  local_sgd::TrainedParameters parameters_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  Communicator communicator_;
  std::optional<local_sgd::NodeGroups> groups_;
  std::optional<local_sgd::ExtraState> extra_state_;
  std::vector<std::unique_ptr<FragmentState>> fragments_;
  local_sgd::Schedule schedule_;
  Progress since_node_;              ///< since the last average in this node
  Progress since_state_;             ///< since buffers and momentum were combined over all ranks
  std::vector<double> step_rates_;   ///< of the parameter groups in the last step, for SlowMo; empty: not known
  std::vector<double> round_rates_;  ///< of the parameters, for SlowMo; belongs to the exchange in flight
  LocalSgdStats stats_;
  std::exception_ptr failure_;
};

}  // namespace tutti
