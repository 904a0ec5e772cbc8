#pragma once
// The algorithm's inside. All communication happens in tasks on the communicator's thread, one after the other: that is
// the order that is equal on all ranks, whether the training thread waits for a task or goes on.
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

  void step(double weight);
  void finish();
  bool synchronous() const { return schedule_.warming_up(); }
  const LocalSgdStats& stats() const { return stats_; }
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
  struct FragmentState {
    explicit FragmentState(local_sgd::Fragment of) : fragment(std::move(of)) {}

    local_sgd::Fragment fragment;
    /// Among all ranks, or of this rank's part between nodes; null where it has none there.
    std::unique_ptr<local_sgd::MeanExchange> exchange;
    Progress since_sent;
    /// Parameters may be other than the anchor, or than on other ranks.
    bool dirty = false;
    bool in_flight = false;
    Work work;
    local_sgd::ExchangeCost cost;  ///< of the exchange in flight; the task's until it has ended
  };
  struct ParsedState;

  static ParsedState read(const Impl& into, const StateDict& state);

  // local_sgd_algorithm.cpp: what is due
  template <typename Action>
  void run_checked(const Action& action);
  std::vector<double> inner_rates() const;
  void average_within_node();
  void combine_all();

  // local_sgd_algorithm_exchange.cpp: how it is done
  local_sgd::ExchangeHeader header(local_sgd::ExchangeKind kind) const;
  void send(int index);
  void apply(int index, bool late, const std::vector<double>& rates);
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
  Progress since_node_;   ///< since ranks of this node met
  Progress since_state_;  ///< since buffers and momentum were combined among all ranks
  LocalSgdStats stats_;
  std::exception_ptr failure_;
};

}  // namespace tutti
